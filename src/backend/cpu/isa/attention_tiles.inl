// Attention over a tree of pages by tiles; what attention.inl says of tasks, states and visible ranges
// holds here too. Both products take 16 micro-rows at once:
//   S = Q K^T   a tile of B is up to 16 pairs of dims of 16 tokens, straight from a K page
//   O += P V    in groups of 16 tokens: a tile of B is 8 pairs of tokens of 16 dims, straight from a V page
// A score is a sum over dims in runs of as many pairs as divide head_dim evenly; an output is one over
// groups in ascending order.
// A group that a micro-row sees only a part of is multiplied with the rest of V replaced by zeros, for
// the rows alone that see the same part: what a row does not see never meets it, so its bits depend
// neither on its company nor on what the rest holds.
// Floor: the softmax, whose some ten vector operations a score take longer than both products; ops_bench
// prints the share. Included inside an unnamed namespace by the path's file.

constexpr int kGroupTokens = 16;
constexpr int kGroupsOfBlock = kBlock / kGroupTokens;
static_assert(kLanes == 16);

/// The largest number of pairs of dims, up to 16, that divides all of them evenly.
DENDRITE_INLINE int pairs_of_a_product(std::int64_t pairs) {
  int count = 16;
  while (pairs % count != 0) --count;
  return count;
}

/// What one task's tiles share.
struct TiledAttention {
  const AttentionTask* task;
  AttentionTile block;        // pages, keys, scores and weights of the block at hand
  int pairs;                  // of dims, in a product of Q K^T
  std::int64_t query_words;   // from a micro-row's packed query to the next one's
  float* sums;                // [16][padded_dim]: O of rows that are not 16
  std::uint32_t* cut_values;  // [groups][8][padded_dim]: V of groups that are not seen whole
  std::int64_t padded_dim;
};

/// V of one group of the block, of which `seen` (counted from the block's begin) is looked at: in its
/// page, or copied with zeros in place of the rest.
const std::byte* group_values(const TiledAttention& job, int group, Range seen) {
  const KvLayout& layout = job.block.layout;
  const std::int64_t step_bytes = job.padded_dim * 4;
  const int begin = group * kGroupTokens;
  const auto at = [&](int token) {
    return job.block.values[token >> layout.page_shift] +
           (token & (layout.page_tokens - 1)) / 2 * step_bytes;
  };
  if (layout.page_tokens >= kGroupTokens && seen.begin <= begin &&
      seen.end >= begin + kGroupTokens) {
    return at(begin);
  }
  std::uint32_t* copy = job.cut_values + group * (kGroupTokens / 2) * job.padded_dim;
  for (int pair = 0; pair < kGroupTokens / 2; ++pair) {
    const int token = begin + 2 * pair;
    const std::uint32_t keep =
        (token >= seen.begin && token < seen.end ? 0x0000ffffu : 0u) |
        (token + 1 >= seen.begin && token + 1 < seen.end ? 0xffff0000u : 0u);
    std::uint32_t* to = copy + pair * job.padded_dim;
    if (keep == 0) {  // there may be no page
      __builtin_memset(to, 0, static_cast<std::size_t>(step_bytes));
      continue;
    }
    const auto* from = reinterpret_cast<const std::uint32_t*>(at(token));
    for (std::int64_t i = 0; i < job.padded_dim; ++i) to[i] = from[i] & keep;
  }
  return reinterpret_cast<const std::byte*>(copy);
}

/// Scores of 16 micro-rows, for the column vectors (16 tokens) from `begin` on, to `end` or a few more.
void score_tiles(Tiles& tiles, const TiledAttention& job, const std::uint32_t* q, int begin,
                 int end) {
  const AttentionTile& block = job.block;
  const std::int64_t step_bytes = block.key_step_bytes;
  for (int column = begin / 4 * 4; column < end; column += 4) {
    const std::byte* const* key = block.key_column + column;
    tiles.zero<0>();
    tiles.zero<1>();
    tiles.zero<2>();
    tiles.zero<3>();
    for (std::int64_t k = 0; k < block.steps; k += job.pairs) {
      const std::int64_t offset = k * step_bytes;
      tiles.load<4>(q + k, job.query_words * 4);
      tiles.load<5>(key[0] + offset, step_bytes);
      tiles.multiply_add<0, 4, 5>();
      tiles.load<5>(key[1] + offset, step_bytes);
      tiles.multiply_add<1, 4, 5>();
      tiles.load<5>(key[2] + offset, step_bytes);
      tiles.multiply_add<2, 4, 5>();
      tiles.load<5>(key[3] + offset, step_bytes);
      tiles.multiply_add<3, 4, 5>();
    }
    float* scores = block.scores + column * kLanes;
    tiles.store<0>(scores, kBlock * 4);
    tiles.store<1>(scores + 16, kBlock * 4);
    tiles.store<2>(scores + 32, kBlock * 4);
    tiles.store<3>(scores + 48, kBlock * 4);
  }
}

