#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/branches/call_tips.h"
#include "engine/calls/call.h"
#include "engine/calls/score_trie.h"

namespace dendrite {

/// Scores the continuations of several branches: forks that are dropped with the call.
class ScoreCall final : public RequestsCall, private LogprobSink {
 public:
  using Continuations = std::vector<std::vector<Token>>;

  /// `continuations`: of each branch, or one list for all.
  ScoreCall(SessionCore& session, ConstBranches branches,
            std::span<const Continuations> continuations, const ScoreParams& params);

  /// Once it has ended: result[branch][continuation].
  std::vector<std::vector<Score>> result() { return std::move(scores_); }
  CallKind kind() const override { return CallKind::kScore; }

 private:
  /// Which trie nodes a temporary segment's tokens are.
  struct Scored {
    std::size_t trie = 0;
    std::int64_t begin = 0;           // position of the first
    std::vector<std::int32_t> nodes;  // in order
  };
  struct Place {
    std::size_t trie = 0;
    std::int32_t node = -1;  // -1: not one of this call's
  };

  void add_root(BranchState& branch, const Continuations& continuations)
      DENDRITE_REQUIRES(kTreeLock);
  void want_rows() DENDRITE_REQUIRES(kTreeLock);
  void finish(Finish ended) DENDRITE_COMPUTES override;
  /// What the branches' constraints refuse is -infinity.
  void refuse();
  std::shared_ptr<const LogitsRow> kept_logits(const BranchState& branch) const
      DENDRITE_EXCLUDES(kTreeLock);

  std::span<const Token> wanted(const Segment& segment, std::int64_t position)
      DENDRITE_REQUIRES(kComputeLock) override;
  std::size_t top() const override { return top_; }
  void take(const Segment& segment, std::int64_t position, const RowLogprobs& read)
      DENDRITE_REQUIRES(kComputeLock) override;
  Place place_of(const Segment& segment, std::int64_t position) const;

  void grow(std::size_t trie, std::int32_t index, Tip& from) DENDRITE_REQUIRES(kTreeLock);
  std::int32_t only_internal_child(std::size_t trie, std::int32_t index);

  std::size_t top_ = 0;  // likeliest tokens that are told of each place
  std::vector<BranchState*> roots_;
  std::vector<std::int64_t>
      independent_;  // rows of a root's continuations as requests of their own
  std::vector<ScoreTrie> tries_;
  std::vector<std::vector<std::size_t>> accepted_;  // tokens of each, by root; none: unconstrained
  CallTips tips_;
  std::unordered_map<const Segment*, Scored> scored_;
  std::vector<Token> tokens_;
  std::vector<std::vector<Score>> scores_;
};

}  // namespace dendrite
