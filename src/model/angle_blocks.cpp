#include "model/angle_blocks.h"

namespace dendrite {

static_assert(RopeTable::kBlock == KvMoves::kAnglePositions);

std::span<const float* const> AngleBlocks::of(std::span<const KvMove> runs) {
  for (const KvMove& run : runs) {
    if (run.old_position == run.new_position) continue;  // copied
    add(run.old_position, run.count);
    add(run.new_position, run.count);
  }
  return blocks_;
}

void AngleBlocks::add(std::int64_t position, std::int64_t count) {
  if (position < 0 || count <= 0) return;  // the op refuses such a run
  const std::int64_t last = (position + count - 1) / RopeTable::kBlock;
  for (std::int64_t index = position / RopeTable::kBlock; index <= last; ++index) {
    const auto at = static_cast<std::size_t>(index);
    if (at < blocks_.size() && blocks_[at] != nullptr) continue;
    if (at >= blocks_.size()) {
      buffers_.resize(at + 1);
      blocks_.resize(at + 1);
    }
    const std::span<const float> block = table_.block(index);
    auto buffer = backend_.make_buffer(std::ssize(block));
    backend_.upload(buffer->data(), block);
    blocks_[at] = buffer->data();
    buffers_[at] = std::move(buffer);
  }
}

}  // namespace dendrite