/// o[16] += P V over groups [begin, end) for N column tiles from `column` on.
template <int N>
void value_tiles(Tiles& tiles, const TiledAttention& job, const std::uint32_t* p, float* o,
                 std::int64_t o_stride, const std::byte* const* values, Range groups,
                 std::int64_t column) {
  o += column * 16;
  const std::int64_t o_bytes = o_stride * 4;
  const std::int64_t step_bytes = job.padded_dim * 4;
  tiles.load<0>(o, o_bytes);
  if constexpr (N > 1) tiles.load<1>(o + 16, o_bytes);
  if constexpr (N > 2) tiles.load<2>(o + 32, o_bytes);
  if constexpr (N > 3) tiles.load<3>(o + 48, o_bytes);
  for (int group = groups.begin; group < groups.end; ++group) {
    const std::byte* v = values[group] + column * 64;
    tiles.load<6>(p + group * (kGroupTokens / 2), kBlock / 2 * 4);
    tiles.load<7>(v, step_bytes);
    tiles.multiply_add<0, 6, 7>();
    if constexpr (N > 1) {
      tiles.load<7>(v + 64, step_bytes);
      tiles.multiply_add<1, 6, 7>();
    }
    if constexpr (N > 2) {
      tiles.load<7>(v + 128, step_bytes);
      tiles.multiply_add<2, 6, 7>();
    }
    if constexpr (N > 3) {
      tiles.load<7>(v + 192, step_bytes);
      tiles.multiply_add<3, 6, 7>();
    }
  }
  tiles.store<0>(o, o_bytes);
  if constexpr (N > 1) tiles.store<1>(o + 16, o_bytes);
  if constexpr (N > 2) tiles.store<2>(o + 32, o_bytes);
  if constexpr (N > 3) tiles.store<3>(o + 48, o_bytes);
}

/// O += P V for micro-rows [begin, end) of a tile over the tokens that all of them see.
void value_rows(Tiles& tiles, const TiledAttention& job, float* states, Range rows, Range tokens) {
  if (tokens.begin >= tokens.end) return;
  const Range groups = {tokens.begin / kGroupTokens, (tokens.end - 1) / kGroupTokens + 1};
  const std::byte* values[kGroupsOfBlock];
  for (int group = groups.begin; group < groups.end; ++group) {
    values[group] = group_values(job, group, tokens);
  }
  const std::uint32_t* p = job.block.weights + rows.begin * (kBlock / 2);
  const bool in_place = rows.end - rows.begin == kTileRows;
  float* o = in_place ? states : job.sums;
  const std::int64_t o_stride = in_place ? job.block.record : job.padded_dim;
  const auto bytes = static_cast<std::size_t>(job.padded_dim) * sizeof(float);
  if (!in_place) {
    for (int m = rows.begin; m < rows.end; ++m) {
      __builtin_memcpy(o + (m - rows.begin) * o_stride, states + m * job.block.record, bytes);
    }
  }
  std::int64_t column = 0;
  const std::int64_t columns = job.padded_dim / 16;
  for (; column + 4 <= columns; column += 4) {
    value_tiles<4>(tiles, job, p, o, o_stride, values, groups, column);
  }
  if (columns - column == 3) value_tiles<3>(tiles, job, p, o, o_stride, values, groups, column);
  if (columns - column == 2) value_tiles<2>(tiles, job, p, o, o_stride, values, groups, column);
  if (columns - column == 1) value_tiles<1>(tiles, job, p, o, o_stride, values, groups, column);
  if (in_place) return;
  for (int m = rows.begin; m < rows.end; ++m) {
    __builtin_memcpy(states + m * job.block.record, o + (m - rows.begin) * o_stride, bytes);
  }
}

