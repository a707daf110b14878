// A view of the chunks that are registered (ChunkInfo).
#include "engine/branches/engine_core.h"
#include "kv/chunk_index.h"

namespace dendrite {

const char* name_of(ChunkState state) {
  switch (state) {
    case ChunkState::kRegistered:
      return "registered";
    case ChunkState::kFilling:
      return "filling";
    case ChunkState::kWarm:
      return "warm";
    case ChunkState::kCold:
      return "cold";
    case ChunkState::kForgotten:
      break;
  }
  return "forgotten";
}

double ChunkInfo::hit_rate() const {
  const std::int64_t wanted = 1 + hits + reads;  // it was not known at its first registration
  return static_cast<double>(hits + read_hits) / static_cast<double>(wanted);
}

std::vector<ChunkInfo> Engine::chunks() const {
  std::vector<ChunkInfo> infos;
  {
    const TreeLock lock(core_->tree_mutex);
    if (core_->chunks != nullptr) infos = core_->chunks->list();
  }
  if (!info().has_tokenizer) return infos;
  for (ChunkInfo& info : infos) info.text = decode(info.beginning);
  return infos;
}

}  // namespace dendrite
