#include "step/mtp_pass.h"

#include <algorithm>
#include <utility>

#include "step/draft_room.h"

namespace dendrite {

MtpPass::MtpPass(const Parts& parts)
    : parts_(parts),
      page_tokens_(parts.store.shape().page_tokens),
      planner_(parts.store.shape().page_tokens) {}

void MtpPass::draft(std::span<MtpAsk> asks, std::int64_t tokens) {
  std::vector<MtpAsk*> ready;
  {
    const TreeLock lock(parts_.tree_mutex);
    ready = reserve(asks, tokens);
  }
  const auto most = static_cast<std::size_t>(parts_.head.max_rows());
  for (std::span<MtpAsk*> left(ready); !left.empty();) {
    const std::span<MtpAsk*> part = left.first(std::min(left.size(), most));
    for (std::int64_t done = 0; done < tokens; ++done) {
      {
        const TreeLock lock(parts_.tree_mutex);
        if (done == 0) order(part);
        build(part, tokens, done);
      }
      parts_.store.flush_copies();
      const auto from = done == 0 ? MtpHead::From::kModel : MtpHead::From::kDraft;
      choose(part, parts_.head.draft(batch_, parts_.store, from), done);
    }
    left = left.subspan(part.size());
  }
}

/// Those that have pages, of what is free and of what is only remembered, and a hidden state.
std::vector<MtpAsk*> MtpPass::reserve(std::span<MtpAsk> asks, std::int64_t tokens) {
  std::vector<MtpAsk*> ready;
  for (MtpAsk& ask : asks) {
    const bool room = reserve_for_draft(parts_.tree, parts_.memories, parts_.host, *ask.tip);
    if (room && knows(ask, tokens)) ready.push_back(&ask);
  }
  return ready;
}

bool MtpPass::knows(const MtpAsk& ask, std::int64_t tokens) {
  const std::int64_t last = parts_.tree.length(*ask.tip) - tokens - 1;
  return last > 0 &&
         parts_.head.knows(slot_at(parts_.tree.table(*ask.tip), last - 1, page_tokens_));
}

/// Those with pages in common become neighbours.
void MtpPass::order(std::span<MtpAsk*> asks) {
  std::vector<PlanSequence> sequences;
  for (const MtpAsk* ask : asks) sequences.push_back({parts_.tree.table(*ask->tip), 0, 1});
  std::vector<std::int32_t> order;
  planner_.order(sequences, order);
  std::vector<MtpAsk*> ordered;
  for (const std::int32_t i : order) ordered.push_back(asks[static_cast<std::size_t>(i)]);
  std::ranges::copy(ordered, asks.begin());
}

/// A row for each: of the text's last token, then of the chain's.
void MtpPass::build(std::span<MtpAsk*> asks, std::int64_t tokens, std::int64_t done) {
  batch_.clear();
  std::vector<PlanSequence> sequences;
  for (std::size_t i = 0; i < asks.size(); ++i) {
    const MtpAsk& ask = *asks[i];
    const std::int64_t last = parts_.tree.length(*ask.tip) - tokens - 1;
    const std::span<const std::int32_t> table = parts_.tree.table(*ask.tip);
    const std::int64_t position = last + done;
    Token token = parts_.tree.token(*ask.tip, last);
    if (done > 0 && !ask.chain.empty()) token = ask.chain.back().id;
    batch_.tokens.push_back(token);
    batch_.positions.push_back(position);
    batch_.slots.push_back(slot_at(table, position, page_tokens_));
    batch_.before.push_back(slot_at(table, position - 1, page_tokens_));
    PlanSequence& sequence = sequences.emplace_back();
    sequence = {table, position, 1};
    if (i > 0) sequence.common = planner_.common()[i];
  }
  batch_.plans.resize(1);
  planner_.build(sequences, 0, batch_.plans.front());
}

void MtpPass::choose(std::span<MtpAsk*> asks, Tensor logits, std::int64_t done) {
  const auto vocab = static_cast<std::size_t>(parts_.vocab);
  rows_.resize(asks.size() * vocab);
  parts_.backend.download(rows_, logits.data);
  const std::span<const float> rows(rows_);
  parts_.workers.parallel_for(std::ssize(asks), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      MtpAsk& ask = *asks[at];
      if (std::ssize(ask.chain) < done) continue;  // it has ended
      auto token = ask.choose(rows.subspan(at * vocab, vocab), ask.chain);
      if (token) ask.chain.push_back(std::move(*token));
    }
  });
}

}  // namespace dendrite
