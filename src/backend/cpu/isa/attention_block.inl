// Where K and V of a block lie for the two products of attention.inl, once for all rows of a task. Pages in FP8 are
// widened, and go on as one page in bf16 (e4m3.inl). Where values are keys, so is V made of K, which its product cannot
// be formed of as it lies (turned_keys.inl).
// Included inside an unnamed namespace by the path's file.

constexpr int kBlockVectors = kBlock / kLanes;

struct Range {
  int begin;
  int end;
};

/// The state and the task's buffers of one tile.
struct AttentionTile {
  const AttentionTask* task;
  KvLayout layout;                             // of `page`
  const std::byte* key_column[kBlockVectors];  // address of each column vector's first step
  std::int64_t key_step_bytes;                 // from step to step of a column vector
  const std::byte* page[kBlock / 8];           // K of the block's pages, or of what they are widened to
  const std::byte* values[kBlock / 8];         // V of them
  float* scores;                               // [kAttentionTileRows][kBlock]
  std::uint32_t* weights;                      // [kAttentionTileRows][kBlock / 2], dot format only
  std::byte* gathered;                         // K of a block, of pages narrower than a vector; of FP8 K and V
  std::byte* turned;                           // V of a block whose values are its keys
  std::int64_t record;                         // floats of a state record
  std::int64_t steps;                          // of Q K^T
  std::int64_t query_chunk_words;              // from a chunk of all queries to the next
};

/// What a row at `position` sees of the block that begins at `block` and has `tokens` tokens.
DENDRITE_INLINE Range seen_by(std::int64_t position, AttentionWindow window, std::int64_t block,
                              std::int64_t tokens) {
  const std::int64_t end = smaller(tokens, position - block + 1);
  const std::int64_t first = window.size == 0  ? 0
                             : window.chunked ? position / window.size * window.size
                                              : position - window.size + 1;
  const std::int64_t begin = larger(0, first - block);
  if (begin >= end) return {0, 0};
  return {static_cast<int>(begin), static_cast<int>(end)};
}

/// The pages that a task's tiles walk: as they are stored, or as they are widened.
DENDRITE_INLINE KvLayout walked_layout(const AttentionTask& task) {
  return task.layout.format == KvFormat::kFP8 ? widened_layout(task.layout) : task.layout;
}

/// From step to step of K of a block, which is in such pages or gathered.
DENDRITE_INLINE std::int64_t step_bytes_of(const AttentionTask& task) {
  if (task.layout.format == KvFormat::kFP8) return kWidenedStepBytes;
  return larger(task.layout.page_tokens, kLanes) * 4;
}

/// Points the tile at V of the block's pages, which are located.
void locate_values(AttentionTile& tile, std::int64_t tokens) {
  const KvLayout& layout = tile.layout;
  if (layout.values_are_keys) {
    const bool widened = tile.task->layout.format == KvFormat::kFP8;
    const std::int64_t step_bytes = widened ? kWidenedStepBytes : layout.page_tokens * 4;
    return turn_block(layout, tile.page, step_bytes, tokens, tile.turned, tile.values);
  }
  for (std::int64_t page = 0; page * layout.page_tokens < tokens; ++page) {
    tile.values[page] = tile.page[page] + layout.v_offset;
  }
}

/// Points the tile at the pages of one block; columns past the last page repeat it (their scores
/// are selected away).
void locate_block(AttentionTile& tile, const std::int32_t* ids, std::int64_t tokens,
                  std::int64_t steps) {
  const KvLayout& layout = tile.layout;
  const std::int64_t pages = (tokens + layout.page_tokens - 1) / layout.page_tokens;
  if (tile.task->layout.format == KvFormat::kFP8) {
    widen_block(*tile.task, ids, tokens, layout, tile.gathered);
    tile.page[0] = tile.gathered;
  } else {
    for (std::int64_t page = 0; page < pages; ++page) {
      tile.page[page] = tile.task->pages + ids[page] * layout.page_stride;
    }
  }
  locate_values(tile, tokens);
  if (layout.page_tokens >= kLanes) {
    for (int v = 0; v < kBlockVectors; ++v) {
      const std::int64_t token = v * kLanes;
      const std::int64_t page = smaller(token / layout.page_tokens, pages - 1);
      tile.key_column[v] = tile.page[page] + token % layout.page_tokens * 4;
    }
    return;
  }
  // A vector of tokens spans several pages: gather the block's K once for all tiles.
  const std::int64_t page_bytes = layout.page_tokens * 4;
  constexpr std::int64_t kVectorBytes = kLanes * 4;
  for (int v = 0; v < kBlockVectors; ++v) {
    std::byte* column = tile.gathered + v * steps * kVectorBytes;
    tile.key_column[v] = column;
    for (std::int64_t part = 0; part * page_bytes < kVectorBytes; ++part) {
      const std::int64_t page = v * kLanes / layout.page_tokens + part;
      const std::byte* k = tile.page[smaller(page, pages - 1)];
      for (std::int64_t step = 0; step < steps; ++step) {
        __builtin_memcpy(column + step * kVectorBytes + part * page_bytes, k + step * page_bytes,
                         kLanes == 16 ? 32 : static_cast<std::size_t>(page_bytes));
      }
    }
  }
}
