#include "draft/draft_budget.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace dendrite {
namespace {

/// What is expected to give less is within what is not known.
constexpr double kLeastGain = 1.02;
/// Slower than so many times what a plain turn takes: something else held it up.
constexpr double kOutlier = 3;

}  // namespace

std::vector<DraftBudget::Pick> DraftBudget::choose(std::span<const Claim> claims,
                                                   const Step& step) const {
  struct Candidate {
    double value = 0;
    Pick pick;
  };
  const std::optional<double> alone_ms = step.step_ms(step.rows);
  if (!alone_ms || !plain_.is_fresh(step.lanes)) return {};
  // (Where steps begin early, one without drafts takes less than one that does not.)
  const double plain_ms = std::min(*alone_ms, *plain_.ms(step.lanes));
  const Known* known = known_.find(step.lanes);
  if (known != nullptr && !known->purse.has_credit(plain_ms)) return {};
  const double beside_ms = known == nullptr ? 0 : known->beside_ms;
  std::vector<Candidate> candidates;
  for (std::size_t claim = 0; claim < claims.size(); ++claim) {
    for (std::size_t node = 0; node < claims[claim].nodes.size(); ++node) {
      candidates.push_back({claims[claim].value * std::exp(claims[claim].nodes[node].score),
                            {claim, static_cast<std::int32_t>(node)}});
    }
  }
  std::ranges::stable_sort(candidates, std::greater{}, &Candidate::value);
  double best = kLeastGain * step.value / plain_ms;
  std::size_t count = 0;
  double value = step.value;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    value += candidates[i].value;
    const std::optional<double> ms = step.step_ms(step.rows + static_cast<std::int64_t>(i) + 1);
    if (!ms) break;
    if (value / (*ms + beside_ms) <= best) continue;
    best = value / (*ms + beside_ms);
    count = i + 1;
  }
  std::vector<Pick> picks;
  for (std::size_t i = 0; i < count; ++i) picks.push_back(candidates[i].pick);
  return picks;
}

void DraftBudget::record_plain(std::int64_t lanes, double ms) {
  plain_.record(lanes, ms);
  if (Known* known = known_.find(lanes)) known->purse.save(ms, *plain_.ms(lanes));
}

void DraftBudget::record(std::int64_t lanes, double got, double ms, double step_ms) {
  plain_.pass();
  const std::optional<double> plain_ms = plain_.ms(lanes);
  if (!plain_ms) return;
  const bool is_new = known_.find(lanes) == nullptr;
  Known& known = known_.at(lanes, {});
  if (is_new) known.purse = {};  // what others have gained is not for these to lose
  const double told_ms = std::min(ms, kOutlier * std::max(*plain_ms, step_ms));
  known.beside_ms += (std::max(0.0, told_ms - step_ms) - known.beside_ms) / 8;
  known.purse.pay(*plain_ms * got - told_ms, *plain_ms);
}

void keep_nodes(std::vector<DraftNode>& nodes, const std::vector<bool>& keep) {
  std::vector<DraftNode> kept;
  std::vector<std::int32_t> places(nodes.size(), -1);  // in `kept`, of each node
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!keep[i]) continue;
    DraftNode node = nodes[i];
    if (node.parent >= 0) node.parent = places[static_cast<std::size_t>(node.parent)];
    places[i] = static_cast<std::int32_t>(kept.size());
    kept.push_back(node);
  }
  nodes = std::move(kept);
}

}  // namespace dendrite
