#include "engine/drafts/suffix_paced_provider.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "engine/branches/session_core.h"
#include "engine/calls/lane.h"
#include "engine/drafts/suffix_provider.h"

namespace dendrite {

void SuffixPacedProvider::propose(std::span<LaneDraft* const> drafts, double slack) {
  ask_suffixes(drafts, slack);
  std::vector<LaneDraft*> others;
  std::vector<Draft> said;  // of those
  const double expected = other_.expected();
  for (LaneDraft* draft : drafts) {
    double hoped = 0;
    for (const DraftNode& node : draft->draft.nodes) hoped += std::exp(node.score);
    if (hoped >= expected) continue;
    others.push_back(draft);
    said.push_back(std::exchange(draft->draft, {}));
  }
  if (others.empty()) return;
  // (With other lanes in it, the turn's time tells nothing of the drafter's.)
  const bool alone = others.size() == drafts.size();
  other_.propose(others, alone ? slack : std::min(slack, std::numeric_limits<double>::max()));
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (others[i]->draft.nodes.empty()) {
      others[i]->draft = std::move(said[i]);
    } else {
      others[i]->by = &other_;
    }
  }
}

/// Each session's once, for all of its lanes.
void SuffixPacedProvider::ask_suffixes(std::span<LaneDraft* const> drafts, double slack) {
  suffixes_.clear();
  for (LaneDraft* draft : drafts) {
    draft->by = &suffixes_of(*draft->lane->branch->session);
    if (std::ranges::find(suffixes_, draft->by) == suffixes_.end()) suffixes_.push_back(draft->by);
  }
  std::erase_if(suffixes_, [](DraftProvider* suffixes)
                               DENDRITE_REQUIRES(kComputeLock) { return suffixes->rests(); });
  for (DraftProvider* suffixes : suffixes_) {
    std::vector<LaneDraft*> of;
    std::ranges::copy_if(drafts, std::back_inserter(of),
                         [&](const LaneDraft* draft) { return draft->by == suffixes; });
    suffixes->propose(of, slack);
  }
}

void SuffixPacedProvider::end_turn(double ms) {
  for (DraftProvider* suffixes : suffixes_) suffixes->end_turn(ms);
  other_.end_turn(ms);
}

void SuffixPacedProvider::learn(const LaneDraft& draft, std::int32_t came) {
  draft.by->learn(draft, came);
}

void SuffixPacedProvider::conclude(const LaneDraft& draft) {
  draft.by->conclude(draft);
}

void SuffixPacedProvider::remember(BranchState& branch) {
  suffixes_of(*branch.session).remember(branch);
}

}  // namespace dendrite
