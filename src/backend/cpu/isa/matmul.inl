// Packed matrix product: out[m, n] = sum over k of x[m, k] * w[n, k], for 1 to thousands of rows.
//   w    [n / 64][k / v][64][v]   v = 2 for bf16, 1 for f32 and f16; zero-padded
//   x    [chunks][rows][32 steps] 32-bit words: a tile's rows are a fixed distance apart, so one
//        pointer addresses all of them, and packing is a straight conversion
// A panel is walked in chunks of 32 steps (8 KB, in L1). All row tiles visit a chunk before the
// next one, and the next chunk's prefetch is spread evenly over the tiles: so memory time and
// arithmetic overlap instead of adding up.
// Floor: the larger of (weight bytes / read bandwidth) and (2 m n k / peak of the instruction).
// ops_bench prints both shares. Included inside an unnamed namespace by the path's file.

constexpr int kPanelColumns = kPanel / kLanes;
constexpr int panel_columns_for(int rows) {
  return columns_for(rows) < kPanelColumns ? columns_for(rows) : kPanelColumns;
}

struct TileArgs {
  const std::byte* w;
  const std::uint32_t* x;
  float* acc;  // [M][kPanel]
  std::int64_t steps;
  const std::byte* prefetch;
  std::int64_t line_bytes;  // from a line to the next: 64, less where fewer are to come
  bool first;
};

/// M rows x panel_columns_for(M) column vectors over one chunk; kLines cache lines (0, 1, 2, 4, 8 or
/// 16) are prefetched every four steps, as evenly as can be: bursts would fill the line buffers.
template <class F, int M, int kLines>
void matmul_tile(const TileArgs& args) {
  constexpr int N = panel_columns_for(M);
  constexpr std::int64_t kStepBytes = info_of(F::kFormat).panel_bytes;
  constexpr int kLinesAtOnce = (kLines + 3) / 4;
  constexpr std::int64_t kEvery = kLines == 1 ? 4 : kLines == 2 ? 2 : 1;
  Float a[M][N];
  float* acc = args.acc;
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      a[m][c] = args.first ? Vector::zero() : Vector::load(acc + m * kPanel + c * kLanes);
    }
  }
  const std::byte* w = args.w;
  const auto* x = reinterpret_cast<const typename F::Word*>(args.x);
  const std::byte* prefetch = args.prefetch;
  constexpr std::int64_t x_stride = kChunkSteps * F::kWords;
  for (std::int64_t step = args.steps; step > 0; --step) {
    if (step % kEvery == 0) {
      DENDRITE_UNROLL
      for (int line = 0; line < kLinesAtOnce; ++line) __builtin_prefetch(prefetch + line * 64);
      prefetch += kLinesAtOnce * args.line_bytes;
    }
    F::step(a, Adjacent{w}, x, x_stride);
    w += kStepBytes;
    x += F::kWords;
  }
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) Vector::store(acc + m * kPanel + c * kLanes, a[m][c]);
  }
}

/// Shares `total` lines every four steps (8 or 16) out to the calls of a chunk: a power of two each,
/// the first calls one power more.
struct PrefetchShares {
  std::int64_t lines = 0;  // of a later call; 0 when there are more calls than lines
  std::int64_t doubled = 0;
  int index = 0;
  constexpr PrefetchShares(std::int64_t calls, std::int64_t total) {
    if (calls > total) {
      doubled = total;
      return;
    }
    for (lines = 1, index = 1; lines * 2 * calls <= total; lines *= 2) ++index;
    doubled = (total - lines * calls) / lines;
  }
  constexpr DENDRITE_INLINE int index_of(std::int64_t call) const {
    return index + (call < doubled ? 1 : 0);
  }
  DENDRITE_INLINE std::int64_t lines_of(std::int64_t call) const {
    return call >= doubled ? lines : lines == 0 ? 1 : 2 * lines;
  }
};

