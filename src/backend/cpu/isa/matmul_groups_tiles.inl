// Product of grouped weights by tiles of bf16, for many rows: the same bits as matmul_groups.inl's. Codes of
// 8 bits are exact in bf16, and so are the sums of a group's 32 products in f32, which a tile's product forms
// without a rounding. They leave the tiles group after group, for the multiply-adds that bring them to the
// output. (The product of bytes is as fast for 32 of k, and its sums would have to become f32 first.)
//   x   [chunks][rows / 16] of codes [8 units][16][16 pairs], scales [8][16], and the sums of a unit's codes
//       times its scale, negated, [8][16]
// Weights of four units of a panel at a time are widened to tiles of B, 16 KB that stay in L1 while all rows
// visit them. Floor: the larger of (weight bytes / read bandwidth) and two or three vector operations for 16
// outputs of a group, one a cycle: beside AMX's instructions vectors have one port.
// Included inside an unnamed namespace by the path's file.

constexpr std::int64_t kGroupTileBytes = 1024;  // of A and of B, of a unit
constexpr std::int64_t kPanelTiles = kPanel / 16;
constexpr std::int64_t kTiledUnits = kChunkUnits * kTileRows;
constexpr std::int64_t kTiledScales = kChunkUnits * kTileRows * 16;
constexpr std::int64_t kTiledSums = kTiledScales + kTiledUnits;
static_assert(kTiledSums + kTiledUnits == kTileRows * kTiledGroupedWords);

/// 16 rows of four units by a panel.
struct GroupVisit {
  const std::byte* b;      // [4 units][4] tiles
  const std::uint32_t* a;  // [4] tiles
  const float* of_rows;    // [4][16], scales
  const float* less;       // the same, of minimums
  const float* scales;     // [4][kPanel]
  const float* minimums;   // the same
  float* acc;              // [16][kPanel]
};

/// Loads the weights of step `kStep` of a column of four tiles, the next column's for steps from 4 on.
template <int kStep>
DENDRITE_INLINE void load_weights(Tiles& tiles, const std::byte* b) {
  constexpr std::int64_t kUnitAt = kStep % kUnitsAtOnce;
  constexpr std::int64_t kColumn = kStep / kUnitsAtOnce;
  tiles.load<2 + kStep % 2>(b + (kUnitAt * kPanelTiles + kColumn) * kGroupTileBytes, 64);
}

/// Multiplies what was loaded for step `kStep`. The next step's weights are loaded before: a product that has
/// to wait for its own takes a third longer.
template <int kStep>
DENDRITE_INLINE void begin_sums(Tiles& tiles, const std::byte* b) {
  load_weights<kStep + 1>(tiles, b);
  tiles.zero<kStep % 2>();
  tiles.multiply_add<kStep % 2, 4 + kStep % static_cast<int>(kUnitsAtOnce), 2 + kStep % 2>();
}

DENDRITE_INLINE void add_sums(Float (&acc)[kTileRows], const float* sums, const float* of_rows,
                              const float* scales) {
  const Float scale = Vector::load(scales);
  DENDRITE_UNROLL
  for (int m = 0; m < kTileRows; ++m) {
    acc[m] = Vector::fma(Vector::load(sums + m * 16),
                         Vector::mul(scale, Vector::set1(of_rows[m])), acc[m]);
  }
}

DENDRITE_INLINE void add_minimums(Float (&acc)[kTileRows], const float* less,
                                       const float* minimums) {
  const Float minimum = Vector::load(minimums);
  DENDRITE_UNROLL
  for (int m = 0; m < kTileRows; ++m) acc[m] = Vector::fma(minimum, Vector::set1(less[m]), acc[m]);
}

/// What a product takes until its sums are in memory is hidden behind the two that were begun before: one is
/// being stored, the other is being added.
template <bool kMinimums>
void visit_groups(Tiles& tiles, const GroupVisit& visit) {
  alignas(64) float sums[kUnitsAtOnce][kTileRows * 16];
  tiles.load<4>(visit.a, 64);
  tiles.load<5>(visit.a + kGroupTileBytes / 4, 64);
  tiles.load<6>(visit.a + kGroupTileBytes / 2, 64);
  tiles.load<7>(visit.a + kGroupTileBytes / 4 * 3, 64);
  const std::byte* b = visit.b;
  load_weights<0>(tiles, b);
  begin_sums<0>(tiles, b);
  tiles.store<0>(sums[0], 64);
  begin_sums<1>(tiles, b);
  for (std::int64_t column = 0; column < kPanel; column += 16, b += kGroupTileBytes) {
    Float acc[kTileRows];
    DENDRITE_UNROLL
    for (int m = 0; m < kTileRows; ++m) {
      acc[m] = Vector::load(visit.acc + m * kPanel + column);
      __builtin_prefetch(visit.acc + (kTileRows + m) * kPanel + column);
      __builtin_prefetch(visit.a + kTileRows * kTiledGroupedWords + (column + m) * 16);
    }
    const auto add_sums_of = [&](int unit) __attribute__((always_inline)) {
      add_sums(acc, sums[unit], visit.of_rows + unit * kTileRows,
               visit.scales + unit * kPanel + column);
    };
    tiles.store<1>(sums[1], 64);
    begin_sums<2>(tiles, b);
    add_sums_of(0);
    tiles.store<0>(sums[2], 64);
    begin_sums<3>(tiles, b);
    add_sums_of(1);
    tiles.store<1>(sums[3], 64);
    if (column + 16 < kPanel) begin_sums<4>(tiles, b);
    add_sums_of(2);
    if (column + 16 < kPanel) {
      tiles.store<0>(sums[0], 64);
      begin_sums<5>(tiles, b);
    }
    add_sums_of(3);
    if constexpr (kMinimums) {
      for (std::int64_t unit = 0; unit < kUnitsAtOnce; ++unit) {
        add_minimums(acc, visit.less + unit * kTileRows,
                          visit.minimums + unit * kPanel + column);
      }
    }
    DENDRITE_UNROLL
    for (int m = 0; m < kTileRows; ++m) Vector::store(visit.acc + m * kPanel + column, acc[m]);
  }
}

