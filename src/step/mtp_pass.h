#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/parallel.h"
#include "dendrite/types.h"
#include "kv/kv_tree.h"
#include "kv/memories.h"
#include "model/batch.h"
#include "model/mtp_head.h"
#include "step/attention_planner.h"
#include "step/host.h"
#include "step/locks.h"

namespace dendrite {

/// What an MTP head is asked: a chain of tokens that may come after one text.
struct MtpAsk {
  /// The text, whose last token is not computed, and behind it as many tokens as are asked for,
  /// whatever they are.
  Tip* tip = nullptr;
  /// The token after those of `chain`, by logits [vocab]; none: the chain ends. For any thread.
  std::function<std::optional<ChosenToken>(std::span<const float> logits,
                                           std::span<const ChosenToken> chain)>
      choose{};
  /// Out. Empty: there were no pages, or the hidden state of the text is not at hand.
  std::vector<ChosenToken> chain{};
};

/// Drafts of an MTP head over texts of the tree: a pass for each token, with a row for each text,
/// on the pages that a fork of the text sees. Nothing that it stores is read by anybody else.
class MtpPass {
 public:
  struct Parts {
    Backend& backend;
    MtpHead& head;
    KvStore& store;  // the head's
    KvTree& tree;
    Memories memories;
    StepHost& host;
    TreeMutex& tree_mutex;
    const ThreadPool& workers;
    std::int64_t vocab;  // of the model
  };
  explicit MtpPass(const Parts& parts);

  /// Chains of so many tokens, at least 1. No step may have been begun early.
  void draft(std::span<MtpAsk> asks, std::int64_t tokens) DENDRITE_COMPUTES;

 private:
  std::vector<MtpAsk*> reserve(std::span<MtpAsk> asks, std::int64_t tokens)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void order(std::span<MtpAsk*> asks) DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void build(std::span<MtpAsk*> asks, std::int64_t tokens, std::int64_t done)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void choose(std::span<MtpAsk*> asks, Tensor logits, std::int64_t done)
      DENDRITE_REQUIRES(kComputeLock);
  bool knows(const MtpAsk& ask, std::int64_t tokens) DENDRITE_REQUIRES(kComputeLock, kTreeLock);

  const Parts parts_;
  const std::int64_t page_tokens_;
  AttentionPlanner planner_ DENDRITE_GUARDED_BY(kComputeLock);
  Batch batch_ DENDRITE_GUARDED_BY(kComputeLock);
  std::vector<float> rows_ DENDRITE_GUARDED_BY(kComputeLock);  // of logits, on the host
};

}  // namespace dendrite
