// Attention over a tree of pages: one task is (kv head) x (super-block) x (slice of rows).
//   micro-rows  (row, query head of the kv head): the rows of both products below
//   S = Q K^T   step: a pair of dims,   columns: tokens   K page  [head_dim / 2][page_tokens][2]
//   O = P V     step: a pair of tokens, columns: dims     V page  [page_tokens / 2][padded][2]
// Blocks of 128 tokens are the outer loop, tiles of micro-rows the inner one, so that a
// page is read from memory once for all rows of an item. Per micro-row a running softmax (m, l, o)
// over the super-block; token i of a block sits in lane i % lanes, and lanes are folded by a fixed
// tree. A row's visible range [lo, hi) of a block is cut out by selection: scores outside are set
// to -inf, and values outside are never multiplied (they may be NaN). So a tile's P V runs jointly
// only where all its rows see, and each row alone before and after; always in ascending order.
// Floor: 4 * micro-rows * tokens * head_dim / peak of the instruction, or the pages' bytes / read
// bandwidth. ops_bench prints the share. Source of the running softmax: Milakov & Gimelshein 2018,
// arXiv:1805.02867. Included inside an unnamed namespace by the path's file.

constexpr int kAttentionTileRows = kMaxTileRows;

/// Queries are packed as [chunks][micro-rows][kQueryChunk] words: as in a matmul, so that one
/// pointer and constant distances address a tile's rows.
constexpr std::int64_t kQueryChunk = 64;

/// S for M micro-rows and N column vectors from `column` on.
template <class F, int M, int N>
DENDRITE_NOINLINE void score_tile(const AttentionTile& tile, const typename F::Word* q,
                                  int column) {
  Float a[M][N];
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) a[m][c] = Vector::zero();
  }
  Scattered<N> columns;
  DENDRITE_UNROLL
  for (int c = 0; c < N; ++c) columns.column[c] = tile.key_column[column + c];
  columns.offset = 0;
  const std::int64_t step_bytes = tile.key_step_bytes;
  for (std::int64_t left = tile.steps; left > 0; left -= kQueryChunk / F::kWords) {
    const typename F::Word* x = q;
    for (std::int64_t step = smaller(left, kQueryChunk / F::kWords); step > 0; --step) {
      F::step(a, columns, x, kQueryChunk);
      columns.offset += step_bytes;
      x += F::kWords;
    }
    q += tile.query_chunk_words;
  }
  float* scores = tile.scores + column * kLanes;
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) Vector::store(scores + m * kBlock + c * kLanes, a[m][c]);
  }
}

/// o[M] += P V over tokens [begin, end), whole steps, for N column vectors from `column` on.
template <class F, int M, int N>
DENDRITE_NOINLINE void value_columns(const AttentionTile& tile, const typename F::Word* p,
                                     std::int64_t p_stride, float* o, Range tokens,
                                     std::int64_t column) {
  const KvLayout& layout = tile.layout;
  const std::int64_t step_bytes = layout.padded_dim * 4;
  const int page_shift = layout.page_shift;
  const std::int64_t of_column = column * F::kColumnBytes;
  Float a[M][N];
  o += column * kLanes;
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) a[m][c] = Vector::load(o + m * tile.record + c * kLanes);
  }
  const typename F::Word* x = p + tokens.begin / F::kValues * F::kWords;
  for (int token = tokens.begin; token < tokens.end;) {
    const int page = token >> page_shift;
    const int page_begin = page << page_shift;
    const int page_end = (page + 1) << page_shift;
    const int stop = page_end < tokens.end ? page_end : tokens.end;
    const std::byte* v =
        tile.values[page] + of_column + (token - page_begin) / F::kValues * step_bytes;
    for (; token < stop; token += F::kValues) {
      F::step(a, Adjacent{v}, x, p_stride);
      v += step_bytes;
      x += F::kWords;
    }
  }
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) Vector::store(o + m * tile.record + c * kLanes, a[m][c]);
  }
}

