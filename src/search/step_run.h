#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "search/evaluators.h"
#include "search/search_log.h"

namespace dendrite {

/// What a strategy that grows a tree of steps hands over.
struct StepRules {
  std::string search;  // for errors
  const Steps& steps;
  const std::function<bool(const Branch&, const std::string&)>& solved;
  const std::function<void(const SearchEvent&)>& on_event;
  std::stop_token cancel;
  int depth;                                          // steps from the prompt at most
  double (*fallback)(const Thought&) = mean_logprob;  // judges where nothing else does
};

/// The strategies' common part: proposing from nodes and judging what comes, in batches, with
/// evaluators beside the engine and speculation past them.
///
/// Speculation opens the children of a step before its value is known, by the very call that would
/// open them later: they are kept aside and taken when the search comes to that step, or freed.
/// They are opened from a twin of the step's branch, with the same random stream, so both ways give
/// the same tokens. The twin takes the branch's place with the children, and goes with them: a step
/// that was opened for nothing does not know of it.
class StepRun {
 public:
  StepRun(Session& session, const StepRules& rules);

  /// The prompt as a thought.
  Thought start(Branch root);
  /// kStop, until something cuts the search short.
  Finish finish();
  void cut_short(Finish why) { finish_ = why; }
  SearchLog& log() { return log_; }

  /// Accepted steps from all of these nodes, in their order, not judged.
  std::vector<Thought> propose(std::span<Thought* const> nodes);
  /// Judges thoughts, and speculates past them while evaluators work.
  void judge(std::span<Thought* const> thoughts);
  /// Values of what is not in the record.
  std::vector<double> values_of(std::span<Thought* const> thoughts);
  /// propose and judge, with evaluations of one group beside the proposals of the next.
  std::vector<Thought> grow(std::span<Thought* const> nodes);

  bool is_solution(const Thought& thought) const;
  /// Where nothing was proposed from it: it is no dead end, for its constrained text is whole.
  bool may_be_leaf(const Thought& thought);
  /// How likely a step is.
  double prior(const Thought& thought) const;
  /// Steps opened from it by speculation are freed, and so is it.
  void prune(Thought& thought);

 private:
  Proposals call_proposer(std::vector<Branch>& nodes);
  Proposals sample_steps(std::span<Branch> nodes) const;
  void open_ahead(std::span<Thought* const> thoughts);
  void take_values(std::span<Thought* const> thoughts);

  Session& session_;
  StepRules rules_;
  Judge judge_;
  SearchLog log_;
  Finish finish_ = Finish::kStop;
  /// What speculation has opened.
  struct Opened {
    Branch twin;
    std::vector<Branch> children;
  };
  std::map<NodeId, Opened> ahead_;
};

/// Pointers to all of them.
std::vector<Thought*> pointers(std::span<Thought> thoughts);
/// Whether one of the thoughts goes on from it.
bool goes_on(const Thought& node, std::span<const Thought> thoughts);

}  // namespace dendrite
