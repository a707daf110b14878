#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace dendrite::python {
namespace {

std::shared_ptr<EngineState> load(const std::string& model, const EngineOptions& options) {
  const nb::gil_scoped_release released;
  return std::make_shared<EngineState>(Engine::load(model, options));
}

/// The session's poll: called between steps by the thread that waits, without the GIL. Ends calls
/// of a session that is being closed; in the main thread raises what a signal (Ctrl-C) asks for.
std::function<bool()> poll_of(const SessionState::Closing& closing) {
  static const unsigned long main_thread = [] {
    const nb::object main = nb::module_::import_("threading").attr("main_thread")();
    return nb::cast<unsigned long>(main.attr("ident"));
  }();
  return [closing] {
    if (PyThread_get_thread_ident() == main_thread) {
      const WithGil gil;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    return !*closing;
  };
}

PySession adopt(const std::shared_ptr<EngineState>& engine, Session session,
                const SessionState::Closing& closing) {
  auto state = std::make_shared<SessionState>(engine, std::move(session), closing);
  std::erase_if(engine->sessions, [](const auto& weak) { return weak.expired(); });
  engine->sessions.push_back(state);
  return {std::move(state)};
}

PySession make_session(const std::shared_ptr<EngineState>& self, std::uint64_t seed,
                       std::uint64_t stream, double weight, std::int64_t budget_tokens,
                       double budget_milliseconds) {
  const auto closing = std::make_shared<std::atomic<bool>>(false);
  Session session(self->live(), {.seed = seed,
                                 .budget = {budget_tokens, budget_milliseconds},
                                 .stream = stream,
                                 .weight = weight,
                                 .poll = poll_of(closing)});
  return adopt(self, std::move(session), closing);
}

/// (session, branches, kv_restored, note, attachment, seed)
nb::tuple restore(const std::shared_ptr<EngineState>& self, nb::handle source) {
  const auto closing = std::make_shared<std::atomic<bool>>(false);
  std::function<bool()> poll = poll_of(closing);
  Engine& engine = self->live();
  Restored restored = [&] {
    if (nb::isinstance<nb::bytes>(source)) {
      const auto bytes = nb::borrow<nb::bytes>(source);
      const std::span data(static_cast<const std::byte*>(bytes.data()), bytes.size());
      const nb::gil_scoped_release released;
      return engine.restore(data, std::move(poll));
    }
    const auto file = nb::cast<std::string>(source);
    const nb::gil_scoped_release released;
    return engine.restore(std::filesystem::path(file), std::move(poll));
  }();
  const PySession session = adopt(self, std::move(restored.session), closing);
  return nb::make_tuple(session, own(session.state, std::move(restored.branches)),
                        restored.kv_restored, to_str(restored.note), to_str(restored.attachment),
                        session.state->session->seed());
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<EngineOptions>(module, "EngineOptions", "How to load an engine.")
      .def(nb::init<>())
      .def_rw("device", &EngineOptions::device)
      .def_rw("dtype", &EngineOptions::dtype)
      .def_rw("threads", &EngineOptions::threads)
      .def_rw("page_tokens", &EngineOptions::page_tokens)
      .def_rw("kv_tokens", &EngineOptions::kv_tokens)
      .def_rw("load_format", &EngineOptions::load_format)
      .def_rw("kernels", &EngineOptions::kernels)
      .def_rw("beyond_positions", &EngineOptions::beyond_positions)
      .def_rw("prefix_index", &EngineOptions::prefix_index)
      .def_rw("chunk_tokens", &EngineOptions::chunk_tokens)
      .def_rw("deterministic", &EngineOptions::deterministic)
      .def_rw("host_tables", &EngineOptions::host_tables, nb::arg("value").none())
      .def_rw("step_target_ms", &EngineOptions::step_target_ms)
      .def_rw("draft_model", &EngineOptions::draft_model)
      .def_rw("draft_kv_tokens", &EngineOptions::draft_kv_tokens)
      .def_rw("drafter", &EngineOptions::drafter)
      .def_rw("weights", &EngineOptions::weights)
      .def_rw("backend_library", &EngineOptions::backend_library)
      .def_rw("kv_debug", &EngineOptions::kv_debug, nb::arg("value").none());
  nb::class_<EngineState>(module, "EngineHandle", "An engine; what dendrite.Engine is built on.")
      .def("info", [](EngineState& self) { return self.live().info(); })
      .def("session", &make_session, nb::kw_only(), nb::arg("seed"), nb::arg("stream"),
           nb::arg("weight"), nb::arg("budget_tokens"), nb::arg("budget_milliseconds"))
      .def(
          "encode",
          [](EngineState& self, nb::str text, bool add_special) {
            return to_array(to_prompt(self.live(), text, add_special));
          },
          nb::arg("text"), nb::arg("add_special"),
          nb::sig("def encode(self, text: str, add_special: bool) -> NDArray[numpy.int32]"))
      .def(
          "encode_after",
          [](EngineState& self, nb::handle before, nb::str text) {
            return to_array(self.live().encode_after(to_tokens(before), to_view(text)));
          },
          nb::arg("before"), nb::arg("text"),
          nb::sig("def encode_after(self, before: Tokens, text: str) -> NDArray[numpy.int32]"))
      .def(
          "decode",
          [](EngineState& self, nb::handle ids, bool skip_special) {
            return to_str(self.live().decode(to_tokens(ids), skip_special));
          },
          nb::arg("ids"), nb::arg("skip_special"))
      .def(
          "check",
          [](EngineState& self, nb::handle constraint) {
            check(self.live(), to_constraint(constraint));
          },
          nb::arg("constraint"), nb::sig("def check(self, constraint: Constraint) -> None"))
      .def(
          "render_chat",
          [](EngineState& self, const std::string& messages, bool add_generation_prompt,
             const std::string& tools, const std::string& extra) {
            return to_str(
                self.live().render_chat(messages, {.add_generation_prompt = add_generation_prompt,
                                                   .tools_json = tools,
                                                   .extra_json = extra}));
          },
          nb::arg("messages"), nb::arg("add_generation_prompt"), nb::arg("tools"), nb::arg("extra"))
      .def("restore", &restore, nb::arg("source"),
           nb::sig("def restore(self, source: str | bytes) -> tuple[SessionHandle, list[Branch], "
                   "bool, str, str, int]"))
      .def("stats", [](EngineState& self) { return self.live().stats(); })
      .def("chunks", [](EngineState& self) { return self.live().chunks(); })
      .def("tree_text", [](EngineState& self) { return self.live().tree_text(); })
      .def("start", &EngineState::start)
      .def_prop_ro("closed", [](EngineState& self) { return !self.engine || is_forked(); })
      .def("close", &EngineState::close);
  module.def("build_id", &build_id, "What Dendrite was built from and with.");
  module.def("load", &load, nb::arg("model"), nb::arg("options"));
}

}  // namespace dendrite::python