template <class F, int M>
void value_tile(const AttentionTile& tile, const typename F::Word* p, std::int64_t p_stride,
                float* o, Range tokens) {
  constexpr int kMax = columns_for(M);
  const std::int64_t columns = tile.layout.padded_dim / kLanes;
  std::int64_t column = 0;
  for (; column + kMax <= columns; column += kMax) {
    value_columns<F, M, kMax>(tile, p, p_stride, o, tokens, column);
  }
  if constexpr (kMax > 8) {
    for (; column + 8 <= columns; column += 8) {
      value_columns<F, M, 8>(tile, p, p_stride, o, tokens, column);
    }
  }
  if constexpr (kMax > 4) {
    for (; column + 4 <= columns; column += 4) {
      value_columns<F, M, 4>(tile, p, p_stride, o, tokens, column);
    }
  }
  if constexpr (kMax > 2) {
    for (; column + 2 <= columns; column += 2) {
      value_columns<F, M, 2>(tile, p, p_stride, o, tokens, column);
    }
  }
  for (; column < columns; ++column) {
    value_columns<F, M, 1>(tile, p, p_stride, o, tokens, column);
  }
}

/// One token of a pair alone, for one micro-row.
template <class F>
void value_half(const AttentionTile& tile, const typename F::Word* p, float* o, int token) {
  if constexpr (F::kValues == 2) {
    const KvLayout& layout = tile.layout;
    const int page = token >> layout.page_shift;
    const int pair = token / 2;
    const std::byte* v = tile.values[page] +
                         (token - (page << layout.page_shift)) / 2 * layout.padded_dim * 4;
    for (std::int64_t column = 0; column < layout.padded_dim; column += kLanes) {
      Float a[1][1] = {{Vector::load(o + column)}};
      F::half_step(a, Adjacent{v + column * 4}, p + pair * F::kWords, token % 2 != 0);
      Vector::store(o + column, a[0][0]);
    }
  }
}

/// Tokens [begin, end) for one micro-row, whatever their parity.
template <class F>
void value_row(const AttentionTile& tile, const typename F::Word* p, float* o, Range tokens) {
  if constexpr (F::kValues == 2) {
    if (tokens.begin >= tokens.end) return;
    if (tokens.begin % 2 != 0) value_half<F>(tile, p, o, tokens.begin++);
    const int even_end = tokens.end / 2 * 2;
    if (tokens.begin < even_end) value_tile<F, 1>(tile, p, 0, o, {tokens.begin, even_end});
    if (tokens.begin < tokens.end && tokens.end % 2 != 0) value_half<F>(tile, p, o, even_end);
  } else {
    if (tokens.begin < tokens.end) value_tile<F, 1>(tile, p, 0, o, tokens);
  }
}

/// The largest score that a micro-row sees in a block; scores outside `seen` become -inf.
DENDRITE_INLINE float mask_and_max(float* scores, Range seen) {
  const int first = seen.begin / kLanes;
  const int last = (seen.end + kLanes - 1) / kLanes;
  Float maxima = Vector::set1(-__builtin_inff());
  for (int v = first; v < last; ++v) {
    Float s = Vector::load(scores + v * kLanes);
    if (v * kLanes < seen.begin || (v + 1) * kLanes > seen.end) {
      s = Vector::keep_lanes(s, seen.begin - v * kLanes, seen.end - v * kLanes);
      Vector::store(scores + v * kLanes, s);
    }
    maxima = Vector::max(maxima, s);
  }
  return Vector::largest(maxima);
}

/// Brings a state (o, m, l) to a new maximum.
DENDRITE_INLINE void raise_max(float* state, std::int64_t padded_dim, float block_max,
                               float scale_log2e) {
  float& m = state[padded_dim];
  if (!(block_max > m)) return;
  float factors[kLanes];
  Vector::store(factors, exp2_vector(Vector::set1((m - block_max) * scale_log2e)));
  const Float factor = Vector::set1(factors[0]);
  state[padded_dim + 1] *= factors[0];
  for (std::int64_t i = 0; i < padded_dim; i += kLanes) {
    Vector::store(state + i, Vector::mul(Vector::load(state + i), factor));
  }
  m = block_max;
}

