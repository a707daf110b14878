// Runs C++'s strategies from the dataclasses of dendrite.search, which have the same fields.
#include "search.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fstream>

#include "params.h"

namespace dendrite::python {
namespace {

/// Reads the fields of a dataclass. Throws TypeError naming the field.
class Fields {
 public:
  Fields(nb::object from, const SearchContext& context)
      : from_(std::move(from)),
        name_(nb::cast<std::string>(nb::str(from_.type().attr("__name__")))),
        context_(context) {}

  template <typename T>
  Fields& read(const char* field, T& to) {
    const nb::object value = from_.attr(field);
    const std::string what = name_ + "." + field;
    convert(value, to, what.c_str());
    return *this;
  }
  /// A field that is a dataclass itself, of dendrite.search.
  Fields part(const char* field, const char* type) const {
    const nb::object value = from_.attr(field);
    if (!nb::isinstance(value, context_.classes.attr(type))) {
      fail_type(name_ + "." + field, value, std::string("a ") + type);
    }
    return {value, context_};
  }
  Callable callable(const char* field) const {
    const nb::object value = from_.attr(field);
    if (!value.is_none() && !PyCallable_Check(value.ptr())) {
      fail_type(name_ + "." + field, value, "a callable or None");
    }
    return Callable(value);
  }
  const nb::object& object() const { return from_; }
  const SearchContext& context() const { return context_; }

 private:
  static void convert(nb::handle value, int& to, const char* what) {
    to = to_small_int(value, what);
  }
  static void convert(nb::handle value, std::int64_t& to, const char* what) {
    to = to_int(value, what);
  }
  static void convert(nb::handle value, double& to, const char* what) {
    to = to_number(value, what);
  }
  static void convert(nb::handle value, float& to, const char* what) {
    to = static_cast<float>(to_number(value, what));
  }
  static void convert(nb::handle value, bool& to, const char* what) { to = to_bool(value, what); }
  static void convert(nb::handle value, std::string& to, const char* what) {
    to = to_text(value, what);
  }
  static void convert(nb::handle value, std::vector<std::string>& to, const char* what) {
    to = to_texts(value, what);
  }
  static void convert(nb::handle value, std::vector<Token>& to, const char* what) {
    to = to_tokens(value, what);
  }
  static void convert(nb::handle value, Mcts::Rule& to, const char* what) {
    if (!nb::try_cast(value, to)) fail_type(what, value, "a Rule");
  }
  static void convert(nb::handle value, std::optional<Constraint>& to, const char*) {
    to = to_optional_constraint(value);
  }
  static void convert(nb::handle value, DecodeParams& to, const char* what) {
    if (!nb::hasattr(value, "_native")) fail_type(what, value, "a DecodeParams");
    const nb::object native = value.attr("_native");
    if (!nb::isinstance<NativeParams>(native)) fail_type(what, value, "a DecodeParams");
    to = nb::cast<NativeParams&>(native).params;
  }
  static void convert(nb::handle value, std::optional<DecodeParams>& to, const char* what) {
    to.reset();
    if (!value.is_none()) convert(value, to.emplace(), what);
  }

