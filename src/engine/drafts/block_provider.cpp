#include "engine/drafts/block_provider.h"

#include <algorithm>
#include <limits>

#include "engine/branches/session_core.h"
#include "engine/calls/lane.h"

namespace dendrite {
namespace {

/// Drafts after which it is known how likely their tokens are.
constexpr std::int64_t kKnown = 32;

std::int64_t masks_of(const EngineCore& engine) {
  return engine.drafter->config().block_size - 1;
}

double size_ratio(const EngineCore& engine) {
  return static_cast<double>(engine.drafter->weight_bytes()) /
         static_cast<double>(std::max<std::int64_t>(1, engine.model->weight_bytes()));
}

BlockPass::Parts parts_of(EngineCore& engine, StepHost& host) DENDRITE_REQUIRES(kTreeLock) {
  const std::int64_t known =
      engine.tokenizer ? engine.tokenizer->vocab_size() : std::numeric_limits<std::int32_t>::max();
  return {*engine.backend,       *engine.drafter,
          *engine.drafter_store, *engine.tree,
          engine.memories(),     host,
          engine.tree_mutex,     *engine.workers,
          engine.vocab(),        known};
}

}  // namespace

BlockProvider::BlockProvider(EngineCore& engine, StepHost& host)
    : PacedProvider(engine, drafter_,
                    {.ratio = size_ratio(engine), .one_pass = true, .depth = masks_of(engine)}),
      pass_(parts_of(engine, host)),
      tips_(engine) {}

std::vector<LaneDraft*> BlockProvider::choose(std::span<LaneDraft* const> wanted) {
  return with_one_missing(wanted, engine_.drafter->config().block_size);
}

void BlockProvider::fill(std::span<LaneDraft* const> drafts, std::int64_t depth) {
  const auto alike = [](const LaneDraft* a, const LaneDraft* b) { return a->params == b->params; };
  std::vector<LaneDraft*> left(drafts.begin(), drafts.end());
  while (!left.empty()) {
    const LaneDraft* first = left.front();
    const auto others = std::stable_partition(
        left.begin(), left.end(), [&](const LaneDraft* draft) { return alike(draft, first); });
    fill_alike(std::span(left.begin(), others), depth);
    left.erase(left.begin(), others);
  }
}

void BlockProvider::fill_alike(std::span<LaneDraft* const> drafts, std::int64_t depth) {
  const DecodeParams& params = *drafts.front()->params;
  const std::vector<Token> masks(static_cast<std::size_t>(masks_of(engine_)),
                                 engine_.drafter->config().mask_token);
  std::vector<BlockAsk> asks;
  {
    const TreeLock lock(engine_.tree_mutex);
    for (const LaneDraft* draft : drafts) {
      Tip& tip = tips_.fork(draft->lane->branch->tip);
      engine_.tree->append(tip, masks);
      asks.push_back({&tip});
    }
  }
  const std::int64_t top = params.speculate == Speculate::kDFlash ? 1 : params.speculate_top_k;
  pass_.draft(asks, top, params.speculate_temperature);
  for (std::size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].positions.empty()) continue;
    asks[i].positions.resize(static_cast<std::size_t>(depth));
    drafts[i]->draft = drafter_.propose(asks[i].positions, limits_of(*drafts[i], depth));
    ++filled_;
  }
}

/// Before it is known how likely tokens are, a tree that is hardly larger than its likeliest chain
/// had better have all of that.
DraftLimits BlockProvider::limits_of(const LaneDraft& draft, std::int64_t depth) const {
  DraftLimits limits = draft.limits;
  limits.depth = std::min(limits.depth, depth);
  if (is_free(&draft)) limits.least = 0;
  limits.chain_first = draft.params->speculate_chain_seed.value_or(
      filled_ < kKnown && 2 * limits.nodes < 3 * limits.depth);
  return limits;
}

void BlockProvider::tidy(bool /*failed*/) {
  const TreeLock lock(engine_.tree_mutex);
  tips_.drop();
}

}  // namespace dendrite
