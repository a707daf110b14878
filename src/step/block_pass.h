#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/parallel.h"
#include "dendrite/types.h"
#include "kv/kv_tree.h"
#include "kv/memories.h"
#include "model/batch.h"
#include "model/drafter.h"
#include "step/attention_planner.h"
#include "step/host.h"
#include "step/locks.h"

namespace dendrite {

/// What a block drafter is asked: what may come after one text.
struct BlockAsk {
  /// The text and block_size - 1 mask tokens, of which all but the last block_size are computed.
  Tip* tip = nullptr;
  /// Out: for each masked position the likeliest tokens, likeliest first, with their log-probs.
  /// Empty: there were no pages.
  std::vector<std::vector<TokenLogprob>> positions{};
};

/// Passes of a block drafter over texts of the tree (DFlash, arXiv 2602.06036). A block is the last
/// token of a text and masks after it, on the text's own pages as a fork of it sees them; nothing
/// that it stores is read by anybody else.
class BlockPass {
 public:
  struct Parts {
    Backend& backend;
    Drafter& drafter;
    KvStore& store;  // the drafter's
    KvTree& tree;
    Memories memories;
    StepHost& host;
    TreeMutex& tree_mutex;
    const ThreadPool& workers;
    std::int64_t vocab;      // of the model
    std::int64_t known_ids;  // that the tokenizer has; others are not proposed
  };
  explicit BlockPass(const Parts& parts);

  /// Texts that one pass takes.
  std::int64_t most() const { return most_; }
  /// Fills what is out of every ask: `top` tokens for each position, by their probabilities at
  /// `temperature` > 0. No step may have been begun early.
  void draft(std::span<BlockAsk> asks, std::int64_t top, double temperature) DENDRITE_COMPUTES;

 private:
  std::vector<BlockAsk*> reserve(std::span<BlockAsk> asks) DENDRITE_REQUIRES(kTreeLock);
  void build(std::span<BlockAsk*> asks) DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void read(std::span<BlockAsk*> asks, Tensor logits, std::int64_t top, double temperature)
      DENDRITE_REQUIRES(kComputeLock);

  const Parts parts_;
  const std::int64_t block_;
  const std::int64_t most_;
  AttentionPlanner planner_ DENDRITE_GUARDED_BY(kComputeLock);
  Batch batch_ DENDRITE_GUARDED_BY(kComputeLock);
  std::vector<float> rows_ DENDRITE_GUARDED_BY(kComputeLock);  // of logits, on the host
};

}  // namespace dendrite
