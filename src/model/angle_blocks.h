#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/rope.h"

namespace dendrite {

/// Blocks of a RopeTable on a device, where moves read them (KvMoves::angles). A block is carried
/// over when it is first needed, and stays: 512 bytes a position at rotary_dim 128.
class AngleBlocks {
 public:
  AngleBlocks(RopeTable& table, Backend& backend) : table_(table), backend_(backend) {}

  /// All blocks so far, with those of the old and new positions of `runs` among them. Valid until
  /// the next call.
  std::span<const float* const> of(std::span<const KvMove> runs);
  /// Those of positions [0, count), before anybody waits for them.
  void prepare(std::int64_t count) { add(0, count); }

 private:
  void add(std::int64_t position, std::int64_t count);

  RopeTable& table_;
  Backend& backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // null: not needed so far
  std::vector<const float*> blocks_;              // their memory
};

}  // namespace dendrite
