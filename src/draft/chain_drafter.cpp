#include "draft/chain_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dendrite {
namespace {

/// Of what was learnt, with each test: some thirty tests decide.
constexpr double kForgotten = 0.03;
/// What is believed before anything was seen counts as so many tests.
constexpr double kBelieved = 4;
/// ... of a token drawn by the same number, and of the first of a chain.
constexpr double kDrawnComes = 0.6;
constexpr double kFirstComes = 0.7;

}  // namespace

double ChainDrafter::Rate::value() const {
  return std::clamp(came / tried, 0.01, 0.99);
}

void ChainDrafter::Rate::learn(bool it_came) {
  came += (it_came ? 1 : 0) - kForgotten * came;
  tried += 1 - kForgotten * tried;
}

ChainDrafter::ChainDrafter() {
  for (std::size_t i = 0; i < rates_.size(); ++i) {
    const std::size_t end = i % kEnds.size();
    const double middle = (kEnds[end] + (end == 0 ? 0 : kEnds[end - 1])) / 2;
    const bool is_drawn = i / kEnds.size() == static_cast<std::size_t>(Found::kDrawn);
    rates_[i] = {.came = kBelieved * (is_drawn ? kDrawnComes : middle), .tried = kBelieved};
  }
}

std::int32_t ChainDrafter::kind_of(Found found, float logprob) {
  const float p = std::exp(logprob);
  const auto end = std::ranges::lower_bound(kEnds, std::min(p, 1.0F));
  return static_cast<std::int32_t>(found) * static_cast<std::int32_t>(kEnds.size()) +
         static_cast<std::int32_t>(end - kEnds.begin());
}

/// Its keys: how many of the chain's tokens were before. Nothing is known after the others.
class ChainDrafter::Chain final : public Lattice {
 public:
  Chain(const ChainDrafter& drafter, std::span<const ChosenToken> tokens, bool greedy)
      : drafter_(drafter), tokens_(tokens), found_(greedy ? Found::kGreedily : Found::kDrawn) {}

  std::span<const DraftChild> children(std::int32_t key) override {
    out_.clear();
    if (key == kNothing || key == std::ssize(tokens_)) return out_;
    const ChosenToken& at = tokens_[static_cast<std::size_t>(key)];
    add(at.id, at.logprob, found_, key + 1);
    for (const TokenLogprob& other : at.top) {
      if (other.id != at.id) add(other.id, other.logprob, Found::kBeside, kNothing);
    }
    std::ranges::stable_sort(out_, std::greater{}, &DraftChild::logw);
    return out_;
  }

 private:
  static constexpr std::int32_t kNothing = -1;

  void add(Token token, float logprob, Found found, std::int32_t key) {
    const std::int32_t kind = kind_of(found, logprob);
    const auto logw = static_cast<float>(std::log(drafter_.rate_of(kind).value()));
    out_.push_back({token, logw, key, kind});
  }

  const ChainDrafter& drafter_;
  const std::span<const ChosenToken> tokens_;
  const Found found_;
  std::vector<DraftChild> out_;
};

Draft ChainDrafter::propose(std::span<const ChosenToken> chain, bool greedy,
                            const DraftLimits& limits) const {
  Chain lattice(*this, chain, greedy);
  return {build_draft(lattice, limits)};
}

void ChainDrafter::learn(const Draft& draft, std::int32_t node, std::int32_t came) {
  for (std::size_t i = 0; i < draft.nodes.size(); ++i) {
    const DraftNode& child = draft.nodes[i];
    if (child.parent != node) continue;
    rates_[static_cast<std::size_t>(child.kind)].learn(static_cast<std::int32_t>(i) == came);
  }
}

void ChainDrafter::learn_length(std::int64_t drafted, std::int64_t taken, bool ended) {
  const std::int64_t tests = std::min({ended ? taken : taken + 1, drafted, kDepths});
  for (std::int64_t i = 0; i < tests; ++i) {
    Rate& rate = depths_[static_cast<std::size_t>(i)];
    if (rate.tried == 0) rate = {.came = kBelieved * taken_at(i + 1), .tried = kBelieved};
    rate.learn(i < taken);
  }
}

/// What was never seen is believed to be as what is before it.
double ChainDrafter::taken_at(std::int64_t depth) const {
  for (std::int64_t i = std::min(depth, kDepths) - 1; i >= 0; --i) {
    const Rate& rate = depths_[static_cast<std::size_t>(i)];
    if (rate.tried > 0) return rate.value();
  }
  return kFirstComes;
}

}  // namespace dendrite