/// A block's rows in tiles, which differ by one row at most, the taller ones first.
struct RowTiles {
  std::int64_t tiles = 0;
  std::int64_t base_rows = 0;
  std::int64_t larger = 0;  // tiles that have one row more
  std::int64_t calls = 0;   // of matmul_tile, for a chunk
  constexpr explicit RowTiles(std::int64_t rows) {
    const std::int64_t most = max_tile_rows_for(rows);
    tiles = (rows + most - 1) / most;
    base_rows = rows / tiles;
    larger = rows % tiles;
    const int base = rows_of(tiles);
    calls = larger * calls_of(base + 1) + (tiles - larger) * calls_of(base);
  }
  constexpr DENDRITE_INLINE int rows_of(std::int64_t tile) const {
    return static_cast<int>(base_rows + (tile < larger ? 1 : 0));
  }
  static constexpr std::int64_t calls_of(int rows) { return kPanelColumns / panel_columns_for(rows); }
};

using TileFunction = void (*)(const TileArgs&);

/// [rows - 1][0 for no line, else 1 + log2 of the lines every four steps]. Where steps are larger,
/// what 16 lines leave out comes without being asked for.
template <class F>
struct TileTable {
  static constexpr std::int64_t kWanted = 4 * info_of(F::kFormat).panel_bytes / 64;
  static constexpr std::int64_t kLines = kWanted < 16 ? kWanted : 16;
  TileFunction of[kMaxTileRows][6];
};

/// Which of them some number of rows calls for: two thirds are code that nobody would run.
struct TileUses {
  bool of[kMaxTileRows][6] = {};
  constexpr explicit TileUses(std::int64_t lines) {
    for (std::int64_t rows = 1; rows <= kMaxRowBlock; ++rows) {
      const RowTiles tiles(rows);
      const PrefetchShares shares(tiles.calls, lines);
      std::int64_t call = 0;
      for (std::int64_t tile = 0; tile < tiles.tiles; ++tile) {
        const int m = tiles.rows_of(tile);
        for (std::int64_t i = 0; i < RowTiles::calls_of(m); ++i, ++call) {
          of[m - 1][shares.index_of(call)] = true;
        }
      }
    }
  }
};
template <class F>
constexpr TileUses kTileUses{TileTable<F>::kLines};

template <class F, int M, int kIndex>
constexpr TileFunction tile_function() {
  if constexpr (kTileUses<F>.of[M - 1][kIndex]) {
    return matmul_tile<F, M, kIndex == 0 ? 0 : 1 << (kIndex - 1)>;
  } else {
    return nullptr;
  }
}
template <class F, int... kRow>
constexpr TileTable<F> tile_table(std::integer_sequence<int, kRow...>) {
  return {{{tile_function<F, kRow + 1, 0>(), tile_function<F, kRow + 1, 1>(),
            tile_function<F, kRow + 1, 2>(), tile_function<F, kRow + 1, 3>(),
            tile_function<F, kRow + 1, 4>(), tile_function<F, kRow + 1, 5>()}...}};
}
template <class F>
constexpr TileTable<F> kTiles = tile_table<F>(std::make_integer_sequence<int, kMaxTileRows>());

/// Adds the panel's sums to the output rows.
DENDRITE_INLINE void store_panel(const MatmulArgs& args, const float* acc, std::int64_t panel) {
  const std::int64_t column = panel * kPanel;
  const std::int64_t count = smaller(kPanel, args.rows_of_weight - column);
  const std::int64_t vectors = count / kLanes;
  for (std::int64_t row = 0; row < args.block_rows; ++row, acc += kPanel) {
    float* out = args.out + row * args.out_stride + column;
    for (std::int64_t v = 0; v < vectors; ++v) {
      const std::int64_t i = v * kLanes;
      Float sum = Vector::load(acc + i);
      if (args.bias != nullptr) sum = Vector::add(sum, Vector::load(args.bias + column + i));
      if (args.add) sum = Vector::add(Vector::load(out + i), sum);
      Vector::store(out + i, sum);
    }
    for (std::int64_t i = vectors * kLanes; i < count; ++i) {
      float sum = acc[i];
      if (args.bias != nullptr) sum += args.bias[column + i];
      out[i] = args.add ? out[i] + sum : sum;
    }
  }
}