DENDRITE_INLINE void put_weights(float* weights, int v, Float e) {
  Vector::store(weights + v * kLanes, e);
}
#if defined(DENDRITE_ROUNDS_BF16)
DENDRITE_INLINE void put_weights(std::uint32_t* weights, int v, Float e) {
  round_pairs(weights + v * kLanes / 2, e);
}
#endif

/// Weights e^(s - m) of a micro-row's scores in column vectors [begin, end), f32 (they may take the scores'
/// place) or pairs of bf16; their sum. `exp2`: 2^x, as exact as the weights need.
template <class Exp2, class Weight>
DENDRITE_INLINE float exponentiate(Exp2 exp2, const float* scores, Weight* weights, int begin,
                                   int end, float m, float scale_log2e) {
  const Float scale = Vector::set1(scale_log2e);
  const Float shift = Vector::set1(-(m * scale_log2e));
  Float sum = Vector::zero();
  for (int v = begin; v < end; ++v) {
    const Float e = exp2(Vector::fma(Vector::load(scores + v * kLanes), scale, shift));
    sum = Vector::add(sum, e);
    put_weights(weights, v, e);
  }
  return Vector::sum(sum);
}

template <class Weight>
DENDRITE_NOINLINE float weigh_row(const float* scores, Weight* weights, Range seen, float m,
                                  float scale_log2e) {
  return exponentiate([](Float x) { return exp2_vector(x); }, scores, weights, seen.begin / kLanes,
                      (seen.end + kLanes - 1) / kLanes, m, scale_log2e);
}

/// Where a tile's weights go: the dot format's are pairs of bf16, others take the scores' place.
template <class F>
DENDRITE_INLINE typename F::Word* weights_of(const AttentionTile& tile) {
  if constexpr (F::kFormat == StepFormat::kDotBF16) {
    return tile.weights;
  } else {
    return tile.scores;
  }
}

/// One tile of M micro-rows over one block.
template <class F, int M>
void attend_tile(const AttentionTile& tile, const typename F::Word* q, float* states,
                 const Range* seen) {
  const AttentionTask& task = *tile.task;
  Range any = seen[0];  // tokens that some row sees
  Range all = seen[0];  // tokens that every row sees
  for (int m = 1; m < M; ++m) {
    any = {seen[m].begin < any.begin ? seen[m].begin : any.begin,
           seen[m].end > any.end ? seen[m].end : any.end};
    all = {seen[m].begin > all.begin ? seen[m].begin : all.begin,
           seen[m].end < all.end ? seen[m].end : all.end};
  }
  constexpr int N = columns_for(M);
  for (int column = any.begin / kLanes / N * N; column * kLanes < any.end; column += N) {
    score_tile<F, M, N>(tile, q, column);
  }
  // Row by row in each pass: the passes' folds over lanes are chains that overlap across rows.
  const std::int64_t padded_dim = task.layout.padded_dim;
  if (task.cap > 0) {
    for (int m = 0; m < M; ++m) {
      cap_scores(tile.scores + m * kBlock, seen[m].begin, seen[m].end, task.cap_factor, task.cap);
    }
  }
  float block_max[M];
  for (int m = 0; m < M; ++m) block_max[m] = mask_and_max(tile.scores + m * kBlock, seen[m]);
  for (int m = 0; m < M; ++m) {
    raise_max(states + m * tile.record, padded_dim, block_max[m], task.scale_log2e);
  }
  constexpr std::int64_t p_stride = F::kFormat == StepFormat::kDotBF16 ? kBlock / 2 : kBlock;
  typename F::Word* const p = weights_of<F>(tile);
  for (int m = 0; m < M; ++m) {
    if (seen[m].begin >= seen[m].end) continue;
    float* state = states + m * tile.record;
    state[padded_dim + 1] += weigh_row(tile.scores + m * kBlock, p + m * p_stride, seen[m],
                                       state[padded_dim], task.scale_log2e);
  }

  const Range joint = {(all.begin + F::kValues - 1) / F::kValues * F::kValues,
                       all.end / F::kValues * F::kValues};
  if (M == 1 || joint.begin >= joint.end) {
    for (int m = 0; m < M; ++m) {
      value_row<F>(tile, p + m * p_stride, states + m * tile.record, seen[m]);
    }
    return;
  }
  for (int m = 0; m < M; ++m) {
    value_row<F>(tile, p + m * p_stride, states + m * tile.record, {seen[m].begin, joint.begin});
  }
  value_tile<F, M>(tile, p, p_stride, states, joint);
  for (int m = 0; m < M; ++m) {
    value_row<F>(tile, p + m * p_stride, states + m * tile.record, {joint.end, seen[m].end});
  }
}