  nb::object from_;
  std::string name_;
  const SearchContext& context_;
};

void read(const Fields& from, Judgement& judgement) {
  // (What runs `evaluate` elsewhere, an executor or an event loop, is Python's.)
  const nb::object evaluate = from.object().attr("_evaluator")(from.context().tasks);
  judgement.judge = to_judge(from.context(), from.callable("judge"));
  judgement.evaluate = to_evaluator(from.context(), Callable(nb::object(evaluate[0])));
  judgement.evaluator_threads =
      to_small_int(nb::object(evaluate[1]), "Judgement.evaluator_threads");
}

void read(Fields from, Steps& steps) {
  const SearchContext& context = from.context();
  steps.propose = to_proposer(context, from.callable("propose"));
  steps.accept = to_test(context, from.callable("accept"));
  steps.prior = to_prior(context, from.callable("prior"));
  read(from.part("judgement", "Judgement"), steps.judgement);
  from.read("candidates", steps.candidates)
      .read("temperature", steps.temperature)
      .read("max_step_tokens", steps.max_step_tokens)
      .read("propose_groups", steps.propose_groups)
      .read("speculate", steps.speculate);
}

void read(Fields from, TreeOfThoughts& s) {
  read(from.part("steps", "Steps"), s.steps);
  from.read("depth", s.depth).read("width", s.width);
}

void read(Fields from, DepthFirst& s) {
  read(from.part("steps", "Steps"), s.steps);
  from.read("depth", s.depth)
      .read("width", s.width)
      .read("threshold", s.threshold)
      .read("max_nodes", s.max_nodes);
}

void read(Fields from, BestFirst& s) {
  read(from.part("steps", "Steps"), s.steps);
  from.read("depth", s.depth)
      .read("batch", s.batch)
      .read("max_expansions", s.max_expansions)
      .read("max_frontier", s.max_frontier);
}

void read(Fields from, BeamSearch& s) {
  from.read("width", s.width)
      .read("max_tokens", s.max_tokens)
      .read("stop_tokens", s.stop_tokens)
      .read("stop", s.stop)
      .read("constraint", s.constraint)
      .read("length_penalty", s.length_penalty)
      .read("groups", s.groups)
      .read("diversity", s.diversity);
}

void read(Fields from, BestOfN& s) {
  read(from.part("judgement", "Judgement"), s.judgement);
  from.read("n", s.n).read("sampling", s.sampling).read("first_success", s.first_success);
}

void read(Fields from, SelfConsistency& s) {
  s.answer = to_answer(from.context(), from.callable("answer"));
  from.read("n", s.n).read("sampling", s.sampling).read("confidence", s.confidence);
}

void read(Fields from, Mcts& s) {
  read(from.part("steps", "Steps"), s.steps);
  from.part("budget", "Budget")
      .read("tokens", s.budget.tokens)
      .read("milliseconds", s.budget.milliseconds);
  from.read("rule", s.rule)
      .read("exploration", s.exploration)
      .read("iterations", s.iterations)
      .read("batch", s.batch)
      .read("depth", s.depth)
      .read("loss", s.loss)
      .read("rollouts", s.rollouts)
      .read("rollout", s.rollout);
}

void read(Fields from, SelfRefinement& s) {
  s.criticise = to_critic(from.context(), from.callable("criticise"));
  from.read("rounds", s.rounds)
      .read("drafts", s.drafts)
      .read("draft", s.draft)
      .read("revision", s.revision);
}

void read(Fields from, ForkJoin& s) {
  s.begin = to_beginnings(from.context(), from.callable("begin"));
  from.read("open", s.open)
      .read("open_tokens", s.open_tokens)
      .read("close", s.close)
      .read("close_tokens", s.close_tokens)
      .read("children", s.children)
      .read("max_forks", s.max_forks)
      .read("nesting", s.nesting)
      .read("trunk", s.trunk)
      .read("child", s.child)
      .read("before_each", s.join.before_each)
      .read("after_all", s.join.after_all);
  static_cast<ComposeParams&>(s.join) =
      nb::cast<ComposeParams&>(nb::object(from.object().attr("_join")()));
}

/// Stops when either of two does.
class EitherStop {
 public:
  EitherStop(std::stop_token one, std::stop_token other)
      : one_(std::move(one), Forward{source_}), other_(std::move(other), Forward{source_}) {}
  std::stop_token token() const { return source_.get_token(); }

 private:
  struct Forward {
    std::stop_source& to;
    void operator()() const { to.request_stop(); }
  };
  std::stop_source source_;
  std::stop_callback<Forward> one_;
  std::stop_callback<Forward> other_;
};

/// A search on record, if somebody wants it: `wanted` is None or (path, prompt, seed).
class Recorder {
 public:
  Recorder(nb::handle wanted, const Engine& engine, StrategyInfo strategy) {
    if (wanted.is_none()) return;
    path_ = nb::cast<std::string>(wanted[0]);
    file_.open(path_, std::ios::binary);
    if (!file_) throw Error("trace: " + path_ + " cannot be written; expected a path for a file");
    trace_.emplace(file_,
                   trace_header(engine, std::move(strategy), nb::cast<std::uint64_t>(wanted[2]),
                                to_text(nb::object(wanted[1]), "prompt")));
  }
  void on(const SearchEvent& event) {
    if (trace_) trace_->on(event);
  }
  void finish(const SearchResult& result) {
    if (!trace_) return;
    trace_->finish(result);
    if (!file_) throw Error("trace: " + path_ + " could not be written to its end");
  }