/// Asks for what store_panel() will write of 16 rows.
DENDRITE_INLINE void fetch_outputs(const MatmulArgs& args, std::int64_t panel, std::int64_t row) {
  const std::int64_t end = smaller(row + kTileRows, args.block_rows);
  for (; row < end; ++row) {
    const float* out = args.out + row * args.out_stride + panel * kPanel;
    for (std::int64_t i = 0; i < kPanel; i += 16) __builtin_prefetch(out + i, 1);
  }
}

void multiply_groups_by_tiles(const MatmulArgs& args, std::int64_t begin, std::int64_t end) {
  const Groups& groups = args.groups;
  const GroupsInfo info = info_of(groups);
  alignas(64) float acc[kMaxTiledRows * kPanel];
  alignas(64) float scales[kChunkUnits * kPanel] = {};  // finite past the last unit, too
  alignas(64) float minimums[kChunkUnits * kPanel] = {};
  alignas(64) std::byte b[kUnitsAtOnce * kPanelTiles * kGroupTileBytes] = {};
  const auto visit_rows = groups.minimums ? visit_groups<true> : visit_groups<false>;
  Tiles tiles(kWholeTiles);
  const std::int64_t visits = args.packed_rows / kTileRows;
  const std::int64_t lines =
      (kUnitsAtOnce * info.chunk_bytes(kChunkUnits) / kChunkUnits / 64 + visits - 1) / visits;

  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::byte* chunk = args.weight + panel * info.panel_bytes(args.steps);
    __builtin_memset(acc, 0, static_cast<std::size_t>(args.packed_rows * kPanel) * 4);
    for (std::int64_t first = 0; first < args.steps; first += kChunkUnits) {
      const std::int64_t units = smaller(kChunkUnits, args.steps - first);
      widen_scales(groups, info, chunk, units, scales, minimums);
      const std::byte* const codes = chunk + info.codes_at(units);
      chunk += info.chunk_bytes(units);
      for (std::int64_t from = 0; from < units; from += kUnitsAtOnce) {
        const std::int64_t some = smaller(kUnitsAtOnce, units - from);
        for (std::int64_t i = 0; i < some; ++i) {
          widen_unit(groups, codes + (from + i) * info.unit_bytes,
                     b + i * kPanelTiles * kGroupTileBytes);
        }
        const std::byte* prefetch = codes + (from + some) * info.unit_bytes;
        for (std::int64_t row = 0; row < args.packed_rows; row += kTileRows) {
          for (std::int64_t line = 0; line < lines; ++line, prefetch += 64) {
            __builtin_prefetch(prefetch, 0, 2);
          }
          if (first + from + some == args.steps) fetch_outputs(args, panel, row);
          const std::uint32_t* x =
              args.packed + (first / kChunkUnits * args.packed_rows + row) * kTiledGroupedWords;
          const auto* numbers = reinterpret_cast<const float*>(x);
          visit_rows(tiles, {b, x + from * (kGroupTileBytes / 4),
                             numbers + kTiledScales + from * kTileRows,
                             numbers + kTiledSums + from * kTileRows, scales + from * kPanel,
                             minimums + from * kPanel, acc + row * kPanel});
        }
      }
    }
    store_panel(args, acc, panel);
  }
}

/// A unit's codes, which are what pack_unit() gives.
DENDRITE_INLINE Float codes_of(const float* values, const UnitScale& unit) {
  const Float large = Vector::set1(kRoundsWhole);
  const Float shifted =
      Vector::add(Vector::mul(Vector::load(values), Vector::set1(unit.inverse)), large);
  return Vector::sub(shifted, large);
}

/// pack_grouped_rows() for tiles. Past the last unit are zeros, up to what a visit reads.
void pack_tiled_rows(const PackRowsArgs& args, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kAtOnce = kUnitsAtOnce * kUnit;
  const std::int64_t end_of_k = (args.cols + kAtOnce - 1) / kAtOnce * kAtOnce;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = args.x + row * args.stride;
    std::uint32_t* out = args.packed + row / kTileRows * kTileRows * kTiledGroupedWords;
    const std::int64_t place = row % kTileRows;
    for (std::int64_t k = 0; k < end_of_k; k += kUnit) {
      const std::int64_t at = k / kUnit % kChunkUnits;
      alignas(64) float buffer[kUnit] = {};
      const float* values = x + k;
      if (k + kUnit > args.cols) {
        if (k < args.cols) {
          __builtin_memcpy(buffer, values, static_cast<std::size_t>(args.cols - k) * 4);
        }
        values = buffer;
      }
      const UnitScale unit = scale_of_unit(values);
      Float low = Vector::zero();
      Float high = Vector::zero();
      if (unit.scale == unit.scale) {  // else all that is multiplied with it is NaN, too
        low = codes_of(values, unit);
        high = codes_of(values + kLanes, unit);
      }
      round_pairs(out + at * (kGroupTileBytes / 4) + place * 16, low, high);
      auto* numbers = reinterpret_cast<float*>(out) + at * kTileRows + place;
      numbers[kTiledScales] = unit.scale;
      numbers[kTiledSums] = -unit.scale * Vector::sum(Vector::add(low, high));
      if (at == kChunkUnits - 1) out += args.packed_rows * kTiledGroupedWords;
    }
  }
}
