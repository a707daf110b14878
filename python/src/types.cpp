// Small values: reasons, tokens, what was generated, distributions.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
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
      .value("LENGTH", Finish::kLength, "max_tokens, or the end of the model's positions, reached.")
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

/// Records in it, in lists of lists too, as dictionaries.
nb::object plain_of(nb::handle value) {
  if (nb::hasattr(value, "asdict")) return value.attr("asdict")();
  if (!nb::isinstance<nb::list>(value)) return nb::borrow(value);
  nb::list plain;
  for (const nb::handle each : value) plain.append(plain_of(each));
  return plain;
}

/// asdict() and pickle of a value: all of `state_of` by these names, and back from a tuple of it.
template <typename T, typename StateOf, typename Make>
void bind_data(nb::class_<T>& type, std::vector<const char*> names, StateOf state_of, Make make) {
  type.def(
      "asdict",
      [names = std::move(names)](nb::handle self) {
        nb::dict all;
        for (const char* name : names) all[name] = plain_of(self.attr(name));
        return all;
      },
      "All fields, in their order; records in them as dictionaries, too.",
      nb::sig("def asdict(self) -> dict[str, Any]"));
  type.def("__getstate__", state_of, nb::sig("def __getstate__(self) -> tuple[Any, ...]"));
  type.def(
      "__setstate__",
      [make](nb::pointer_and_handle<T> self, const nb::tuple& state) {
        new (self.p) T(make(state));
        if constexpr (std::is_same_v<T, Generation>)
          self.h.attr("__dict__").attr("update")(state[4]);
      },
      nb::arg("state"), nb::sig("def __setstate__(self, state: tuple[Any, ...]) -> None"));
}

nb::bytes bytes_of(const std::string& text) {  // which need not be UTF-8
  return nb::bytes(text.data(), text.size());
}

std::string text_of(nb::handle bytes) {
  const auto held = nb::cast<nb::bytes>(bytes);
  return std::string(held.c_str(), held.size());
}

void bind_tokens(nb::module_& module) {
  nb::class_<TokenLogprob> logprob(module, "TokenLogprob", "A token with its log-probability.");
  logprob.def_ro("id", &TokenLogprob::id, "The token.")
      .def_ro("logprob", &TokenLogprob::logprob, "Natural log, over the whole vocabulary.")
      .def("__repr__", [](const TokenLogprob& self) {
        return "TokenLogprob(id=" + std::to_string(self.id) + ", logprob=" + number(self.logprob) +
               ")";
      });
  bind_data(
      logprob, {"id", "logprob"},
      [](const TokenLogprob& self) { return nb::make_tuple(self.id, self.logprob); },
      [](const nb::tuple& state) {
        return TokenLogprob{.id = nb::cast<Token>(state[0]), .logprob = nb::cast<float>(state[1])};
      });
  nb::class_<ChosenToken> chosen(
      module, "ChosenToken",
      "A generated token and the raw distribution that it was drawn from: before bias, penalties, "
      "temperature and filters.");
  chosen.def_ro("id", &ChosenToken::id, "The token.")
      .def_ro("logprob", &ChosenToken::logprob, "Natural log, over the whole vocabulary.")
      .def_ro("top", &ChosenToken::top, "The likeliest top_logprobs tokens, likeliest first.")
      .def("__repr__", [](const ChosenToken& self) {
        return "ChosenToken(id=" + std::to_string(self.id) + ", logprob=" + number(self.logprob) +
               ", top=[" + std::to_string(self.top.size()) + "])";
      });
  bind_data(
      chosen, {"id", "logprob", "top"},
      [](const ChosenToken& self) { return nb::make_tuple(self.id, self.logprob, self.top); },
      [](const nb::tuple& state) {
        return ChosenToken{.id = nb::cast<Token>(state[0]),
                           .logprob = nb::cast<float>(state[1]),
                           .top = nb::cast<std::vector<TokenLogprob>>(state[2])};
      });
  nb::class_<OwnedTokenEvent> event(module, "TokenEvent", "One generated token, as it happens.");
  event.def_ro("branch", &OwnedTokenEvent::branch, "Branch.id.")
      .def_ro("index", &OwnedTokenEvent::index, "Of the branch among the call's branches.")
      .def_ro("token", &OwnedTokenEvent::token, "The token.")
      .def_prop_ro(
          "text", [](const OwnedTokenEvent& self) { return to_str(self.text); },
          "What this token added to the branch's text; may be empty.")
      .def_ro("chosen", &OwnedTokenEvent::chosen,
              "Its log-probs, where they were asked for; else None.")
      .def("__repr__", [](const OwnedTokenEvent& self) {
        return nb::str("TokenEvent(branch={}, index={}, token={}, text={!r})")
            .format(self.branch, self.index, self.token, to_str(self.text));
      });
  bind_data(
      event, {"branch", "index", "token", "text", "chosen"},
      [](const OwnedTokenEvent& self) {
        return nb::make_tuple(self.branch, self.index, self.token, bytes_of(self.text),
                              self.chosen);
      },
      [](const nb::tuple& state) {
        const std::string text = text_of(state[3]);
        OwnedTokenEvent event(
            TokenEvent{.branch = static_cast<BranchId>(nb::cast<std::uint64_t>(state[0])),
                       .index = nb::cast<std::size_t>(state[1]),
                       .token = nb::cast<Token>(state[2]),
                       .text = text});
        event.chosen = nb::cast<std::optional<ChosenToken>>(state[4]);
        return event;
      });
}

/// What generate(echo=True) says of a generation's prompt; it stands in its dictionary.
nb::object prompt_of(nb::handle self, const char* key) {
  const nb::object kept = self.attr("__dict__").attr("get")(key);
  return kept.is_none() ? nb::object(nb::list()) : kept;
}