 private:
  std::string path_;
  std::ofstream file_;
  std::optional<SearchTrace> trace_;
};

/// `session` is Python's; `root` is taken out of its handle; `tasks` runs coroutines, or None.
template <typename Strategy>
nb::object run_strategy(const nb::object& fields, const nb::object& session, nb::handle root,
                        nb::handle trace, nb::handle on_event, nb::handle cancel,
                        const nb::object& tasks) {
  const std::shared_ptr<SessionState> state = nb::cast<PySession&>(session.attr("_handle")).state;
  const SessionState::InCall in_call(*state);
  const SearchContext context{state, session, nb::module_::import_("dendrite.search"), tasks};
  const Fields from(fields, context);
  Strategy strategy;
  read(from, strategy);
  strategy.solved = to_test(context, from.callable("solved"));
  const EitherStop stop(to_stop_token(fields.attr("cancel")), to_stop_token(cancel));
  strategy.cancel = stop.token();
  Recorder recorder(trace, state->engine->live(), describe(strategy));
  strategy.on_event = [&recorder,
                       tell = to_listener(context, Callable(on_event))](const SearchEvent& event) {
    recorder.on(event);
    if (tell) tell(event);
  };
  Branch start = take_branch(*state, root, "run");
  SearchResult result;
  {
    const nb::gil_scoped_release released;
    result = run(*state->session, std::move(start), strategy);
    recorder.finish(result);
  }
  return to_result(context, std::move(result));
}

template <typename Strategy>
void bind_strategy(nb::module_& module, const char* name) {
  module.def(name, &run_strategy<Strategy>, nb::arg("strategy"), nb::arg("session"),
             nb::arg("root"), nb::arg("trace").none(), nb::arg("on_event").none(),
             nb::arg("cancel").none(), nb::arg("tasks").none());
}

/// (children, finish)
nb::tuple expand_nodes(const PySession& self, nb::handle nodes, nb::handle stop_token,
                       nb::handle least, nb::handle most, nb::handle cancel) {
  const Token stop = to_small_int(stop_token, "stop_token");
  const double min_prob = to_number(least, "min_prob");
  const std::int64_t max_tokens = to_int(most, "max_tokens");
  SessionState& state = *self.state;
  const SessionState::InCall in_call(state);
  const std::stop_token token = to_stop_token(cancel);
  // The call wants them side by side: for its time they are not in their handles.
  const Marked marked(state, nodes, "expand_until", true);
  std::vector<Branch> branches;
  for (Branch* handle : marked.handles()) branches.push_back(std::move(*handle));
  const auto give_back = [&] {
    for (std::size_t i = 0; i < branches.size(); ++i) {
      *marked.handles()[i] = std::move(branches[i]);
    }
  };
  Proposals proposals;
  try {
    const nb::gil_scoped_release released;
    proposals = expand_until(*state.session, branches, stop, min_prob, max_tokens, token);
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
  nb::list children;
  for (std::vector<Branch>& of_one : proposals.children) {
    children.append(own(self.state, std::move(of_one)));
  }
  return nb::make_tuple(children, proposals.finish);
}

}  // namespace

void bind_search(nb::module_& module) {
  nb::enum_<Mcts::Rule>(module, "Rule", "How MCTS chooses among children.")
      .value("UCT", Mcts::Rule::kUct, "Kocsis & Szepesvari 2006: uct_score.")
      .value("PUCT", Mcts::Rule::kPuct,
             "Silver et al. 2017: puct_score, with Steps.prior normalised over siblings.");
  bind_strategy<TreeOfThoughts>(module, "run_tree_of_thoughts");
  bind_strategy<DepthFirst>(module, "run_depth_first");
  bind_strategy<BestFirst>(module, "run_best_first");
  bind_strategy<BeamSearch>(module, "run_beam_search");
  bind_strategy<BestOfN>(module, "run_best_of_n");
  bind_strategy<SelfConsistency>(module, "run_self_consistency");
  bind_strategy<Mcts>(module, "run_mcts");
  bind_strategy<SelfRefinement>(module, "run_self_refinement");
  bind_strategy<ForkJoin>(module, "run_fork_join");
  module.def(
      "take",
      [](const PySession& self, nb::handle branch) {
        return own(self.state, take_branch(*self.state, branch, "run_tree"));
      },
      nb::arg("session"), nb::arg("branch"),
      nb::sig("def take(session: SessionHandle, branch: Branch) -> Branch"));
  module.def("expand_until", &expand_nodes, nb::arg("session"), nb::arg("nodes").none(),
             nb::arg("stop_token").none(), nb::arg("min_prob").none(), nb::arg("max_tokens").none(),
             nb::arg("cancel").none(),
             nb::sig("def expand_until(session: SessionHandle, nodes: object, stop_token: int, "
                     "min_prob: float, max_tokens: int, cancel: Cancel | None) -> "
                     "tuple[list[list[Branch]], Finish]"));
  module.def("uct_score", &uct_score, nb::arg("mean"), nb::arg("visits"), nb::arg("parent_visits"),
             nb::arg("exploration"),
             "mean + exploration * sqrt(ln(parent_visits) / visits); infinite for visits = 0.");
  module.def("puct_score", &puct_score, nb::arg("mean"), nb::arg("prior"), nb::arg("visits"),
             nb::arg("parent_visits"), nb::arg("exploration"),
             "mean + exploration * prior * sqrt(max(1, parent_visits)) / (1 + visits); the mean of "
             "what was never visited is 0.");
  module.def("majority_confidence", &majority_confidence, nb::arg("first"), nb::arg("second"),
             "The probability that an answer with `first` votes is more frequent than one with "
             "`second`: P(p > 1/2) for p ~ Beta(first + 1, second + 1).");
}

}  // namespace dendrite::python