template <class F>
struct AttendTable {
  void (*of[kAttentionTileRows])(const AttentionTile&, const typename F::Word*, float*,
                                 const Range*);
};
template <class F, int... kRow>
constexpr AttendTable<F> attend_table(std::integer_sequence<int, kRow...>) {
  return {{attend_tile<F, kRow + 1>...}};
}
template <class F>
constexpr AttendTable<F> kAttendTiles =
    attend_table<F>(std::make_integer_sequence<int, kAttentionTileRows>());

/// Begins a task: gives each micro-row's query to `pack` with its number, and clears its state.
template <class Pack>
DENDRITE_INLINE void begin_rows(const AttentionTask& task, Pack pack) {
  const KvLayout& layout = task.layout;
  const std::int64_t record = state_floats(layout.padded_dim);
  std::int64_t micro_row = 0;
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    const float* q = task.q + row * task.q_stride;
    for (std::int64_t head = 0; head < task.group; ++head, q += layout.head_dim, ++micro_row) {
      pack(micro_row, q);
      float* state = task.states + micro_row * record;
      __builtin_memset(state, 0, static_cast<std::size_t>(record) * sizeof(float));
      state[layout.padded_dim] = -__builtin_inff();
    }
  }
}

/// A micro-row's query in chunks that are `chunk_words` apart.
template <class F>
DENDRITE_INLINE void pack_query(std::uint32_t* chunk, const float* q, std::int64_t dim,
                                std::int64_t chunk_words) {
  constexpr std::int64_t kChunkValues = kQueryChunk / F::kWords * F::kValues;
  for (std::int64_t k = 0; k < dim; k += kChunkValues, chunk += chunk_words) {
    const std::int64_t count = smaller(dim - k, kChunkValues);
    if constexpr (F::kFormat == StepFormat::kDotBF16) {
      pack_bf16(chunk, q + k, count, (count + 1) / 2);
    } else {
      pack_f32(chunk, q + k, count, (count + F::kValues - 1) / F::kValues * F::kWords);
    }
  }
}

