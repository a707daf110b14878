// Small values: reasons, tokens, what was generated, distributions.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdio>

#include "bindings.h"

namespace dendrite::python {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

void bind_finish(nb::module_& module) {
  nb::enum_<Finish>(module, "Finish",
                    "Why a branch stopped. Running out of something is a Finish, never an error.")
      .value("RUNNING", Finish::kRunning, "It did not stop; decode it further.")
      .value("LENGTH", Finish::kLength, "max_tokens reached.")
      .value("STOP", Finish::kStop,
             "A stop string or stop token; or its constraint is complete. Under a constraint never "
             "inside: the text is whole, with and without the stop string.")
      .value("EOS", Finish::kEos, "One of the model's end-of-sequence tokens.")
      .value("BUDGET", Finish::kBudget,
             "The session's budget or its KV pages ran out; tokens and state are kept.")
      .value("CANCELLED", Finish::kCancelled, "The caller asked for it.")
      .value("ABANDONED", Finish::kAbandoned,
             "Others of the call were enough; the branch is pruned.")
      .value(
          "DEAD_END", Finish::kDeadEnd,
          "No token of the vocabulary can follow: its constraint and the bans of logit_bias (-inf) "
          "leave none, or to find out which came to a limit of work.")
      .value("STOP_INSIDE", Finish::kStopInside,
             "A stop string or stop token, of a branch under a constraint whose text may not end "
             "there, or not without the stop string, which Generation.text leaves out.");
}

void bind_tokens(nb::module_& module) {
  nb::class_<TokenLogprob>(module, "TokenLogprob", "A token with its log-probability.")
      .def_ro("id", &TokenLogprob::id, "The token.")
      .def_ro("logprob", &TokenLogprob::logprob, "Natural log, over the whole vocabulary.")
      .def("__repr__", [](const TokenLogprob& self) {
        return "TokenLogprob(id=" + std::to_string(self.id) + ", logprob=" + number(self.logprob) +
               ")";
      });
  nb::class_<ChosenToken>(
      module, "ChosenToken",
      "A generated token and the raw distribution that it was drawn from: before bias, penalties, "
      "temperature and filters.")
      .def_ro("id", &ChosenToken::id, "The token.")
      .def_ro("logprob", &ChosenToken::logprob, "Natural log, over the whole vocabulary.")
      .def_ro("top", &ChosenToken::top, "The likeliest top_logprobs tokens, likeliest first.")
      .def("__repr__", [](const ChosenToken& self) {
        return "ChosenToken(id=" + std::to_string(self.id) + ", logprob=" + number(self.logprob) +
               ", top=[" + std::to_string(self.top.size()) + "])";
      });
  nb::class_<OwnedTokenEvent>(module, "TokenEvent", "One generated token, as it happens.")
      .def_ro("branch", &OwnedTokenEvent::branch, "Branch.id.")
      .def_ro("index", &OwnedTokenEvent::index, "Of the branch among the call's branches.")
      .def_ro("token", &OwnedTokenEvent::token, "The token.")
      .def_prop_ro(
          "text", [](const OwnedTokenEvent& self) { return to_str(self.text); },
          "What this token added to the branch's text; may be empty.")
      .def("__repr__", [](const OwnedTokenEvent& self) {
        return nb::str("TokenEvent(branch={}, index={}, token={}, text={!r})")
            .format(self.branch, self.index, self.token, to_str(self.text));
      });
}

void bind_results(nb::module_& module) {
  nb::class_<Generation>(module, "Generation", "What one branch generated in one decode call.")
      .def_ro("ids", &Generation::ids, "All new tokens, the stop or end token included.")
      .def_prop_ro(
          "text", [](const Generation& self) { return to_str(self.text); },
          "Their text without special tokens and without the stop string.")
      .def_ro("finish", &Generation::finish, "Why it ended.")
      .def_ro("logprobs", &Generation::logprobs, "One an id, where top_logprobs >= 0.")
      .def("__repr__", [](const Generation& self) {
        return nb::str("<Generation: {} tokens, {}, {!r}>")
            .format(self.ids.size(), name_of(self.finish),
                    to_str(std::string_view(self.text).substr(0, 60)));
      });
  nb::class_<Score>(module, "Score",
                    "Log-probabilities of one continuation. Where budget, pages or cancellation "
                    "forbade computing them, tokens is empty and logprob is NaN.")
      .def_ro("logprob", &Score::logprob, "The sum over its tokens.")
      .def_ro("tokens", &Score::tokens, "Of each token.")
      .def_ro("greedy", &Score::greedy,
              "Each token was the likeliest one: greedy decoding would generate the continuation.")
      .def("__repr__", [](const Score& self) {
        return "Score(logprob=" + number(self.logprob) + ", tokens=[" +
               std::to_string(self.tokens.size()) +
               "], greedy=" + (self.greedy ? "True" : "False") + ")";
      });
}

nb::object logits_of(nb::handle object) {
  const auto& self = nb::cast<const Distribution&>(object);
  const std::span<const float> logits = self.logits();
  return nb::cast(
      nb::ndarray<nb::numpy, const float, nb::ndim<1>>(logits.data(), {logits.size()}, object));
}

void bind_distribution(nb::module_& module) {
  nb::class_<Distribution>(
      module, "Distribution",
      "The raw distribution of a branch's next token. False where budget, pages or cancellation "
      "forbade computing it.")
      .def("__bool__", &Distribution::valid)
      .def_prop_ro("logits", &logits_of,
                   "float32 [vocab], read-only: a view of the row that the branch's tokens share, "
                   "which lives as long as the array does.",
                   nb::sig("def logits(self) -> NDArray[numpy.float32]"))
      .def("top", &Distribution::top, nb::arg("n"),
           "The n likeliest tokens, likeliest first; equal ones by id.")
      .def("logprob", &Distribution::logprob, nb::arg("id"),
           "Natural log of a token's probability. Raises Error for an id outside the vocabulary.");
}

}  // namespace

void bind_types(nb::module_& module) {
  bind_finish(module);
  bind_tokens(module);
  bind_results(module);
  bind_distribution(module);
  nb::class_<std::stop_source>(module, "Cancel",
                               "Ends the calls that it is given to, from any thread: each takes "
                               "part in no further step, and ends with Finish.CANCELLED.")
      .def(nb::init<>())
      .def(
          "cancel", [](std::stop_source& self) { self.request_stop(); },
          "Ends the calls. Once is enough; there is no way back.")
      .def_prop_ro("cancelled", &std::stop_source::stop_requested, "Whether cancel was called.");
}

}  // namespace dendrite::python
