// Speculation in a turn: who proposes, for which lanes at once, and who gets rows for it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "engine/calls/lane_grammar.h"
#include "engine/loop/turn.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

/// A token of a branch that search believes in less counts less: by the difference of their values
/// (a search's priorities are values times a thousand), but never nothing.
double value_of(int priority, int highest) {
  constexpr double kOne = 1000;
  constexpr double kLeast = 0.05;
  return std::max(kLeast, std::exp((static_cast<double>(priority) - highest) / kOne));
}

/// The other's nodes, where they are not there yet; a node's chance is the larger one.
void merge(std::vector<DraftNode>& nodes, std::span<const DraftNode> others) {
  std::vector<std::int32_t> places;  // in `nodes`, of each of the others
  for (DraftNode node : others) {
    if (node.parent >= 0) node.parent = places[static_cast<std::size_t>(node.parent)];
    const auto found = std::ranges::find_if(nodes, [&](const DraftNode& known) {
      return known.parent == node.parent && known.token == node.token;
    });
    places.push_back(static_cast<std::int32_t>(found - nodes.begin()));
    if (found == nodes.end()) {
      nodes.push_back(node);
    } else {
      found->score = std::max(found->score, node.score);
    }
  }
}

/// Whether both tips end after the same text, as forks do that have drawn the same token since.
bool are_alike(const Segment& a, const Segment& b) {
  return &a == &b ||
         (a.parent == b.parent && a.begin == b.begin && std::ranges::equal(a.tokens(), b.tokens()));
}

/// Lanes of one call that stand after the same text have one draft: each of its rows is computed
/// once, and each lane goes its own way through it. (Under constraints each has its own masks.)
void share_drafts(const KvTree& tree, std::span<const DraftWish> wishes)
    DENDRITE_REQUIRES(kTreeLock) {
  std::vector<LaneDraft*> owners;
  for (const DraftWish& wish : wishes) {
    LaneDraft& draft = *wish.draft;
    if (draft.draft.nodes.empty() || draft.lane->matcher.valid()) continue;
    const Segment& segment = *tree.segment(draft.lane->branch->tip);
    const auto owner =
        std::ranges::find_if(owners, [&](const LaneDraft* other) DENDRITE_REQUIRES(kTreeLock) {
          return other->params == draft.params &&
                 are_alike(*tree.segment(other->lane->branch->tip), segment);
        });
    if (owner == owners.end()) {
      owners.push_back(&draft);
      continue;
    }
    draft.shared_with = *owner;
    merge((*owner)->draft.nodes, draft.draft.nodes);
  }
  for (const DraftWish& wish : wishes) {
    if (wish.draft->shared_with != nullptr) {
      wish.draft->draft.nodes = wish.draft->shared_with->draft.nodes;
    }
  }
}

}  // namespace

void EngineTurn::draft() {
  double slack = std::numeric_limits<double>::infinity();  // of calls that want no drafts
  for (Call* call : calls_) {
    if (call->has_ended()) continue;
    const std::size_t before = draft_wishes_.size();
    call->want_drafts(draft_wishes_);
    if (draft_wishes_.size() == before) slack = std::min(slack, call->slack());
  }
  if (draft_wishes_.empty()) return;
  const double begin_ms = now_ms();
  propose(slack);
  propose_ms_ = now_ms() - begin_ms;
  std::vector<LaneDraft*> drafts;
  for (const DraftWish& wish : draft_wishes_) drafts.push_back(wish.draft);
  follow_grammars(engine_, drafts);
  {
    const TreeLock lock(engine_.tree_mutex);
    share_drafts(*engine_.tree, draft_wishes_);
  }
  // Where the device has begun a step there is no room in it for drafts; the next one has to wait.
  const bool has_begun = engine_.stepper->has_begun();
  const bool any = share_rows_among_drafts();
  if ((has_begun && any) || std::ranges::any_of(drafts, &LaneDraft::is_wanted)) {
    for (Wish& wish : wishes_) wish.request.next = nullptr;
  }
  if (has_begun || !any) {
    for (LaneDraft* draft : drafts) draft->picked.assign(draft->draft.nodes.size(), false);
  }
  std::size_t most = wishes_.size();
  for (const LaneDraft* draft : drafts) most += draft->picked.size();
  wishes_.reserve(most);
  for (Call* call : calls_) call->ask_for_drafts(wishes_);
  draft_ms_ = now_ms() - begin_ms;
}