/// 2^x for x <= 1; 0 where it is far below the smallest number. Relative error 3e-6, which is nothing
/// next to the rounding to bf16 that follows.
DENDRITE_INLINE Float exp2_short(Float x) {
  const Float f = Vector::fraction(x);
  Float p = Vector::set1(1.3534168e-2f);
  p = Vector::fma(p, f, Vector::set1(5.2011460e-2f));
  p = Vector::fma(p, f, Vector::set1(2.4144275e-1f));
  p = Vector::fma(p, f, Vector::set1(6.9300383e-1f));
  p = Vector::fma(p, f, Vector::set1(1.0000026f));
  return Vector::scale(p, x);
}

DENDRITE_INLINE float weigh_short(const float* scores, std::uint32_t* weights, Range seen, float m,
                                  float scale_log2e) {
  const auto exp2 = [](Float x) { return exp2_short(x); };
  const int begin = seen.begin / kLanes;
  const int end = (seen.end + kLanes - 1) / kLanes;
  if (begin == 0 && end == kBlockVectors) {  // a loop without ends
    return exponentiate(exp2, scores, weights, 0, kBlockVectors, m, scale_log2e);
  }
  return exponentiate(exp2, scores, weights, begin, end, m, scale_log2e);
}

/// `rows` (up to 16) micro-rows over one block.
void attend_tiles(Tiles& tiles, const TiledAttention& job, const std::uint32_t* q, float* states,
                  const Range* seen, int rows) {
  const float scale_log2e = job.task->scale_log2e;
  const AttentionTile& block = job.block;
  Range any = {kBlock, 0};  // tokens that some row sees
  Range all = {0, kBlock};  // tokens that every row sees
  for (int m = 0; m < rows; ++m) {
    all.begin = seen[m].begin > all.begin ? seen[m].begin : all.begin;
    all.end = seen[m].end < all.end ? seen[m].end : all.end;
    if (seen[m].begin >= seen[m].end) continue;
    any.begin = seen[m].begin < any.begin ? seen[m].begin : any.begin;
    any.end = seen[m].end > any.end ? seen[m].end : any.end;
  }
  if (any.begin >= any.end) return;
  score_tiles(tiles, job, q, any.begin / kLanes, (any.end + kLanes - 1) / kLanes);
  if (job.task->cap > 0) {
    for (int m = 0; m < rows; ++m) {
      cap_scores(block.scores + m * kBlock, seen[m].begin, seen[m].end, job.task->cap_factor,
                 job.task->cap);
    }
  }
  float block_max[kTileRows];
  for (int m = 0; m < rows; ++m) block_max[m] = mask_and_max(block.scores + m * kBlock, seen[m]);
  for (int m = 0; m < rows; ++m) {
    raise_max(states + m * block.record, job.padded_dim, block_max[m], scale_log2e);
  }
  for (int m = 0; m < rows; ++m) {
    if (seen[m].begin >= seen[m].end) continue;
    float* softmax = states + m * block.record + job.padded_dim;  // m and l
    softmax[1] += weigh_short(block.scores + m * kBlock, block.weights + m * (kBlock / 2),
                              seen[m], softmax[0], scale_log2e);
  }
  // Whole groups that all see together; before and after them rows that see the same.
  const Range joint = {(all.begin + kGroupTokens - 1) / kGroupTokens * kGroupTokens,
                       all.end / kGroupTokens * kGroupTokens};
  const bool together = joint.begin < joint.end;
  const auto by_runs = [&](int begin, int end) {
    for (int m = 0; m < rows;) {
      int stop = m + 1;
      while (stop < rows && seen[stop].begin == seen[m].begin && seen[stop].end == seen[m].end) {
        ++stop;
      }
      value_rows(tiles, job, states, {m, stop},
                 {seen[m].begin > begin ? seen[m].begin : begin,
                  seen[m].end < end ? seen[m].end : end});
      m = stop;
    }
  };
  by_runs(0, together ? joint.begin : kBlock);
  if (!together) return;
  value_rows(tiles, job, states, {0, rows}, joint);
  by_runs(joint.end, kBlock);
}

