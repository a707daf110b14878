#include "draft/block_drafter.h"

#include <algorithm>
#include <functional>

namespace dendrite {
namespace {

/// Tokens beside the likeliest that were taken before: none, one, more.
constexpr std::int32_t kAstray = 3;
constexpr double kAsSaid = -1;

}  // namespace

/// Classes: the likeliest of its place, by what was taken before; then the others.
BlockDrafter::BlockDrafter() : Acceptance(std::vector<double>(2 * kAstray, kAsSaid)) {}

/// Its keys: places before, and how far astray.
class BlockDrafter::Block final : public Lattice {
 public:
  Block(const BlockDrafter& drafter, Places places) : drafter_(drafter), places_(places) {}

  std::span<const DraftChild> children(std::int32_t key) override {
    out_.clear();
    const std::int32_t place = key / kAstray;
    const std::int32_t astray = key % kAstray;
    if (place == std::ssize(places_)) return out_;
    const std::int32_t next = (place + 1) * kAstray;
    for (const TokenLogprob& token : places_[static_cast<std::size_t>(place)]) {
      const bool is_first = out_.empty();
      const std::int32_t kind = kind_of(is_first ? astray : kAstray + astray, token.logprob);
      const std::int32_t further = is_first ? astray : std::min(astray + 1, kAstray - 1);
      out_.push_back({token.id, drafter_.logw(kind), next + further, kind});
    }
    std::ranges::stable_sort(out_, std::greater{}, &DraftChild::logw);
    return out_;
  }

 private:
  const BlockDrafter& drafter_;
  const Places places_;
  std::vector<DraftChild> out_;
};

Draft BlockDrafter::propose(Places places, const DraftLimits& limits) const {
  Block lattice(*this, places);
  return {.nodes = build_draft(lattice, limits), .level = places.size()};
}

}  // namespace dendrite