template <class F>
void attend(const AttentionTask& task) {
  const KvLayout& layout = task.layout;
  const std::int64_t micro_rows = (task.row_end - task.row_begin) * task.group;
  const std::int64_t steps = (layout.head_dim + F::kValues - 1) / F::kValues;
  const std::int64_t chunks = (steps * F::kWords + kQueryChunk - 1) / kQueryChunk;
  AttentionTile tile;
  tile.task = &task;
  tile.layout = walked_layout(task);
  tile.steps = steps;
  tile.query_chunk_words = micro_rows * kQueryChunk;
  const auto* queries = reinterpret_cast<const typename F::Word*>(task.scratch);
  std::uint32_t* after_queries = task.scratch + chunks * tile.query_chunk_words;
  tile.scores = reinterpret_cast<float*>(after_queries);
  tile.weights = after_queries + kAttentionTileRows * kBlock;
  tile.gathered = reinterpret_cast<std::byte*>(tile.weights + kAttentionTileRows * kBlock / 2);
  tile.turned = tile.gathered + kBlockWords * layout.padded_dim * 4;
  tile.key_step_bytes = step_bytes_of(task);
  tile.record = state_floats(layout.padded_dim);
  begin_rows(task, [&](std::int64_t micro_row, const float* q) {
    pack_query<F>(task.scratch + micro_row * kQueryChunk, q, layout.head_dim,
                  tile.query_chunk_words);
  });

  for (std::int64_t i = 0; i < task.item_count; ++i) {
    const AttentionItem& item = task.items[i];
    const std::int64_t row_begin = larger(item.row_begin, task.row_begin);
    const std::int64_t row_end = smaller(item.row_end, task.row_end);
    if (row_begin >= row_end) continue;
    const std::int64_t count = (row_end - row_begin) * task.group;
    const std::int64_t first = (row_begin - task.row_begin) * task.group;
    const std::int64_t tiles = (count + kAttentionTileRows - 1) / kAttentionTileRows;
    const std::int64_t base_rows = count / tiles;
    const std::int64_t larger_tiles = count % tiles;
    for (std::int64_t block = item.begin; block < item.end; block += kBlock) {
      const std::int64_t tokens = smaller(kBlock, item.end - block);
      const std::int32_t* ids =
          task.page_ids + item.first_page + ((block - item.begin) >> layout.page_shift);
      locate_block(tile, ids, tokens, steps);
      std::int64_t micro_row = 0;
      for (std::int64_t t = 0; t < tiles; ++t) {
        const auto rows = static_cast<int>(base_rows + (t < larger_tiles ? 1 : 0));
        Range seen[kAttentionTileRows];
        for (int m = 0; m < rows; ++m) {
          seen[m] = seen_by(task.positions[row_begin + (micro_row + m) / task.group], task.window,
                            block, tokens);
        }
        const typename F::Word* q = queries + (first + micro_row) * kQueryChunk;
        float* states = task.states + (first + micro_row) * tile.record;
        kAttendTiles<F>.of[rows - 1](tile, q, states, seen);
        micro_row += rows;
      }
    }
  }
}

/// Partial states of ascending super-blocks -> out. A super-block of which a row saw nothing has
/// m = -inf and is skipped.
void fold(const FoldArgs& args, std::int64_t rows) {
  const std::int64_t record = state_floats(args.padded_dim);
  float o[kMaxHeadDim];
  for (std::int64_t i = 0; i < rows * args.group; ++i) {
    float m = -__builtin_inff();
    float l = 0;
    for (std::int64_t j = 0; j < args.padded_dim; ++j) o[j] = 0;
    for (std::int64_t s = 0; s < args.super_blocks; ++s) {
      const float* state = args.states + s * args.super_stride + i * record;
      const float part_m = state[args.padded_dim];
      const float part_l = state[args.padded_dim + 1];
      if (!(part_m > -__builtin_inff())) continue;
      const float top = m > part_m ? m : part_m;
      float factors[kLanes];
      Vector::store(factors, exp2_vector(Vector::set1((m - top) * args.scale_log2e)));
      const Float old_factor = Vector::set1(factors[0]);
      l *= factors[0];
      Vector::store(factors, exp2_vector(Vector::set1((part_m - top) * args.scale_log2e)));
      const Float new_factor = Vector::set1(factors[0]);
      l += part_l * factors[0];
      for (std::int64_t j = 0; j < args.padded_dim; j += kLanes) {
        Vector::store(o + j, Vector::fma(Vector::load(state + j), new_factor,
                                         Vector::mul(Vector::load(o + j), old_factor)));
      }
      m = top;
    }
    float* out = args.out + i / args.group * args.out_stride + i % args.group * args.head_dim;
    const float* sink = args.sinks == nullptr ? nullptr : args.sinks + i % args.group;
    const float factor = output_factor(m, l, args.scale_log2e, sink);
    for (std::int64_t j = 0; j < args.head_dim; ++j) out[j] = o[j] * factor;
  }
}
