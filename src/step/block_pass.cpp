#include "step/block_pass.h"

#include <algorithm>
#include <cmath>

#include "sample/distribution.h"
#include "step/draft_room.h"

namespace dendrite {

BlockPass::BlockPass(const Parts& parts)
    : parts_(parts),
      block_(parts.drafter.config().block_size),
      most_(std::max<std::int64_t>(1, std::min(parts.drafter.max_rows() / block_,
                                               parts.drafter.max_logit_rows() / (block_ - 1)))),
      planner_(parts.store.shape().page_tokens) {}

void BlockPass::draft(std::span<BlockAsk> asks, std::int64_t top, double temperature) {
  std::vector<BlockAsk*> ready;
  {
    const TreeLock lock(parts_.tree_mutex);
    ready = reserve(asks);
  }
  for (std::span<BlockAsk*> left(ready); !left.empty();) {
    const std::span<BlockAsk*> part =
        left.first(std::min(left.size(), static_cast<std::size_t>(most_)));
    {
      const TreeLock lock(parts_.tree_mutex);
      build(part);
    }
    parts_.store.flush_copies();
    read(part, parts_.drafter.draft(batch_, parts_.store), top, temperature);
    left = left.subspan(part.size());
  }
}

/// Those that have pages: of what is free, and of what is only remembered.
std::vector<BlockAsk*> BlockPass::reserve(std::span<BlockAsk> asks) {
  std::vector<BlockAsk*> ready;
  for (BlockAsk& ask : asks) {
    if (reserve_for_draft(parts_.tree, parts_.memories, parts_.host, *ask.tip)) {
      ready.push_back(&ask);
    }
  }
  return ready;
}

/// Puts the asks in the order in which those with pages in common are neighbours, and fills the
/// batch. Where a layer's block sees all of itself, each of its rows is planned as if it were the
/// last one: what a row sees is decided by the plan, and its angles by its position.
void BlockPass::build(std::span<BlockAsk*> asks) {
  std::vector<PlanSequence> sequences;
  for (const BlockAsk* ask : asks) {
    const std::int64_t first = parts_.tree.length(*ask->tip) - block_;
    sequences.push_back({parts_.tree.table(*ask->tip), first, static_cast<std::int32_t>(block_)});
  }
  std::vector<std::int32_t> order;
  planner_.order(sequences, order);
  std::vector<BlockAsk*> ordered;
  std::vector<PlanSequence> forward;   // rows see what is before them
  std::vector<PlanSequence> everyway;  // and what comes after them in the block
  batch_.clear();
  const std::int64_t page_tokens = parts_.store.shape().page_tokens;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const auto i = static_cast<std::size_t>(order[place]);
    ordered.push_back(asks[i]);
    PlanSequence& sequence = forward.emplace_back(sequences[i]);
    sequence.common = planner_.common()[place];
    for (std::int64_t row = 0; row < block_; ++row) {
      const std::int64_t position = sequence.first_position + row;
      if (row > 0) batch_.logit_rows.push_back(static_cast<std::int32_t>(batch_.rows()));
      batch_.tokens.push_back(parts_.tree.token(*asks[i]->tip, position));
      batch_.positions.push_back(position);
      batch_.slots.push_back(slot_at(sequence.table, position, page_tokens));
      PlanSequence& alone = everyway.emplace_back(sequence);
      alone.first_position = sequence.first_position + block_ - 1;
      alone.rows = 1;
      if (row > 0) alone.common = std::ssize(sequence.table);
    }
  }
  std::ranges::copy(ordered, asks.begin());
  const auto& kinds = parts_.drafter.kinds();
  batch_.plans.resize(kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    planner_.build(kinds[i].causal ? forward : everyway, kinds[i].window, batch_.plans[i]);
  }
}

void BlockPass::read(std::span<BlockAsk*> asks, Tensor logits, std::int64_t top,
                     double temperature) {
  const std::int64_t masks = block_ - 1;
  const std::int64_t count = std::ssize(asks) * masks;
  const auto vocab = static_cast<std::size_t>(parts_.vocab);
  rows_.resize(static_cast<std::size_t>(count) * vocab);
  parts_.backend.download(rows_, logits.data);
  for (BlockAsk* ask : asks) ask->positions.resize(static_cast<std::size_t>(masks));
  std::span<float> rows(rows_);
  const auto is_no_token = [&](const TokenLogprob& token) {
    return token.id == parts_.drafter.config().mask_token || token.id >= parts_.known_ids;
  };
  parts_.workers.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::span<float> row = rows.subspan(static_cast<std::size_t>(i) * vocab, vocab);
      if (temperature != 1) {
        for (float& logit : row) logit = static_cast<float>(logit / temperature);
      }
      // (The mask is at most one of them.)
      const auto wanted = static_cast<std::size_t>(std::min(top + 1, parts_.vocab));
      std::vector<TokenLogprob> tokens = top_logprobs(row, log_sum_exp(row), wanted);
      std::erase_if(tokens, is_no_token);
      if (std::ssize(tokens) > top) tokens.resize(static_cast<std::size_t>(top));
      asks[static_cast<std::size_t>(i / masks)]->positions[static_cast<std::size_t>(i % masks)] =
          std::move(tokens);
    }
  });
}

}  // namespace dendrite
