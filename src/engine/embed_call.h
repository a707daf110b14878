#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/calls/call.h"

namespace dendrite {

/// Computes texts for the hidden states of their tokens, pooled. Texts that begin alike share what
/// they have in common: rows, and sums over them.
class EmbedCall final : public RequestsCall, private HiddenSink {
 public:
  /// `texts`: sorted, each once, none empty.
  EmbedCall(SessionCore& session, std::span<const std::vector<Token>* const> texts, Pooling pooling,
            std::stop_token cancel);
  ~EmbedCall() override;

  CallKind kind() const override { return CallKind::kEmbed; }
  // --- once it has ended
  /// kRunning: all was computed.
  Finish ended() const { return ended_; }
  /// Of each text, [dim]; not normalized.
  const std::vector<std::vector<float>>& vectors() const { return vectors_; }

 private:
  /// Over positions [0, next), in ascending order: so a sum does not depend on who shares it.
  struct Sum {
    std::int64_t next = 0;
    std::vector<double> values;
  };
  /// A token's hidden state, of the step under way.
  struct Row {
    const Segment* segment = nullptr;
    std::int64_t position = 0;
    std::vector<float> hidden;
  };

  bool wants(const Segment& segment, std::int64_t position)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void take(const Segment& segment, std::int64_t position, std::span<const float> hidden)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void take(std::span<const StepOutcome> outcomes, ReadyLanes& ready)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void add(const Row& row) DENDRITE_REQUIRES(kTreeLock);
  void finish(Finish ended) DENDRITE_COMPUTES override;

  const Pooling pooling_;
  std::vector<Branch> branches_;
  std::unordered_map<const Segment*, std::size_t> texts_;  // by their last segments
  std::vector<Row> rows_;
  std::unordered_map<const Segment*, Sum> sums_;  // of kMean, at each segment's end
  std::vector<std::vector<float>> vectors_;
  Finish ended_ = Finish::kRunning;
};

}  // namespace dendrite
