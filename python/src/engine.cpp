#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bindings.h"
#include "dendrite/model_files.h"

namespace dendrite::python {
namespace {

using Stored = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;

std::vector<Stored> stored(const std::string& model) {
  std::vector<Stored> out;
  for (const StoredWeights& weights : stored_weights(model)) {
    out.emplace_back(weights.format, weights.tensors, weights.parameters, weights.bytes);
  }
  return out;
}

std::shared_ptr<EngineState> load(const std::string& model, const EngineOptions& options) {
  const nb::gil_scoped_release released;
  return std::make_shared<EngineState>(Engine::load(model, options));
}

PySession adopt(const std::shared_ptr<EngineState>& engine, Session session,
                const SessionState::Closing& closing) {
  auto state = std::make_shared<SessionState>(engine, std::move(session), closing);
  std::erase_if(engine->sessions, [](const auto& weak) { return weak.expired(); });
  engine->sessions.push_back(state);
  return {std::move(state)};
}

PySession make_session(const std::shared_ptr<EngineState>& self, nb::handle seed, nb::handle stream,
                       nb::handle weight, nb::handle budget_tokens,
                       nb::handle budget_milliseconds) {
  const auto closing = std::make_shared<std::atomic<bool>>(false);
  Session session(self->live(), {.seed = to_unsigned(seed, "seed"),
                                 .budget = {to_int(budget_tokens, "Budget.tokens"),
                                            to_number(budget_milliseconds, "Budget.milliseconds")},
                                 .stream = to_unsigned(stream, "stream"),
                                 .weight = to_number(weight, "weight"),
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

/// float32 [texts, dim]
nb::object embed(EngineState& self, nb::list texts, nb::handle pooling_name, nb::handle normalize,
                 nb::handle add_special) {
  const std::string pooling = to_text(pooling_name, "pooling");
  if (pooling != "last_token" && pooling != "mean") {
    throw nb::value_error(
        ("embed: pooling is \"" + pooling + "\"; expected \"last_token\" or \"mean\"").c_str());
  }
  Engine& engine = self.live();
  std::vector<std::vector<Token>> ids;
  for (const nb::handle text : texts) ids.push_back(to_prompt(engine, text, add_special, "texts"));
  const EmbedOptions options{.pooling = pooling == "mean" ? Pooling::kMean : Pooling::kLastToken,
                             .normalize = to_bool(normalize, "normalize"),
                             .poll = poll_for_signals()};
  Embeddings made;
  {
    const nb::gil_scoped_release released;
    made = engine.embed(ids, options);
  }
  auto values = std::make_unique<float[]>(made.values.size());
  std::ranges::copy(made.values, values.get());
  const nb::capsule owner(values.get(),
                          [](void* data) noexcept { delete[] static_cast<float*>(data); });
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(
      values.release(), {ids.size(), static_cast<std::size_t>(made.dim)}, owner));
}

}  // namespace

std::function<bool()> poll_of(const SessionState::Closing& closing) {
  const nb::object main = nb::module_::import_("threading").attr("main_thread")();
  const auto main_thread = nb::cast<unsigned long>(main.attr("ident"));
  return [closing, main_thread] {
    if (PyThread_get_thread_ident() == main_thread) {
      const WithGil gil;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    return !*closing;
  };
}

std::function<bool()> poll_for_signals() {
  return poll_of(std::make_shared<std::atomic<bool>>(false));
}

void bind_engine(nb::module_& module) {
  nb::class_<EngineOptions>(module, "EngineOptions", "How to load an engine.")
      .def(nb::init<>())
      .def_rw("device", &EngineOptions::device)
      .def_rw("devices", &EngineOptions::devices)
      .def_rw("dtype", &EngineOptions::dtype)
      .def_rw("quantization", &EngineOptions::quantization)
      .def_rw("output_quantization", &EngineOptions::output_quantization)
      .def_rw("kv_dtype", &EngineOptions::kv_dtype)
      .def_rw("threads", &EngineOptions::threads)
      .def_rw("page_tokens", &EngineOptions::page_tokens)
      .def_rw("kv_tokens", &EngineOptions::kv_tokens)
      .def_rw("memory_bytes", &EngineOptions::memory_bytes)
      .def_rw("state_bytes", &EngineOptions::state_bytes)
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
  nb::class_<EngineState> engine(module, "EngineHandle",
                                 "An engine; what dendrite.Engine is built on.");
  engine.def("info", [](EngineState& self) { return self.live().info(); })
      .def("session", &make_session, nb::kw_only(), nb::arg("seed").none(),
           nb::arg("stream").none(), nb::arg("weight").none(), nb::arg("budget_tokens").none(),
           nb::arg("budget_milliseconds").none(),
           nb::sig("def session(self, *, seed: int, stream: int, weight: float, budget_tokens: "
                   "int, budget_milliseconds: float) -> SessionHandle"))
      .def(
          "encode",
          [](EngineState& self, nb::handle text, nb::handle add_special) {
            if (!nb::isinstance<nb::str>(text)) fail_type("text", text, "a str");
            return to_array(to_prompt(self.live(), text, add_special, "text"));
          },
          nb::arg("text").none(), nb::arg("add_special").none(),
          nb::sig("def encode(self, text: str, add_special: bool | None) -> NDArray[numpy.int32]"))
      .def("embed", &embed, nb::arg("texts"), nb::arg("pooling").none(),
           nb::arg("normalize").none(), nb::arg("add_special").none(),
           nb::sig("def embed(self, texts: list[Any], pooling: str, normalize: bool, add_special: "
                   "bool) -> NDArray[numpy.float32]"))
      .def(
          "encode_after",
          [](EngineState& self, nb::handle before, nb::handle text) {
            const std::string what = to_text(text, "text");
            return to_array(self.live().encode_after(to_tokens(before, "before"), what));
          },
          nb::arg("before").none(), nb::arg("text").none(),
          nb::sig("def encode_after(self, before: Tokens, text: str) -> NDArray[numpy.int32]"))
      .def(
          "decode",
          [](EngineState& self, nb::handle ids, nb::handle skip_special) {
            const bool skip = to_bool(skip_special, "skip_special");
            return to_str(self.live().decode(to_tokens(ids, "ids"), skip));
          },
          nb::arg("ids").none(), nb::arg("skip_special").none(),
          nb::sig("def decode(self, ids: Tokens, skip_special: bool) -> str"))
      .def(
          "token_bytes",
          [](EngineState& self, nb::handle token) {
            const std::string bytes = self.live().token_bytes(to_small_int(token, "token"));
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("token").none(), nb::sig("def token_bytes(self, token: int) -> bytes"))
      .def(
          "check",
          [](EngineState& self, nb::handle constraint) {
            check(self.live(), to_constraint(constraint));
          },
          nb::arg("constraint").none(), nb::sig("def check(self, constraint: Constraint) -> None"))
      .def(
          "render_chat",
          [](EngineState& self, const std::string& messages, nb::handle add_generation_prompt,
             const std::string& tools, const std::string& extra) {
            const bool adds = to_bool(add_generation_prompt, "add_generation_prompt");
            return to_str(self.live().render_chat(
                messages,
                {.add_generation_prompt = adds, .tools_json = tools, .extra_json = extra}));
          },
          nb::arg("messages"), nb::arg("add_generation_prompt").none(), nb::arg("tools"),
          nb::arg("extra"),
          nb::sig("def render_chat(self, messages: str, add_generation_prompt: bool, tools: str, "
                  "extra: str) -> str"))
      .def("restore", &restore, nb::arg("source"),
           nb::sig("def restore(self, source: str | bytes) -> tuple[SessionHandle, list[Branch], "
                   "bool, str, str, int]"))
      .def("compatibility", [](EngineState& self) { return self.live().compatibility(); })
      .def("stats", [](EngineState& self) { return self.live().stats(); })
      .def("chunks", [](EngineState& self) { return self.live().chunks(); })
      .def("tree_text", [](EngineState& self) { return self.live().tree_text(); })
      .def("start", &EngineState::start)
      .def_prop_ro("closed", [](EngineState& self) { return !self.engine || self.is_foreign(); })
      .def("close", &EngineState::close);
  bind_tool_grammar(engine);
  module.def("build_id", &build_id, "What Dendrite was built from and with.");
  module.def("load", &load, nb::arg("model"), nb::arg("options"));
  module.def("stored_weights", &stored, nb::arg("model"),
             "What a model's weights are stored as: format, tensors, parameters, bytes.");
  module.def("model_text", &model_text, nb::arg("model"), nb::arg("name"),
             "The text of a file of the model's folder, or what a GGUF file says in its place.");
}

}  // namespace dendrite::python