/// Of coded weights a chunk is widened once, for all row tiles.
template <class F>
void matmul_panels(const MatmulArgs& args, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kStepBytes = info_of(F::kFormat).panel_bytes;
  constexpr std::int64_t kChunkWords = kChunkSteps * F::kWords;
  constexpr std::int64_t kStepsOfUnit = kUnit / 2;
  alignas(64) float acc[kMaxRowBlock * kPanel];
  alignas(64) std::byte widened[kChunkSteps * kStepBytes];
  const bool coded = F::kValues == 2 && args.groups.codes == GroupCodes::kE4M3;
  const std::int64_t line_bytes = coded ? 16 : 64;
  const CodesInfo info = info_of_codes(args.groups);
  const std::int64_t panel_bytes =
      coded ? info.panel_bytes(args.steps / kStepsOfUnit) : args.steps * kStepBytes;

  const RowTiles tiles(args.block_rows);
  const PrefetchShares shares(tiles.calls, TileTable<F>::kLines);

  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::byte* weight = args.weight + panel * panel_bytes;
    for (std::int64_t step = 0; step < args.steps; step += kChunkSteps) {
      const std::int64_t steps = smaller(kChunkSteps, args.steps - step);
      const std::byte* chunk = weight + step * kStepBytes;
      const std::uint32_t* x = args.packed + step / kChunkSteps * args.packed_rows * kChunkWords;
      const std::byte* prefetch = chunk + (tiles.calls == 1 ? 4096 : steps * kStepBytes);
      if (coded) {  // widening prefetches the next chunk's second half, the tiles the first one after it
        const std::int64_t unit = step / kStepsOfUnit;
        widen_coded(args.groups,
                    {info, weight, unit, steps / kStepsOfUnit, 3 * CodesInfo::kUnitBytes, 32}, widened,
                    kPairSteps);
        chunk = widened;
        prefetch = weight + info.codes_at(unit) + 4 * CodesInfo::kUnitBytes;
      }
      std::int64_t call = 0;
      std::int64_t row = 0;
      for (std::int64_t tile = 0; tile < tiles.tiles; ++tile) {
        const int rows = tiles.rows_of(tile);
        const int columns = panel_columns_for(rows);
        for (int column = 0; column < kPanelColumns; column += columns, ++call) {
          kTiles<F>.of[rows - 1][shares.index_of(call)](
              {chunk + column * F::kColumnBytes, x + row * kChunkWords,
               acc + row * kPanel + column * kLanes, steps, prefetch, line_bytes, step == 0});
          prefetch += shares.lines_of(call) * line_bytes / 4 * steps;
        }
        row += rows;
      }
    }
    store_panel(args, acc, panel);
  }
}

/// One chunk's words of one row: `count` values (fewer than a whole chunk at the end of k; the rest
/// is zero, as a weight's padding is).
DENDRITE_INLINE void pack_f32(std::uint32_t* out, const float* x, std::int64_t count,
                              std::int64_t capacity) {
  __builtin_memcpy(out, x, static_cast<std::size_t>(count) * 4);
  for (std::int64_t i = count; i < capacity; ++i) out[i] = 0;
}
DENDRITE_INLINE void pack_bf16(std::uint32_t* out, const float* x, std::int64_t count,
                               std::int64_t capacity) {
  std::int64_t i = 0;  // values
#if defined(DENDRITE_ROUNDS_BF16)
  for (; i + 32 <= count; i += 32) {
    round_pairs(out + i / 2, Vector::load(x + i), Vector::load(x + i + 16));
  }
#endif
  for (; i < count; i += 2) {
    const std::uint32_t high = i + 1 < count ? bf16_bits(x[i + 1]) : 0;
    out[i / 2] = bf16_bits(x[i]) | high << 16;
  }
  for (i /= 2; i < capacity; ++i) out[i] = 0;
}

void pack_rows(const PackRowsArgs& args, std::int64_t begin, std::int64_t end) {
  const FormatInfo info = info_of(args.format);
  const std::int64_t words = kChunkSteps * info.words;
  const std::int64_t values = kChunkSteps * info.values;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = args.x + row * args.stride;
    std::uint32_t* out = args.packed + row * words;
    for (std::int64_t k = 0; k < args.cols; k += values, out += args.packed_rows * words) {
      const std::int64_t count = smaller(values, args.cols - k);
      if (args.format == StepFormat::kDotBF16) {
        pack_bf16(out, x + k, count, words);
      } else {
        pack_f32(out, x + k, count, words);
      }
    }
  }
}