void bind_results(nb::module_& module) {
  nb::class_<Generation> generation(module, "Generation", nb::dynamic_attr(),
                                    "What one branch generated in one call.");
  generation.def_ro("ids", &Generation::ids, "All new tokens, the stop or end token included.")
      .def_prop_ro(
          "text", [](const Generation& self) { return to_str(self.text); },
          "Their text without special tokens and without the stop string.")
      .def_ro("finish", &Generation::finish, "Why it ended.")
      .def_prop_ro(
          "stop", [](const Generation& self) { return to_str(self.stop); },
          "The stop string that ended it, empty where none did.")
      .def_ro("stop_token", &Generation::stop_token,
              "The one of stop_tokens that ended it, the last of ids; else None.")
      .def_ro("logprobs", &Generation::logprobs,
              "One an id, where logprobs were asked for (or top_logprobs >= 0).")
      .def_prop_ro(
          "prompt_ids", [](nb::handle self) { return prompt_of(self, "_prompt_ids"); },
          "The prompt's tokens, where generate was asked for its echo.",
          nb::sig("def prompt_ids(self) -> list[int]"))
      .def_prop_ro(
          "prompt_logprobs", [](nb::handle self) { return prompt_of(self, "_prompt_logprobs"); },
          "And their natural logs of probability, of the first, before which nothing is, None.",
          nb::sig("def prompt_logprobs(self) -> list[float | None]"))
      .def_prop_ro(
          "prompt_top", [](nb::handle self) { return prompt_of(self, "_prompt_top"); },
          "With echo_top: the likeliest tokens in the place of each, of the first none.",
          nb::sig("def prompt_top(self) -> list[list[TokenLogprob]]"))
      .def("__repr__", [](const Generation& self) {
        return nb::str("<Generation: {} tokens, {}, {!r}>")
            .format(self.ids.size(), name_of(self.finish),
                    to_str(std::string_view(self.text).substr(0, 60)));
      });
  bind_data(
      generation,
      {"ids", "text", "finish", "stop", "stop_token", "logprobs", "prompt_ids", "prompt_logprobs",
       "prompt_top"},
      [](nb::handle self) {
        const auto& data = nb::cast<const Generation&>(self);
        return nb::make_tuple(data.ids, bytes_of(data.text), data.finish, data.logprobs,
                              self.attr("__dict__"), bytes_of(data.stop), data.stop_token);
      },
      [](const nb::tuple& state) {
        const bool names_stops = nb::len(state) > 5;  // else it was written before these were there
        return Generation{
            .ids = nb::cast<std::vector<Token>>(state[0]),
            .text = text_of(state[1]),
            .finish = nb::cast<Finish>(state[2]),
            .stop = names_stops ? text_of(state[5]) : "",
            .stop_token = names_stops ? nb::cast<std::optional<Token>>(state[6]) : std::nullopt,
            .logprobs = nb::cast<std::vector<ChosenToken>>(state[3])};
      });
  nb::class_<Score> score(module, "Score",
                          "Log-probabilities of one continuation. Where budget, pages or "
                          "cancellation forbade computing them, tokens is empty and logprob is "
                          "NaN.");
  score.def_ro("logprob", &Score::logprob, "The sum over its tokens.")
      .def_ro("tokens", &Score::tokens, "Of each token.")
      .def_ro("greedy", &Score::greedy,
              "Each token was the likeliest one: greedy decoding would generate the continuation.")
      .def_ro("top", &Score::top,
              "Of each token, with top_logprobs: the likeliest tokens in its place, likeliest "
              "first. One that was scored has the very same log-prob there.")
      .def("__repr__", [](const Score& self) {
        return "Score(logprob=" + number(self.logprob) + ", tokens=[" +
               std::to_string(self.tokens.size()) +
               "], greedy=" + (self.greedy ? "True" : "False") + ")";
      });
  bind_data(
      score, {"logprob", "tokens", "greedy", "top"},
      [](const Score& self) {
        return nb::make_tuple(self.logprob, self.tokens, self.greedy, self.top);
      },
      [](const nb::tuple& state) {
        Score made;
        made.logprob = nb::cast<double>(state[0]);
        made.tokens = nb::cast<std::vector<float>>(state[1]);
        made.greedy = nb::cast<bool>(state[2]);
        if (nb::len(state) > 3) {
          made.top = nb::cast<std::vector<std::vector<TokenLogprob>>>(state[3]);
        }
        return made;
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
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            const nb::object logits = logits_of(self);
            if (dtype.is_none() && (copy.is_none() || !to_bool(copy, "copy"))) return logits;
            // (A copy where one is asked for, or another type needs it.)
            return nb::object(logits.attr("astype")(
                dtype.is_none() ? nb::object(logits.attr("dtype")) : nb::borrow(dtype)));
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(), "The logits, for numpy.",
          nb::sig("def __array__(self, dtype: Any = None, copy: bool | None = None) -> "
                  "NDArray[Any]"))
      .def(
          "top",
          [](const Distribution& self, nb::handle n) {
            return self.top(to_small_int(n, "top: n"));
          },
          nb::arg("n").none(), "The n likeliest tokens, likeliest first; equal ones by id.",
          nb::sig("def top(self, n: int) -> list[TokenLogprob]"))
      .def(
          "logprob",
          [](const Distribution& self, nb::handle id) {
            return self.logprob(to_small_int(id, "logprob: id"));
          },
          nb::arg("id").none(),
          "Natural log of a token's probability. Raises Error for an id outside the vocabulary.",
          nb::sig("def logprob(self, id: int) -> float"));
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
