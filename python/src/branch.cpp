#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "bindings.h"

namespace dendrite::python {
namespace {

/// While it lives a branch is on hold; used by `with`.
struct Hold {
  nb::object branch;
  void release() {
    auto& held = nb::cast<PyBranch&>(branch);
    if (held.is_live()) held.at->release();
  }
};

const Engine& engine_of(PyBranch& branch) {
  return branch.session->engine->live();
}

/// "<Branch 5: 34 tokens (8 prompt), stop, '…6*4=24'>"
nb::str describe(PyBranch& self) {
  if (!self.is_live()) return nb::str("<Branch: empty>");
  if (self.exclusive != 0) {
    return nb::str("<Branch {}: in a call>").format(id_of(self.at->id()));
  }
  const Branch& branch = *self.at;
  constexpr std::int64_t kShown = 16;  // tokens of its end
  const std::int64_t length = branch.length();
  const std::int64_t begin = std::max(branch.prompt_length(), length - kShown);
  nb::str text("");
  if (engine_of(self).info().has_tokenizer && begin < length) {
    const std::vector<Token> tokens = branch.tokens();
    text = to_str(
        engine_of(self).decode(std::span(tokens).subspan(static_cast<std::size_t>(begin)), true));
    if (begin > branch.prompt_length()) text = nb::str("…{}").format(text);
  }
  return nb::str("<Branch {}: {} tokens ({} prompt), {}, {!r}>")
      .format(id_of(branch.id()), length, branch.prompt_length(), name_of(branch.finish()), text);
}

nb::object fork(PyBranch& self, nb::handle count) {
  Branch& branch = self.read("fork");
  if (count.is_none()) return own(self.session, branch.fork());
  return own(self.session, branch.fork(to_small_int(count, "fork: count")));
}

nb::object copy(PyBranch& self, nb::handle) {
  return own(self.session, self.read("copy").fork());
}

void append(PyBranch& self, nb::handle what) {
  Branch& branch = self.change("append");
  branch.append(to_continuation(branch, what, "append: what"));
}

void constrain(PyBranch& self, nb::handle constraint) {
  const std::optional<Constraint> wanted = to_optional_constraint(constraint);
  if (!wanted) {
    self.change("constrain").unconstrain();
    return;
  }
  check(engine_of(self), *wanted);
  self.change("constrain").constrain(*wanted);
}

bool constrain_from(PyBranch& self, nb::handle constraint, nb::handle begin) {
  const Constraint wanted = to_constraint(constraint);
  const std::int64_t first = to_int(begin, "constrain_from: begin");
  check(engine_of(self), wanted);
  return self.change("constrain_from").constrain_from(wanted, first);
}

std::vector<Score> score(nb::object object, nb::handle continuations, nb::handle top_logprobs) {
  const ScoreParams params{.top_logprobs = to_small_int(top_logprobs, "score: top_logprobs")};
  auto& self = nb::cast<PyBranch&>(object);
  const Marked marked(*self.session, object, "score");
  const auto tokens = to_continuations(marked.handles(), continuations);
  const SessionState::InCall in_call(*self.session);
  const nb::gil_scoped_release released;
  return std::move(
      self.session->session->score_tokens_of_each(marked.handles(), tokens, params).front());
}

std::optional<std::size_t> select(nb::object object, nb::handle of) {
  const std::vector<std::string> options = to_texts(of, "select: options");
  auto& self = nb::cast<PyBranch&>(object);
  const Marked marked(*self.session, object, "select");
  const SessionState::InCall in_call(*self.session);
  const nb::gil_scoped_release released;
  return marked.handles().front()->select(options);
}

nb::list expand(nb::object object, nb::handle top, nb::handle min_prob) {
  const ExpandParams params{.top = to_small_int(top, "expand: top"),
                            .min_prob = to_number(min_prob, "expand: min_prob")};
  auto& self = nb::cast<PyBranch&>(object);
  const Marked marked(*self.session, object, "expand");
  const SessionState::InCall in_call(*self.session);
  std::vector<std::vector<Branch>> children;
  {
    const nb::gil_scoped_release released;
    children = self.session->session->expand(marked.handles(), params);
  }
  return own(self.session, std::move(children.front()));
}

Distribution distribution(nb::object object) {
  auto& self = nb::cast<PyBranch&>(object);
  const Marked marked(*self.session, object, "distribution");
  const SessionState::InCall in_call(*self.session);
  const nb::gil_scoped_release released;
  return marked.handles().front()->distribution();
}

Hold hold(nb::object object, nb::handle given) {
  const double seconds = to_number(given, "hold: seconds");
  auto& self = nb::cast<PyBranch&>(object);
  // (The longest that the library can count to is more than anybody waits.)
  const double limit = std::min(seconds * 1000, 1e15);
  self.read("hold").hold(std::chrono::milliseconds(std::llround(std::ceil(limit))));
  return {std::move(object)};
}

nb::object refuse_pickle(nb::handle, nb::args) {
  throw nb::type_error(
      "a Branch cannot be pickled: it is a place in its engine's memory. "
      "session.snapshot([branch]) "
      "makes bytes that Engine.restore takes back, and dendrite.ray.Pool moves branches so");
}

void bind_reading(nb::class_<PyBranch>& branch) {
  branch
      .def_prop_ro(
          "id", [](PyBranch& self) { return id_of(self.read("id").id()); },
          "Names the branch for as long as its session lives; never reused. 0 for an empty handle.")
      .def_prop_ro(
          "parent", [](PyBranch& self) { return parent_of(self.read("parent").parent()); },
          "The id of the branch that it was forked from; None for a prefilled one.",
          nb::sig("def parent(self) -> int | None"))
      .def_prop_ro(
          "text", [](PyBranch& self) { return to_str(self.read("text").text()); },
          "The text of all tokens after the prompt, without special tokens.")
      .def_prop_ro(
          "tokens", [](PyBranch& self) { return to_array(self.read("tokens").tokens()); },
          "int32 [length], prompt included: a new array each time.",
          nb::sig("def tokens(self) -> NDArray[numpy.int32]"))
      .def_prop_ro(
          "last_token", [](PyBranch& self) { return self.read("last_token").last_token(); },
          "The last of its tokens.")
      .def_prop_ro(
          "prompt_length",
          [](PyBranch& self) { return self.read("prompt_length").prompt_length(); },
          "Tokens that prefill was given.")
      .def_prop_ro(
          "logprob", [](PyBranch& self) { return self.read("logprob").logprob(); },
          "The sum over the tokens that decode, expand or select chose; at() starts it afresh.")
      .def_prop_ro(
          "finish", [](PyBranch& self) { return self.read("finish").finish(); },
          "How its last decode call ended.")
      .def_prop_ro(
          "constraint",
          [](PyBranch& self) { return to_object(self.read("constraint").constraint()); },
          "What it is under now, see constrain; None: free.",
          nb::sig("def constraint(self) -> Constraint | None"))
      .def_prop_ro(
          "constraint_begin",
          [](PyBranch& self) { return self.read("constraint_begin").constraint_begin(); },
          "The first token that its constraint holds for; length: none so far. None: it is free.")
      .def_prop_ro(
          "is_accepted", [](PyBranch& self) { return self.read("is_accepted").is_accepted(); },
          "Its constrained text is whole: it may end here. True where there is no constraint.")
      .def(
          "allowed_tokens",
          [](PyBranch& self) { return self.read("allowed_tokens").allowed_tokens(); },
          "The token ids that may come next under its constraint, in ascending order; end-of-"
          "sequence tokens are among them where the text may end. Empty: it can only end, or is a "
          "dead end. None: there is no constraint. O(vocabulary).")
      .def_prop_ro(
          "stream", [](PyBranch& self) { return self.read("stream").stream(); },
          "Its random stream; pass it to prefill to replay the branch.")
      .def_prop_rw(
          "priority", [](PyBranch& self) { return self.read("priority").priority(); },
          [](PyBranch& self, nb::handle priority) {
            self.read("priority").set_priority(to_small_int(priority, "priority"));
          },
          nb::for_setter(nb::arg("priority").none()),
          nb::for_setter(nb::sig("def priority(self, priority: int, /) -> None")),
          "Higher ones go first where not all fit into a step, and give way last where pages run "
          "out. Forks inherit it; 0 to begin with.")
      .def(
          "stats", [](PyBranch& self) { return self.read("stats").stats(); },
          "Counters since the branch was made. O(its pages and segments).")
      .def_prop_ro(
          "composition", [](PyBranch& self) { return self.read("composition").composition(); },
          "What it is composed of: all of its path. O(its pieces and segments).")
      .def(
          "__len__",
          [](PyBranch& self) { return static_cast<std::size_t>(self.read("len").length()); },
          "Tokens, prompt included.")
      .def("__bool__", &PyBranch::is_live, "Whether the handle is live: neither pruned nor closed.")
      .def("__repr__", &describe);
}

void bind_forking(nb::class_<PyBranch>& branch) {
  branch
      .def("fork", &fork, nb::arg("count") = nb::none(),
           "Another branch at the same point, with a random stream of its own; with a count, a "
           "list of so many. O(1) whatever the length; no page is touched until one of them "
           "writes.",
           nb::sig("@overload\ndef fork(self, count: None = None) -> Branch: ...\n"
                   "@overload\ndef fork(self, count: int) -> list[Branch]: ...\n"
                   "@overload\ndef fork(self, count: int | None) -> Branch | list[Branch]"))
      .def(
          "at",
          [](PyBranch& self, nb::handle length, nb::handle stream) {
            return own(self.session,
                       self.read("at").at(to_int(length, "at: length"),
                                          {.stream = to_optional_unsigned(stream, "at: stream")}));
          },
          nb::arg("length").none(), nb::kw_only(), nb::arg("stream") = nb::none(),
          "A fork from the past: the first `length` tokens, in constant time. `stream`: its random "
          "stream; one that is given shifts no other fork's. Raises Error unless 0 < length <= "
          "len(self).",
          nb::sig("def at(self, length: int, *, stream: int | None = None) -> Branch"))
      .def(
          "node",
          [](nb::handle self) { return nb::module_::import_("dendrite._node").attr("Node")(self); },
          "An immutable point of the tree, here: see Node.", nb::sig("def node(self) -> Node"))
      .def(
          "__copy__", [](PyBranch& self) { return copy(self, {}); }, "As fork().",
          nb::sig("def __copy__(self) -> Branch"))
      .def("__deepcopy__", &copy, nb::arg("memo"), "As fork().",
           nb::sig("def __deepcopy__(self, memo: object) -> Branch"))
      .def("__reduce_ex__", &refuse_pickle, "Raises TypeError: it tells what to do instead.",
           nb::sig("def __reduce_ex__(self, protocol: object) -> Any"));
}

void bind_changing(nb::class_<PyBranch>& branch) {
  branch
      .def(
          "append",
          [](nb::object self, nb::handle what) {
            append(nb::cast<PyBranch&>(self), what);
            return self;
          },
          nb::arg("what").none(),
          "Adds a text, encoded by encode(), or ids; they are computed with the next step that "
          "needs them. Returns the branch. Raises Error, and adds none, where its constraint "
          "refuses "
          "one.",
          nb::sig("def append(self, what: Prompt) -> Self"))
      .def(
          "encode",
          [](PyBranch& self, nb::handle text) {
            return to_array(self.read("encode").encode(to_text(text, "encode: text")));
          },
          nb::arg("text").none(),
          "The tokens of a text as what follows the branch, see Engine.encode_after: int32 "
          "[tokens].",
          nb::sig("def encode(self, text: str) -> NDArray[numpy.int32]"))
      .def(
          "constrain",
          [](nb::object self, nb::handle constraint) {
            constrain(nb::cast<PyBranch&>(self), constraint);
            return self;
          },
          nb::arg("constraint").none(),
          "From here on its text must be what the constraint says: decode, expand, select and "
          "strategies take no token that could not be part of it, append refuses others, and score "
          "gives them -inf. Where the text can only end, decode ends with Finish.STOP before "
          "anything is drawn. Forks inherit it with all that has been matched; at() restores what "
          "held in the past. Another one replaces it, None frees the branch. Returns the branch. "
          "Raises ConstraintError, see Engine.check.",
          nb::sig("def constrain(self, constraint: Constraint | None) -> Self"))
      .def("constrain_from", &constrain_from, nb::arg("constraint").none(), nb::arg("begin").none(),
           "The same from token `begin` on: what the branch has from there is matched first, for "
           "example where it was composed of what had been under the constraint. False, and "
           "nothing changes, where the constraint refuses one of those tokens. Raises Error unless "
           "0 <= begin <= length.",
           nb::sig("def constrain_from(self, constraint: Constraint, begin: int) -> bool"))
      .def("hold", &hold, nb::arg("seconds").none(),
           "Keeps the branch's K and V from being evicted while it waits for a tool or a person, "
           "for so many `seconds` at most; leaving the `with` releases it.",
           nb::sig("def hold(self, seconds: float) -> AbstractContextManager[None]"))
      .def(
          "prune", [](PyBranch& self) { self.change("prune").prune(); },
          "Frees what only this branch holds; the handle is empty afterwards.")
      .def(
          "__enter__", [](nb::object self) { return self; }, "Pruned on leaving.",
          nb::sig("def __enter__(self) -> Self"))
      .def(
          "__exit__",
          [](PyBranch& self, nb::args) {
            if (self.is_live()) self.change("prune").prune();
          },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

void bind_computing(nb::class_<PyBranch>& branch) {
  branch
      .def("score", &score, nb::arg("continuations").none(), nb::kw_only(),
           nb::arg("top_logprobs").none() = 0,
           "Log-probs of continuations, in one pass over their common prefixes; the branch is "
           "unchanged. Texts are encoded by encode(). From the first token on that its "
           "constraint refuses, and in sum, they are -inf; all others are the model's own. "
           "top_logprobs: so many of the likeliest tokens are told in each place (Score.top).",
           nb::sig("def score(self, continuations: Sequence[Prompt], *, top_logprobs: int = 0) -> "
                   "list[Score]"))
      .def("select", &select, nb::arg("options").none(),
           "Scores the options, appends the likeliest (of equal ones the first) and returns its "
           "index. None, and nothing appended, where budget or pages forbid it, or its constraint "
           "refuses all.",
           nb::sig("def select(self, options: Sequence[str]) -> int | None"))
      .def("expand", &expand, nb::kw_only(), nb::arg("top").none() = 0,
           nb::arg("min_prob").none() = 0.0,
           "Children for the likeliest next tokens: at most `top` (0: no limit), each of at least "
           "`min_prob`.",
           nb::sig("def expand(self, *, top: int = 0, min_prob: float = 0.0) -> list[Branch]"))
      .def("distribution", &distribution,
           "The raw distribution of the next token; computes it where it is not known yet.");
}

}  // namespace

void bind_branch(nb::module_& module) {
  nb::class_<Hold>(module, "Hold", "While a branch is on hold, see Branch.hold.")
      .def("__enter__", [](Hold&) {})
      .def(
          "__exit__", [](Hold& self, nb::args) { self.release(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
  nb::class_<PyBranch> branch(
      module, "Branch", nb::pooled(1024), nb::is_weak_referenceable(),
      "One path of the token tree that can decode: its KV, random stream, stop and text state, by "
      "one handle. Dropping it frees the pages that only it held; `with` prunes it. While it is in "
      "a call, it may be forked and read; what would change it raises BranchBusy. copy and "
      "deepcopy "
      "are fork().");
  bind_reading(branch);
  bind_forking(branch);
  bind_changing(branch);
  bind_computing(branch);
}

}  // namespace dendrite::python
