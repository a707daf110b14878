// Packed matrix product by tiles, for bf16 weights and activations rounded to bf16.
//   w    [n / 64][k / 32][4][16 pairs][16][2]   four tiles of B after one another
//   x    matmul.inl's; 16 rows of 16 steps are a tile of A
// An output is the sum over k in runs of 32, always in ascending order, whatever the rows are: a row's
// bits do not depend on them. A product takes as long for one row as for 16, and far less than its
// weights take to arrive. Floor: the larger of (weight bytes / read bandwidth) and (2 m n k / peak).
// Included inside an unnamed namespace by the path's file.

constexpr std::int64_t kTileRows = 16;
static_assert(kChunkSteps % kTileSteps == 0);
constexpr std::int64_t kTileBytes = kPanelTileBytes / 4;
/// Tiles of k that all rows visit before the next ones: 16 KB of weights, which stay in L1.
constexpr std::int64_t kTilesAtOnce = 4;

constexpr TileShapes kWholeTiles = {{16, 16, 16, 16, 16, 16, 16, 16},
                                    {64, 64, 64, 64, 64, 64, 64, 64}};

/// Where a tile of A begins: of tile `k` of the block's packed rows from `row` on.
DENDRITE_INLINE const std::uint32_t* tile_of_rows(const MatmulArgs& args, std::int64_t k,
                                                  std::int64_t row) {
  constexpr std::int64_t kTilesOfChunk = kChunkSteps / kTileSteps;
  return args.packed + k / kTilesOfChunk * args.packed_rows * kChunkSteps + row * kChunkSteps +
         k % kTilesOfChunk * kTileSteps;
}

/// Reads ahead by plain loads. The loads of a tile alone, with prefetches or without, leave a seventh of
/// the read bandwidth unused; these train the hardware's prefetcher, which brings the lines between.
DENDRITE_INLINE void fetch_tile(const std::byte* tile) {
  DENDRITE_UNROLL
  for (int line = 0; line < 16; line += 2) Tiles::fetch(tile + line * 64);
}

/// Tiles of a panel's weights: `count` (1..kTilesAtOnce) of k, from `first` on. What is coded is widened to `buffer`.
struct WeightTiles {
  const MatmulArgs& args;
  CodesInfo info = info_of_codes(args.groups);
  bool coded = args.groups.codes == GroupCodes::kE4M3;
  alignas(64) std::byte buffer[kTilesAtOnce * kPanelTileBytes];

  explicit WeightTiles(const MatmulArgs& of) : args(of) {}
  const std::byte* panel(std::int64_t i) const {
    const std::int64_t tiles = args.steps / kTileSteps;
    return args.weight + i * (coded ? info.panel_bytes(tiles) : tiles * kPanelTileBytes);
  }
  const std::byte* at(const std::byte* panel, std::int64_t first, std::int64_t count) {
    if (!coded) return panel + first * kPanelTileBytes;
    widen_coded(args.groups, {info, panel, first, count, count * CodesInfo::kUnitBytes, 64}, buffer,
                {kTileBytes, 64});
    return buffer;
  }
};

/// Up to 16 rows by one panel: all of k with the sums in tiles.
void multiply_few(Tiles& tiles, const MatmulArgs& args, WeightTiles& weights,
                  const std::byte* panel, float* acc) {
  const std::int64_t tiles_of_k = args.steps / kTileSteps;
  tiles.zero<0>();
  tiles.zero<1>();
  tiles.zero<2>();
  tiles.zero<3>();
  for (std::int64_t k = 0; k < tiles_of_k; ++k) {
    const std::byte* const w = weights.at(panel, k, 1);
    const std::byte* const next = weights.coded ? w : w + kPanelTileBytes;
    tiles.load<4>(tile_of_rows(args, k, 0), kChunkSteps * 4);
    tiles.load<5>(w, 64);
    tiles.multiply_add<0, 4, 5>();
    fetch_tile(next);
    tiles.load<6>(w + kTileBytes, 64);
    tiles.multiply_add<1, 4, 6>();
    fetch_tile(next + kTileBytes);
    tiles.load<7>(w + 2 * kTileBytes, 64);
    tiles.multiply_add<2, 4, 7>();
    fetch_tile(next + 2 * kTileBytes);
    tiles.load<5>(w + 3 * kTileBytes, 64);
    tiles.multiply_add<3, 4, 5>();
    fetch_tile(next + 3 * kTileBytes);
  }
  tiles.store<0>(acc, kPanel * 4);
  tiles.store<1>(acc + 16, kPanel * 4);
  tiles.store<2>(acc + 32, kPanel * 4);
  tiles.store<3>(acc + 48, kPanel * 4);
}

