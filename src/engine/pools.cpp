#include "engine/pools.h"

#include <algorithm>
#include <string>

#include "backend/kv_parts.h"
#include "dendrite/error.h"
#include "engine/branches/known_compositions.h"
#include "engine/kv_pool_size.h"
#include "engine/loop/step_loop.h"
#include "engine/observe/event_log.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

/// Of the memory that is free, for anchors and journals of recurrent layers.
std::int64_t bytes_for_states(const EngineCore& core, const EngineOptions& options,
                              const DeviceMemory& memory) {
  constexpr std::int64_t kMostOfHost = std::int64_t{4} << 30;
  if (!core.model_info.state) return 0;
  if (options.state_bytes > 0) return options.state_bytes;
  // (K and V of such models take little beside.)
  if (core.backend->takes_pages_at_once()) return memory.free / 2;
  return std::min(kMostOfHost, memory.free / 4);
}

/// Journals of a chunk for each anchor, as a branch that goes from one chunk to the next has two of
/// either; no more than pages can have.
void make_states(EngineCore& core, const KvShape& kv, std::int64_t bytes) {
  StateShape shape = *core.model_info.state;
  // With fewer, branches would let go of each other's.
  constexpr std::int64_t kLeastAnchors = 4;
  const std::int64_t of_one = shape.anchor_bytes() + kChunkTokens * shape.journal_bytes();
  const std::int64_t least = kLeastAnchors * of_one;
  if (bytes < least) {
    throw Error("state_bytes is " + size_text(bytes) + ", and " + std::to_string(kLeastAnchors) +
                " branches go on from " + size_text(least) +
                " of states of recurrent layers; expected at least that (state_bytes, "
                "--state-memory), or a smaller model");
  }
  shape.anchors = std::min(kv.pages, bytes / of_one);
  shape.journals = std::min(kv.pages * kChunkTokens,
                            (bytes - shape.anchors * shape.anchor_bytes()) / shape.journal_bytes());
  core.states = core.backend->make_state_store(shape);
  core.info.states = shape.anchors;
  core.info.state_tokens = shape.journals;
}

}  // namespace

KvShape kv_shape(const EngineCore& core, const EngineOptions& options) {
  KvShape shape = core.model_info.kv;
  shape.page_tokens = options.page_tokens;
  shape.format = core.backend->numerics().kv;
  shape.guarded = options.kv_debug.value_or(flag_is_set("DENDRITE_KV_DEBUG"));
  return shape;
}

std::int64_t weight_bytes_of(const EngineCore& core) {
  return core.model->weight_bytes() + (core.reader() ? core.reader()->weight_bytes() : 0);
}

PoolRoom room_for(const EngineCore& core, const EngineOptions& options, std::int64_t taken,
                  std::int64_t pools) {
  PoolRoom room{core.backend->memory()};
  if (options.memory_bytes > 0) {
    if (taken >= options.memory_bytes) {
      throw Error("memory_bytes is " + size_text(options.memory_bytes) + ", and weights take " +
                  size_text(taken) + "; expected more (memory_bytes, --memory), or smaller models");
    }
    room.memory.total = options.memory_bytes;
    room.memory.free = std::min(room.memory.free, options.memory_bytes - taken);
    room.given = true;
  }
  room.memory.free /= pools;
  return room;
}

void make_tree(EngineCore& core, const EngineOptions& options, const PoolRoom& room) {
  KvShape shape = kv_shape(core, options);
  KvPoolWish wish;
  wish.kv_tokens = options.kv_tokens;
  wish.page_tokens = shape.page_tokens;
  wish.token_bytes = shape.token_bytes();
  if (const ReadAlong* reader = core.reader()) {
    wish.token_bytes += reader->shape_beside(shape).token_bytes();
  }
  wish.weight_bytes = core.model->weight_bytes();
  wish.max_positions = core.model_info.positions.max;
  wish.device = core.backend->info().name;
  wish.memory = room.memory;
  const std::int64_t state_bytes = bytes_for_states(core, options, room.memory);
  wish.memory.free -= state_bytes;
  wish.given = room.given;
  wish.taken_at_once = core.backend->takes_pages_at_once();
  const std::int64_t positions = std::min(wish.max_positions, kLongContext);
  wish.pass_bytes = core.backend->pass_bytes(core.model->pass_sizes(positions));
  shape.pages = pool_pages(wish);
  core.info.page_tokens = shape.page_tokens;
  core.info.kv_tokens = shape.pages * shape.page_tokens;
  core.store = make_kv_stores(*core.backend, shape);
  if (const ReadAlong* reader = core.reader()) {
    core.drafter_store = core.backend->make_kv_store(reader->shape_beside(shape));
  }
  if (shape.guarded) {
    const auto abort = [&core](const std::string& what)
                           DENDRITE_REQUIRES(kTreeLock) { abort_with_dump(what, *core.tree); };
    core.kv_debug = std::make_unique<KvDebug>(*core.store, abort);
  }
  if (core.model_info.state) make_states(core, shape, state_bytes);
  const TreeLock lock(core.tree_mutex);  // nobody else knows it yet
  core.tree = std::make_unique<KvTree>(core.stores(), core.kv_debug.get());
  if (options.prefix_index) {
    core.prefix_index = std::make_unique<PrefixIndex>(*core.tree);
    core.compositions = std::make_unique<ComposedIndex>(*core.tree);
    core.known_compositions = std::make_unique<KnownCompositions>(*core.tree, *core.compositions);
  }
  core.chunks = std::make_unique<ChunkIndex>(*core.tree, options.chunk_tokens);
  core.moves_a_step = core.backend->sampler() != nullptr ? 16384 : 2048;
  core.stepper = core.loop->make_stepper();
}

}  // namespace dendrite