/// Lays out a task's scratch and packs its queries into it; they are the first.
TiledAttention begin_tiled(const AttentionTask& task, std::int64_t micro_rows) {
  const KvLayout& layout = task.layout;
  TiledAttention job;
  job.task = &task;
  job.padded_dim = layout.padded_dim;
  AttentionTile& block = job.block;
  block.task = &task;
  block.layout = walked_layout(task);
  block.steps = (layout.head_dim + 1) / 2;
  block.query_chunk_words = 0;
  block.record = state_floats(layout.padded_dim);
  job.pairs = pairs_of_a_product(block.steps);
  job.query_words = (block.steps + 15) / 16 * 16;
  block.key_step_bytes = step_bytes_of(task);

  std::uint32_t* packed = task.scratch;
  // The last tile is loaded as 16 rows, be they there or not; so are its weights.
  std::uint32_t* rest = packed + (micro_rows + kTileRows - 1) * job.query_words;
  block.scores = reinterpret_cast<float*>(rest);
  rest += kTileRows * kBlock;
  block.weights = rest;
  rest += 2 * kTileRows * (kBlock / 2);
  block.gathered = reinterpret_cast<std::byte*>(rest);
  rest += kBlockWords * layout.padded_dim;
  block.turned = reinterpret_cast<std::byte*>(rest);
  rest += value_words(layout) * layout.padded_dim;
  job.cut_values = rest;
  rest += kBlock / 2 * layout.padded_dim;
  job.sums = reinterpret_cast<float*>(rest);

  begin_rows(task, [&](std::int64_t micro_row, const float* q) {
    pack_bf16(packed + micro_row * job.query_words, q, layout.head_dim, job.query_words);
  });
  return job;
}

/// Brings a block's K and V, a page and kv head each, nearer: part `part` of `parts`.
void prefetch_block(const AttentionTask& task, const std::int32_t* ids, std::int64_t tokens,
                    std::int64_t part, std::int64_t parts) {
  const KvLayout& layout = task.layout;
  const std::int64_t pages = (tokens + layout.page_tokens - 1) / layout.page_tokens;
  for (std::int64_t page = pages * part / parts; page < pages * (part + 1) / parts; ++page) {
    prefetch(task.pages + ids[page] * layout.page_stride, layout.head_stride);
  }
}

void attend_by_tiles(const AttentionTask& task) {
  const KvLayout& layout = task.layout;
  TiledAttention job = begin_tiled(task, (task.row_end - task.row_begin) * task.group);
  const auto pairs = static_cast<std::uint8_t>(job.pairs);
  const auto pair_bytes = static_cast<std::uint16_t>(job.pairs * 4);
  // 0 to 3: sums; 4, 5: Q and K; 6, 7: P and V
  Tiles tiles({{16, 16, 16, 16, 16, pairs, 16, kGroupTokens / 2},
               {64, 64, 64, 64, pair_bytes, 64, kGroupTokens * 2, 64}});
  for (std::int64_t i = 0; i < task.item_count; ++i) {
    const AttentionItem& item = task.items[i];
    const std::int64_t row_begin = larger(item.row_begin, task.row_begin);
    const std::int64_t row_end = smaller(item.row_end, task.row_end);
    if (row_begin >= row_end) continue;
    const std::int64_t count = (row_end - row_begin) * task.group;
    const std::int64_t first = (row_begin - task.row_begin) * task.group;
    for (std::int64_t begin = item.begin; begin < item.end; begin += kBlock) {
      const std::int64_t tokens = smaller(kBlock, item.end - begin);
      const std::int32_t* ids =
          task.page_ids + item.first_page + ((begin - item.begin) >> layout.page_shift);
      locate_block(job.block, ids, tokens, job.block.steps);
      const std::int64_t next_tokens = smaller(kBlock, item.end - begin - kBlock);
      const std::int64_t tiles_of_rows = (count + kTileRows - 1) / kTileRows;
      std::int64_t row = row_begin;
      std::int64_t head = 0;
      Range of_row = seen_by(task.positions[row], task.window, begin, tokens);
      for (std::int64_t micro_row = 0; micro_row < count; micro_row += kTileRows) {
        const auto rows = static_cast<int>(smaller(kTileRows, count - micro_row));
        if (next_tokens > 0) {
          prefetch_block(task, ids + (kBlock >> layout.page_shift), next_tokens,
                         micro_row / kTileRows, tiles_of_rows);
        }
        Range seen[kTileRows];
        for (int m = 0; m < rows; ++m, ++head) {
          if (head == task.group) {
            of_row = seen_by(task.positions[++row], task.window, begin, tokens);
            head = 0;
          }
          seen[m] = of_row;
        }
        attend_tiles(tiles, job, task.scratch + (first + micro_row) * job.query_words,
                     task.states + (first + micro_row) * job.block.record, seen, rows);
      }
    }
  }
}