/// A part of a chunk's work: 32 rows (or 16) by half of a panel over up to kTilesAtOnce tiles of k.
struct TileVisit {
  const std::byte* w;
  const std::uint32_t* a;   // of the first tile of k
  std::int64_t next_a;      // words from there to the third tile's
  float* acc;               // [rows][kPanel]
  std::int64_t tiles_of_k;  // 1..kTilesAtOnce
  bool first;               // begins the sums
  const std::byte* prefetch;
  std::int64_t lines;       // of the next chunk, prefetched each tile of k
};

template <bool kTwo>
void visit_tiles(Tiles& tiles, const TileVisit& visit) {
  constexpr std::int64_t kAccBytes = kPanel * 4;
  constexpr std::int64_t kRowBytes = kChunkSteps * 4;
  float* below = visit.acc + kTileRows * kPanel;
  if (visit.first) {
    tiles.zero<0>();
    tiles.zero<1>();
    if constexpr (kTwo) {
      tiles.zero<2>();
      tiles.zero<3>();
    }
  } else {
    tiles.load<0>(visit.acc, kAccBytes);
    tiles.load<1>(visit.acc + 16, kAccBytes);
    if constexpr (kTwo) {
      tiles.load<2>(below, kAccBytes);
      tiles.load<3>(below + 16, kAccBytes);
    }
  }
  const std::byte* w = visit.w;
  const std::byte* prefetch = visit.prefetch;
  for (std::int64_t k = 0; k < visit.tiles_of_k; ++k, w += kPanelTileBytes) {
    const std::uint32_t* a = visit.a + k / 2 * visit.next_a + k % 2 * kTileSteps;
    for (std::int64_t line = 0; line < visit.lines; ++line, prefetch += 64) {
      __builtin_prefetch(prefetch, 0, 2); // to L2: L1 has the chunk at work
    }
    tiles.load<4>(a, kRowBytes);
    tiles.load<6>(w, 64);
    tiles.multiply_add<0, 4, 6>();
    tiles.load<7>(w + kTileBytes, 64);
    tiles.multiply_add<1, 4, 7>();
    if constexpr (kTwo) {
      tiles.load<5>(a + kTileRows * kChunkSteps, kRowBytes);
      tiles.multiply_add<2, 5, 6>();
      tiles.multiply_add<3, 5, 7>();
    }
  }
  tiles.store<0>(visit.acc, kAccBytes);
  tiles.store<1>(visit.acc + 16, kAccBytes);
  if constexpr (kTwo) {
    tiles.store<2>(below, kAccBytes);
    tiles.store<3>(below + 16, kAccBytes);
  }
}

/// More than 16 rows by one panel.
void multiply_many(Tiles& tiles, const MatmulArgs& args, WeightTiles& weights,
                   const std::byte* panel, float* acc) {
  static_assert(kChunkSteps == 2 * kTileSteps);
  const std::int64_t tiles_of_k = args.steps / kTileSteps;
  const std::int64_t visits = (args.packed_rows + 2 * kTileRows - 1) / (2 * kTileRows) * 2;
  TileVisit visit{};
  visit.next_a = args.packed_rows * kChunkSteps;
  visit.lines = (kPanelTileBytes / 64 + visits - 1) / visits;
  for (std::int64_t k = 0; k < tiles_of_k; k += kTilesAtOnce) {
    visit.tiles_of_k = smaller(kTilesAtOnce, tiles_of_k - k);
    visit.first = k == 0;
    const std::byte* const w = weights.at(panel, k, visit.tiles_of_k);
    visit.prefetch = weights.coded ? w : w + visit.tiles_of_k * kPanelTileBytes;
    for (std::int64_t row = 0; row < args.packed_rows; row += 2 * kTileRows) {
      visit.a = tile_of_rows(args, k, row);
      for (std::int64_t half = 0; half < 2; ++half) {
        visit.w = w + half * 2 * kTileBytes;
        visit.acc = acc + row * kPanel + half * 32;
        if (row + kTileRows < args.packed_rows) {
          visit_tiles<true>(tiles, visit);
        } else {
          visit_tiles<false>(tiles, visit);
        }
        visit.prefetch += visit.lines * visit.tiles_of_k * 64;
      }
    }
  }
}

void multiply_by_tiles(const MatmulArgs& args, std::int64_t begin, std::int64_t end) {
  alignas(64) float acc[kMaxTiledRows * kPanel];
  Tiles tiles(kWholeTiles);
  WeightTiles weights(args);
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::byte* const weight = weights.panel(panel);
    if (args.packed_rows <= kTileRows) {
      multiply_few(tiles, args, weights, weight, acc);
    } else {
      multiply_many(tiles, args, weights, weight, acc);
    }
    store_panel(args, acc, panel);
  }
}
