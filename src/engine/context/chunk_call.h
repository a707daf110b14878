#pragma once

#include <memory>
#include <vector>

#include "core/sha256.h"
#include "engine/calls/call.h"
#include "engine/context/chunk_hold.h"

namespace dendrite {

/// Computes a chunk behind its left context, on the session's account, and leaves K and V to the
/// registry. Who comes with the same chunk meanwhile waits for the same rows. Of one that is warm
/// it wants nothing.
class ChunkCall final : public RequestsCall {
 public:
  ChunkCall(SessionCore& session, std::shared_ptr<const ChunkHold> chunk, std::stop_token cancel);
  ~ChunkCall() override;

  const ChunkEntry& entry() const { return *chunk_->entry; }
  const BranchState& branch() const { return *state_; }
  /// Once it has ended.
  Chunk result() {
    branch_.prune();
    return handle_of(std::move(chunk_));
  }
  void drop_result() override { const Chunk dropped = result(); }
  CallKind kind() const override { return CallKind::kChunk; }

 private:
  void finish(Finish ended) DENDRITE_COMPUTES override;

  std::shared_ptr<const ChunkHold> chunk_;
  Branch branch_;
  BranchState* state_ = nullptr;
};

/// Once it has its K and V, or its call has ended in another way.
Chunk register_chunk(SessionCore& session, std::vector<Token> tokens, const Sha256Digest& content,
                     const ChunkParams& params) DENDRITE_EXCLUDES(kTreeLock);
std::shared_ptr<ChunkCall> submit_chunk(SessionCore& session, std::vector<Token> tokens,
                                        const Sha256Digest& content, const ChunkParams& params)
    DENDRITE_EXCLUDES(kTreeLock);

}  // namespace dendrite
