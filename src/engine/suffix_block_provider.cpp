#include "engine/suffix_block_provider.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/session_core.h"
#include "engine/suffix_provider.h"

namespace dendrite {

void SuffixBlockProvider::propose(std::span<LaneDraft* const> drafts, double slack) {
  std::vector<LaneDraft*> others;
  std::vector<Draft> said;  // of those
  const double expected = blocks_.expected();
  for (LaneDraft* draft : drafts) {
    draft->by = &suffixes_of(*draft->lane->branch->session);
    draft->by->propose({&draft, 1}, slack);
    double hoped = 0;
    for (const DraftNode& node : draft->draft.nodes) hoped += std::exp(node.score);
    if (hoped >= expected) continue;
    others.push_back(draft);
    said.push_back(std::exchange(draft->draft, {}));
  }
  if (others.empty()) return;
  // (With other lanes in it, the turn's time tells nothing of the drafter's.)
  const bool alone = others.size() == drafts.size();
  blocks_.propose(others, alone ? slack : std::min(slack, std::numeric_limits<double>::max()));
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (others[i]->draft.nodes.empty()) {
      others[i]->draft = std::move(said[i]);
    } else {
      others[i]->by = &blocks_;
    }
  }
}

void SuffixBlockProvider::learn(const LaneDraft& draft, std::int32_t came) {
  draft.by->learn(draft, came);
}

void SuffixBlockProvider::conclude(const LaneDraft& draft) {
  draft.by->conclude(draft);
}

void SuffixBlockProvider::remember(BranchState& branch) {
  suffixes_of(*branch.session).remember(branch);
}

}  // namespace dendrite
