#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dendrite/session.h"

// What all strategies share: thoughts and what is told of them, results, and the callables that
// make a strategy one for the problem at hand.
//
// Every strategy is a plain struct with a free function
//     SearchResult run(Session& session, Branch root, const Strategy& strategy);
// beside it, which Session::run_tree finds. All of them have these members:
//     solved    whether a thought is a solution, which ends the search;
//     on_event  told of every thought, in an order that depends on no thread or batch;
//     cancel    looked at between rounds and before every step of the engine.
//
// A root under a constraint (Branch::constrain, or run_tree's) holds every text of the search to
// it, from the prompt to the end. What is then a thought's text is whole where it may end:
//     Steps end at a line end inside of the text, or with the text. A thought that no step follows
//     and whose text is whole is a leaf whatever its depth, not a dead end.
//     SelfRefinement holds each draft, ForkJoin the joined text; see there.
//     A judge that asks the model about a candidate does so on a fork that it frees (unconstrain):
//     score gives -infinity to a text that the constraint refuses.
namespace dendrite {

/// A thought's number in its search: 0 is the prompt, the others count in the order of proposal.
/// Unlike a BranchId it does not depend on what else the session did.
enum class NodeId : std::int64_t { kRoot = 0 };

/// A thought as the record of a search keeps it (its branch may be gone).
struct ThoughtRecord {
  NodeId node = NodeId::kRoot;
  NodeId parent = NodeId::kRoot;
  BranchId branch_id = BranchId::kNone;
  int depth = 0;            ///< 1 for the first step
  std::string text;         ///< of this step alone
  std::int64_t tokens = 0;  ///< of this step
  double logprob = 0;       ///< sum over those tokens that the model chose
  double value = 0;         ///< what judged it said; larger is better, NaN: could not be computed
  std::int64_t visits = 0;  ///< MCTS: values backed up through it
  bool kept = false;        ///< the search went on from it, or ended with it
  std::vector<NodeId> joined{};  ///< what its branch was joined from, `parent` first (ForkJoin)
};

/// One step of reasoning: a branch that ends with it.
struct Thought : ThoughtRecord {
  Branch branch;
};

/// What a search tells while it runs.
struct SearchEvent {
  enum class Kind : std::uint8_t {
    kProposed,  ///< it exists
    kJudged,    ///< `value` is known
    kVisited,   ///< MCTS: `value` (the mean) and `visits` changed
    kKept,      ///< the search goes on from it
    kPruned,    ///< the search is done with it: its pages are free but for what descendants hold
    kSolved,    ///< it is a solution
  } kind;
  const Thought* thought = nullptr;
};

/// "proposed", "judged", "visited", "kept", "pruned" or "solved".
const char* name_of(SearchEvent::Kind kind);

/// How often an answer was given (SelfConsistency).
struct Vote {
  std::string answer;
  int count = 0;
};

struct SearchResult {
  bool solved = false;
  Branch branch;  ///< the solution's; else the best that the strategy names, empty if there is none
  std::vector<ThoughtRecord> path;  ///< from the first step to that branch's last
  std::vector<ThoughtRecord> tree;  ///< all thoughts, in the order of proposal
  std::vector<Thought> others;      ///< finished as well, best first (beams, answers, drafts)
  std::vector<Vote> votes;          ///< most votes first (SelfConsistency)
  std::vector<Composition> joins;   ///< in the order in which they were made (ForkJoin)
  /// kStop: it ran to its end; kBudget, kCancelled: cut short; kDeadEnd: ForkJoin could not join
  /// under the root's constraint
  Finish finish = Finish::kRunning;
};

/// Children of a frontier: children[i] are steps from nodes[i].
struct Proposals {
  std::vector<std::vector<Branch>> children;
  Finish finish = Finish::kRunning;  ///< kBudget or kCancelled: not all could be computed
};

/// A thought as plain data, for evaluators in other threads.
struct Candidate {
  NodeId node = NodeId::kRoot;
  int depth = 0;
  std::string text;     ///< of the step
  std::string history;  ///< all text after the prompt, the step's included
  double logprob = 0;   ///< of the step
};

/// What a thought is worth. At most one of the two may be set.
struct Judgement {
  /// A value for each candidate, by the model (score: forks that are dropped) or by rules.
  std::function<std::vector<double>(Session&, std::span<Branch> candidates)> judge{};
  /// A value for one candidate without the model, for example by running a test.
  std::function<double(const Candidate&)> evaluate{};
  int evaluator_threads = 0;  ///< that call `evaluate`, several at once; 0: the search's own
};

/// Where steps come from and what they are worth: for the strategies that grow a tree of steps.
struct Steps {
  /// Children of all these nodes, in one batch where it can. What a node gets must not depend on
  /// the others. Default: `candidates` samples a node up to a newline, equal texts once; none from
  /// a node whose constrained text can only end.
  std::function<Proposals(Session&, std::span<Branch> nodes)> propose{};
  /// Whether a step may be kept at all (for example: it is legal). Default: yes.
  std::function<bool(const Branch& branch, const std::string& step)> accept{};
  /// Default: the mean log-prob of the step's tokens (MCTS: e to that power).
  Judgement judgement{};
  /// How likely a step is, >= 0: PUCT's prior before it is normalised over siblings, and what
  /// speculation goes by. Default: the model's probability of the step.
  std::function<double(const Thought&)> prior{};

  int candidates = 8;                  ///< of the default proposer
  double temperature = 1.0;            ///< of the default proposer
  std::int64_t max_step_tokens = 128;  ///< of the default proposer

  /// With evaluator threads: nodes are proposed from in so many calls, and candidates of one are
  /// evaluated while the next is computed.
  int propose_groups = 1;
  /// With evaluator threads: so many of the likeliest new steps are proposed from before their
  /// values are known, then used or pruned. The same tokens and the same result as without, for
  /// more tokens computed.
  int speculate = 0;
};

/// All continuations of each node up to `stop` whose probability, given the node, is at least
/// `min_prob` (> 0): a wide expansion over forked branches, one batch a token. Each child ends with
/// `stop`.
Proposals expand_until(Session& session, std::span<Branch> nodes, Token stop, double min_prob,
                       std::int64_t max_tokens, std::stop_token cancel = {});

}  // namespace dendrite
