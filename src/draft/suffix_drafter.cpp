#include "draft/suffix_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dendrite {
namespace {

/// Of what was learnt, with each test.
constexpr double kForgotten = 0.02;
/// And without: a level whose drafts never came true is not tried, but will be again.
constexpr double kForgiven = 0.005;

}  // namespace

double SuffixDrafter::Trust::value() const {
  return std::clamp(came / expected, 0.01, 0.99);
}

void SuffixDrafter::Trust::drift(double share) {
  const Trust fresh;
  came += share * (fresh.came - came);
  expected += share * (fresh.expected - expected);
}

/// The continuations of some places, as a lattice: a token's chance is its share of all times that
/// something came there, times the trust.
class SuffixDrafter::Continuations final : public Lattice {
 public:
  Continuations(const History& history, std::vector<History::Place> places, double trust)
      : history_(history), log_trust_(std::log(trust)) {
    places_.push_back(std::move(places));
  }

  std::span<const DraftChild> children(std::int32_t key) override {
    next_.clear();
    for (const History::Place place : places_[static_cast<std::size_t>(key)]) {
      history_.next_of(place, next_);
    }
    std::ranges::stable_sort(next_, {}, &History::Next::token);
    std::int64_t all = 0;
    for (const History::Next& next : next_) all += next.times;
    out_.clear();
    for (auto first = next_.begin(); first != next_.end();) {
      const auto end = std::find_if(first, next_.end(), [&](const History::Next& next) {
        return next.token != first->token;
      });
      std::int64_t times = 0;
      std::vector<History::Place> places;
      for (auto next = first; next != end; ++next) {
        times += next->times;
        places.push_back(next->place);
      }
      const double share = static_cast<double>(times) / static_cast<double>(all);
      out_.push_back({first->token, static_cast<float>(std::log(share) + log_trust_),
                      static_cast<std::int32_t>(places_.size())});
      places_.push_back(std::move(places));
      first = end;
    }
    std::ranges::stable_sort(out_, std::greater{}, &DraftChild::logw);
    return out_;
  }

 private:
  const History& history_;
  const double log_trust_;
  std::vector<std::vector<History::Place>> places_;  // by key
  std::vector<History::Next> next_;
  std::vector<DraftChild> out_;
};

Draft SuffixDrafter::propose(History::Place at, const DraftLimits& limits) {
  History::Match match = history.find(at);
  if (match.places.empty()) return {};
  Draft draft;
  draft.level = match.level;
  Trust& trust = trust_[draft.level];
  Continuations continuations(history, std::move(match.places), trust.value());
  draft.nodes = build_draft(continuations, limits);
  if (draft.nodes.empty()) trust.drift(kForgiven);
  return draft;
}

void SuffixDrafter::learn(const Draft& draft, std::int32_t node, bool came) {
  Trust& trust = trust_[draft.level];
  const double above = node < 0 ? 0 : draft.nodes[static_cast<std::size_t>(node)].score;
  double expected = 0;  // without the trust, which is what is to be learnt
  for (const DraftNode& child : draft.nodes) {
    if (child.parent == node) expected += std::exp(child.score - above) / trust.value();
  }
  if (expected == 0) return;
  trust.came += (came ? 1 : 0) - kForgotten * trust.came;
  trust.expected += expected - kForgotten * trust.expected;
}

}  // namespace dendrite
