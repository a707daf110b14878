#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.h"
#include "params.h"

namespace dendrite::python {
namespace {

using InCall = SessionState::InCall;

nb::object prefill(const PySession& self, nb::handle prompt, nb::handle stream,
                   nb::handle add_special, nb::handle salt, nb::handle cancel) {
  SessionState& state = *self.state;
  const InCall in_call(state);
  const std::vector<Token> tokens = to_prompt(state.engine->live(), prompt, add_special, "prompt");
  const PrefillOptions options{.stream = to_optional_unsigned(stream, "stream"),
                               .salt = to_text(salt, "salt"),
                               .cancel = to_stop_token(cancel)};
  Branch branch;
  {
    const nb::gil_scoped_release released;
    branch = state.session->prefill(tokens, options);
  }
  return own(self.state, std::move(branch));
}

std::vector<Generation> decode(const PySession& self, nb::handle branches,
                               const NativeParams& native, nb::handle ahead, nb::handle on_token,
                               nb::handle on_step, nb::handle enough, nb::handle cancel) {
  SessionState& state = *self.state;
  const InCall in_call(state);
  const Marked marked(state, branches, "decode", !enough.is_none());
  const Marked marked_ahead(state, ahead, "decode");
  DecodeParams params = with_callables(
      native.params,
      {Callable(on_token, "on_token"), Callable(on_step, "on_step"), Callable(enough, "enough")});
  params.cancel = to_stop_token(cancel);
  const nb::gil_scoped_release released;
  return state.session->decode(marked.handles(), params, marked_ahead.handles());
}

std::vector<std::vector<Score>> score(const PySession& self, nb::handle branches,
                                      nb::handle continuations, nb::handle top_logprobs) {
  const ScoreParams params{.top_logprobs = to_small_int(top_logprobs, "score: top_logprobs")};
  SessionState& state = *self.state;
  const InCall in_call(state);
  const Marked marked(state, branches, "score");
  const auto tokens = to_continuations(marked.handles(), continuations);
  const nb::gil_scoped_release released;
  return state.session->score_tokens_of_each(marked.handles(), tokens, params);
}

nb::list expand(const PySession& self, nb::handle branches, nb::handle top, nb::handle min_prob) {
  const ExpandParams params{.top = to_small_int(top, "top"),
                            .min_prob = to_number(min_prob, "min_prob")};
  SessionState& state = *self.state;
  const InCall in_call(state);
  const Marked marked(state, branches, "expand");
  std::vector<std::vector<Branch>> children;
  {
    const nb::gil_scoped_release released;
    children = state.session->expand(marked.handles(), params);
  }
  nb::list all;
  for (std::vector<Branch>& of_one : children) all.append(own(self.state, std::move(of_one)));
  return all;
}

nb::object distributions(const PySession& self, nb::handle branches) {
  SessionState& state = *self.state;
  const InCall in_call(state);
  const Marked marked(state, branches, "distributions");
  const auto vocab = static_cast<std::size_t>(state.engine->live().info().vocab);
  const std::size_t rows = marked.handles().size();
  auto values = std::make_unique<float[]>(rows * vocab);
  {
    const nb::gil_scoped_release released;
    const std::vector<Distribution> all = state.session->distributions(marked.handles());
    for (std::size_t i = 0; i < rows; ++i) {
      float* row = values.get() + i * vocab;
      if (all[i].valid()) {
        std::ranges::copy(all[i].logits(), row);
      } else {
        std::fill_n(row, vocab, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  const nb::capsule owner(values.get(),
                          [](void* data) noexcept { delete[] static_cast<float*>(data); });
  return nb::cast(
      nb::ndarray<nb::numpy, float, nb::ndim<2>>(values.release(), {rows, vocab}, owner));
}

void prune(const PySession& self, nb::handle branches) {
  SessionState& state = *self.state;
  std::vector<Branch*> handles;
  std::vector<nb::object> kept;
  constexpr const char* kExpected = "a Branch, or a sequence of them";
  if (nb::isinstance<nb::str>(branches)) fail_type("prune: branches", branches, kExpected);
  for (const nb::handle object : items_of(branches, "prune: branches", kExpected)) {
    kept.push_back(nb::borrow(object));
    handles.push_back(
        &to_branch(object, "prune: branch " + std::to_string(handles.size())).change("prune"));
  }
  state.live().prune(handles);
}

SaveOptions to_save(nb::handle attachment, nb::handle kv) {
  return {.attachment = to_text(attachment, "attachment"), .kv = to_bool(kv, "kv")};
}

void save(const PySession& self, const std::string& path, nb::handle branches,
          nb::handle attachment, nb::handle kv) {
  const SaveOptions options = to_save(attachment, kv);
  SessionState& state = *self.state;
  const InCall in_call(state);
  const Marked marked(state, branches, "save");
  const nb::gil_scoped_release released;
  state.session->save(path, marked.handles(), options);
}

nb::bytes snapshot(const PySession& self, nb::handle branches, nb::handle attachment,
                   nb::handle kv) {
  const SaveOptions options = to_save(attachment, kv);
  SessionState& state = *self.state;
  const InCall in_call(state);
  const Marked marked(state, branches, "snapshot");
  std::vector<std::byte> bytes;
  {
    const nb::gil_scoped_release released;
    bytes = state.session->snapshot(marked.handles(), options);
  }
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace

nb::class_<PySession> bind_session(nb::module_& module) {
  nb::class_<PySession> session(module, "SessionHandle",
                                "A session; what dendrite.Session is built on.");
  session
      .def(
          "prefill", &prefill, nb::arg("prompt").none(), nb::arg("stream").none(),
          nb::arg("add_special").none(), nb::arg("salt").none(), nb::arg("cancel").none(),
          nb::sig("def prefill(self, prompt: Prompt, stream: int | None, add_special: bool | None, "
                  "salt: str, cancel: Cancel | None) -> Branch"))
      .def("decode", &decode, nb::arg("branches").none(), nb::arg("params"),
           nb::arg("ahead").none(), nb::arg("on_token").none(), nb::arg("on_step").none(),
           nb::arg("enough").none(), nb::arg("cancel").none())
      .def("score", &score, nb::arg("branches").none(), nb::arg("continuations").none(),
           nb::arg("top_logprobs").none())
      .def("expand", &expand, nb::arg("branches").none(), nb::arg("top").none(),
           nb::arg("min_prob").none(),
           nb::sig("def expand(self, branches: object, top: int, min_prob: float) -> "
                   "list[list[Branch]]"))
      .def("distributions", &distributions, nb::arg("branches").none(),
           nb::sig("def distributions(self, branches: object) -> NDArray[numpy.float32]"))
      .def("prune", &prune, nb::arg("branches").none())
      .def("save", &save, nb::arg("path"), nb::arg("branches").none(), nb::arg("attachment").none(),
           nb::arg("kv").none())
      .def("snapshot", &snapshot, nb::arg("branches").none(), nb::arg("attachment").none(),
           nb::arg("kv").none())
      .def("stats", [](const PySession& self) { return self.state->live().stats(); })
      .def("shortage", [](const PySession& self) { return self.state->live().shortage(); })
      .def_prop_ro("closed",
                   [](const PySession& self) {
                     return !self.state->session || self.state->engine->is_foreign();
                   })
      .def("close", [](const PySession& self) { self.state->close(); });
  return session;
}

}  // namespace dendrite::python