/// A provider is asked once, for the lanes of all calls.
void EngineTurn::propose(double slack) {
  std::ranges::stable_sort(draft_wishes_, std::less{}, &DraftWish::provider);
  for (auto first = draft_wishes_.begin(); first != draft_wishes_.end();) {
    DraftProvider* const provider = first->provider;
    std::vector<LaneDraft*> drafts;
    for (; first != draft_wishes_.end() && first->provider == provider; ++first) {
      drafts.push_back(first->draft);
    }
    provider->propose(drafts, slack);
    providers_.push_back(provider);
  }
}

bool EngineTurn::share_rows_among_drafts() {
  const TreeLock lock(engine_.tree_mutex);
  int highest = std::numeric_limits<int>::min();
  for (const Wish& wish : wishes_) highest = std::max(highest, wish.turn.priority);
  DraftBudget::Step step;
  step.step_ms = [times = engine_.stepper->times.get()](std::int64_t rows) {
    return times->usual(rows);
  };
  for (const Wish& wish : wishes_) {
    if (wish.request.optional) continue;
    step.rows += missing_rows(*engine_.tree, wish.request);
    if (wish.lane == nullptr) continue;
    ++step.lanes;
    step.value += value_of(wish.turn.priority, highest);
  }
  std::vector<LaneDraft*> owners;
  std::vector<DraftBudget::Claim> claims;
  bool any = false;
  for (const DraftWish& wish : draft_wishes_) {
    LaneDraft& draft = *wish.draft;
    const bool is_free = std::isinf(draft.params->slack);
    draft.picked.assign(draft.draft.nodes.size(), is_free);
    any = any || (is_free && !draft.draft.nodes.empty());
    const double value = value_of(draft.lane->turn.priority, highest);
    if (draft.shared_with == nullptr) {
      owners.push_back(&draft);
      claims.push_back({is_free ? std::span<const DraftNode>() : draft.draft.nodes, value});
    } else {
      const auto owner = std::ranges::find(owners, draft.shared_with);
      claims[static_cast<std::size_t>(owner - owners.begin())].value += value;
    }
  }
  step.rows = std::min(step.rows, engine_.step_rows);
  if (step.rows == 0 || step.lanes == 0) return any;
  for (const DraftBudget::Pick& pick : memory_.budget.choose(claims, step)) {
    owners[pick.claim]->picked[static_cast<std::size_t>(pick.node)] = true;
    any = true;
  }
  return any;
}

/// Turns that compute prompts, too, are none to learn from. The time of whoever proposed is for
/// that one to judge.
void EngineTurn::learn_of_drafts(std::int64_t rows, double ms) {
  std::int64_t lanes = 0;
  for (const Wish& wish : wishes_) {
    if (wish.request.optional) continue;
    if (wish.lane == nullptr) return;
    ++lanes;
  }
  if (lanes == 0 || short_rows_ + long_rows_ > 2 * lanes) return;
  if (!draft_wishes_.empty()) ms -= propose_ms_;
  if (!any_drafted_) return memory_.budget.record_plain(lanes, ms);
  const std::int64_t accepted = engine_.counts.speculation.tokens_accepted() - accepted_;
  const double got = static_cast<double>(lanes + accepted) / static_cast<double>(lanes);
  memory_.budget.record(lanes, got, ms, engine_.stepper->times->usual(rows).value_or(ms));
}

}  // namespace dendrite
