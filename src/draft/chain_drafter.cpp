#include "draft/chain_drafter.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace dendrite {
namespace {

/// The chance of a token that was drawn by the same number, before anything was seen.
constexpr double kDrawnComes = 0.6;
constexpr double kAsSaid = -1;

}  // namespace

ChainDrafter::ChainDrafter() : Acceptance({kAsSaid, kDrawnComes, kAsSaid}) {}

/// Its keys: how many of the chain's tokens were before. Nothing is known after the others.
class ChainDrafter::Chain final : public Lattice {
 public:
  Chain(const ChainDrafter& drafter, std::span<const ChosenToken> tokens, bool greedy)
      : drafter_(drafter), tokens_(tokens), found_(greedy ? kGreedily : kDrawn) {}

  std::span<const DraftChild> children(std::int32_t key) override {
    out_.clear();
    if (key == kNothing || key == std::ssize(tokens_)) return out_;
    const ChosenToken& at = tokens_[static_cast<std::size_t>(key)];
    add(at.id, at.logprob, found_, key + 1);
    for (const TokenLogprob& other : at.top) {
      if (other.id != at.id) add(other.id, other.logprob, kBeside, kNothing);
    }
    std::ranges::stable_sort(out_, std::greater{}, &DraftChild::logw);
    return out_;
  }

 private:
  static constexpr std::int32_t kNothing = -1;

  void add(Token token, float logprob, Found found, std::int32_t key) {
    const std::int32_t kind = kind_of(found, logprob);
    out_.push_back({token, drafter_.logw(kind), key, kind});
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

}  // namespace dendrite
