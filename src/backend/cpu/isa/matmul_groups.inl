// Product of grouped weights (quant/groups.h), for 1 to thousands of rows. Activations are rounded to 8 bits:
//   of each 32 of a row   d = max |x| / 127, code = x / d to the nearest
//   out += (scale * d) * sum of (code of x * code of w), group after group in ascending order,
//   and, with minimums, behind each four units those of their groups: minimum * (-d * sum of codes of x)
// Sums of codes are whole numbers and exact, so that neither the rows of a call nor the instruction decides
// about bits. Codes of w are stored from 0 on, so `lowest` times the sum of x's codes is added. Four bits may be
// entries of a table, which a shuffle looks up, with their signs where that is faster; the rest is as of 8. (Where there is
// no instruction for four bytes, a group's sums of nibbles fit 16 bits: 16 * 15 * 127 in each.)
// Floor: the larger of (weight bytes / read bandwidth) and (m n k / peak of the dot instruction).
// Included inside an unnamed namespace by the path's file.

/// What a byte of codes holds: one, two, or two entries of a table.
enum class Coded { kBytes, kNibbles, kEntries };

struct GroupTileArgs {
  const std::byte* codes;  // of the first unit and column
  std::int64_t unit_bytes;
  const float* scales;  // [units * groups][kPanel], of the first column
  const float* minimums;  // the same, or null
  const std::uint8_t* table;  // of entries
  const std::uint32_t* x;  // of the chunk and the first row
  float* acc;              // [M][kPanel]
  std::int64_t units;
  std::int64_t size;  // of a group
  const std::byte* prefetch;
  std::int64_t lines;  // prefetched a unit
};

/// Adds a word of weights, four values of k in each lane, of which x has a word.
template <Coded kCoded, int M, int N>
DENDRITE_INLINE void dot_words(Int (&sums)[M][N], const Int (&w)[N], const std::uint32_t* x) {
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    const Int value = Vector::all(static_cast<std::int32_t>(x[m * kGroupedWords]));
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      if constexpr (kCoded == Coded::kNibbles) {
        Vector::dot_nibbles(sums[m][c], w[c], value);
      } else if constexpr (kCoded == Coded::kEntries) {
        Vector::dot_entries(sums[m][c], w[c], value);
      } else {
        Vector::dot_bytes(sums[m][c], w[c], value);
      }
    }
  }
}

/// Minimums of groups [begin, end) of the chunk.
template <int M, int N>
DENDRITE_INLINE void add_minimums(const GroupTileArgs& args, std::int64_t begin, std::int64_t end) {
  const float* less = reinterpret_cast<const float*>(args.x) + kGroupedSums;
  Float acc[M][N];
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) acc[m][c] = Vector::load(args.acc + m * kPanel + c * kLanes);
  }
  for (std::int64_t group = begin; group < end; ++group) {
    Float minimums[N];
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      minimums[c] = Vector::load(args.minimums + group * kPanel + c * kLanes);
    }
    DENDRITE_UNROLL
    for (int m = 0; m < M; ++m) {
      const Float of_row = Vector::set1(less[m * kGroupedWords + group]);
      DENDRITE_UNROLL
      for (int c = 0; c < N; ++c) acc[m][c] = Vector::fma(minimums[c], of_row, acc[m][c]);
    }
  }
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) Vector::store(args.acc + m * kPanel + c * kLanes, acc[m][c]);
  }
}

/// M rows x N column vectors over the groups of a unit, whose codes are `codes`.
template <Coded kCoded, int M, int N>
DENDRITE_INLINE void add_unit(const GroupTileArgs& args, Vector::Table table,
                              const std::byte* codes, std::int64_t unit) {
  const std::int64_t groups_of_unit = kUnit / args.size;
  const std::int64_t words = args.size / (kCoded == Coded::kBytes ? 4 : 8);  // of weights a group
  for (std::int64_t part = 0; part < groups_of_unit; ++part) {
    const std::int64_t group = unit * groups_of_unit + part;
    const std::uint32_t* x = args.x + unit * 8 + part * args.size / 4;
    Int sums[M][N];
    DENDRITE_UNROLL
    for (int m = 0; m < M; ++m) {
      DENDRITE_UNROLL
      for (int c = 0; c < N; ++c) sums[m][c] = Vector::all(0);
    }
    DENDRITE_ROLLED  // a quarter of the code, and no slower
    for (std::int64_t word = 0; word < words; ++word, codes += kPanel * 4) {
      Int w[N];
      DENDRITE_UNROLL
      for (int c = 0; c < N; ++c) w[c] = Vector::load_int(codes + c * kLanes * 4);
      if constexpr (kCoded == Coded::kBytes) {
        dot_words<kCoded, M, N>(sums, w, x + word);
      } else {
        Int some[N];
        DENDRITE_UNROLL
        for (int c = 0; c < N; ++c) {
          some[c] = Vector::low_nibbles(w[c]);
          if constexpr (kCoded == Coded::kEntries) some[c] = Vector::look_up(table, some[c]);
        }
        dot_words<kCoded, M, N>(sums, some, x + 2 * word);
        DENDRITE_UNROLL
        for (int c = 0; c < N; ++c) {
          some[c] = Vector::high_nibbles(w[c]);
          if constexpr (kCoded == Coded::kEntries) some[c] = Vector::look_up(table, some[c]);
        }
        dot_words<kCoded, M, N>(sums, some, x + 2 * word + 1);
      }
    }
    const float* of_rows = reinterpret_cast<const float*>(args.x);
    const float* scales = args.scales + group * kPanel;
    DENDRITE_UNROLL
    for (int m = 0; m < M; ++m) {
      const Float d = Vector::set1(of_rows[m * kGroupedWords + kGroupedScales + unit]);
      const Int start = Vector::all(
          static_cast<std::int32_t>(args.x[m * kGroupedWords + kGroupedStarts + group]));
      float* acc = args.acc + m * kPanel;
      DENDRITE_UNROLL
      for (int c = 0; c < N; ++c) {
        const Float scale = Vector::mul(Vector::load(scales + c * kLanes), d);
        Int dot = sums[m][c];
        if constexpr (kCoded == Coded::kNibbles) dot = Vector::sum_of_nibbles(dot);
        if constexpr (kCoded != Coded::kEntries || !Vector::kSignedEntries) {
          dot = Vector::add_int(dot, start);
        }
        const Float sum = Vector::load(acc + c * kLanes);
        Vector::store(acc + c * kLanes, Vector::fma(Vector::to_float(dot), scale, sum));
      }
    }
  }
}

/// M rows x panel_columns_for(M) column vectors over the units of one chunk.
template <Coded kCoded, int M>
void group_tile(const GroupTileArgs& args) {
  constexpr int N = panel_columns_for(M);
  const std::int64_t groups_of_unit = kUnit / args.size;
  const Vector::Table table = Vector::load_table(args.table);
  const std::byte* prefetch = args.prefetch;
  for (std::int64_t from = 0; from < args.units; from += kUnitsAtOnce) {
    const std::int64_t to = smaller(from + kUnitsAtOnce, args.units);
    for (std::int64_t unit = from; unit < to; ++unit) {
      for (std::int64_t line = 0; line < args.lines; ++line, prefetch += 64) {
        __builtin_prefetch(prefetch);
      }
      add_unit<kCoded, M, N>(args, table, args.codes + unit * args.unit_bytes, unit);
    }
    if (args.minimums == nullptr) continue;
    add_minimums<M, N>(args, from * groups_of_unit, to * groups_of_unit);
  }
}

using GroupTileFunction = void (*)(const GroupTileArgs&);
struct GroupTileTable {
  GroupTileFunction of[kMaxTileRows];
};
template <Coded kCoded, int... kRow>
constexpr GroupTileTable group_tile_table(std::integer_sequence<int, kRow...>) {
  return {{group_tile<kCoded, kRow + 1>...}};
}
template <Coded kCoded>
constexpr GroupTileTable kGroupTiles =
    group_tile_table<kCoded>(std::make_integer_sequence<int, kMaxTileRows>());

DENDRITE_INLINE const GroupTileTable& tiles_of(const Groups& groups) {
  if (groups.bits == 8) return kGroupTiles<Coded::kBytes>;
  const bool entries = table_of(groups.codes) != nullptr;
  return entries ? kGroupTiles<Coded::kEntries> : kGroupTiles<Coded::kNibbles>;
}

void multiply_groups(const MatmulArgs& args, std::int64_t begin, std::int64_t end) {
  const Groups& groups = args.groups;
  const GroupsInfo info = info_of(groups);
  const GroupTileTable& functions = tiles_of(groups);
  const RowTiles tiles(args.block_rows);
  const std::int64_t lines_of_unit = info.chunk_bytes(kChunkUnits) / kChunkUnits / 64 + 1;
  const std::int64_t lines = (lines_of_unit + tiles.calls - 1) / tiles.calls;
  alignas(64) float acc[kMaxRowBlock * kPanel];
  alignas(64) float scales[2 * kChunkUnits * kPanel];
  alignas(64) float minimums[2 * kChunkUnits * kPanel];
  std::uint8_t table[16];
  for (int i = 0; i < 16; ++i) {
    const int entry = meaning_of(groups, i) - (Vector::kSignedEntries ? 0 : groups.lowest);
    table[i] = static_cast<std::uint8_t>(entry);
  }

  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::byte* chunk = args.weight + panel * info.panel_bytes(args.steps);
    __builtin_memset(acc, 0, static_cast<std::size_t>(args.block_rows * kPanel) * 4);
    for (std::int64_t first = 0; first < args.steps; first += kChunkUnits) {
      const std::int64_t units = smaller(kChunkUnits, args.steps - first);
      widen_scales(groups, info, chunk, units, scales, minimums);
      const std::byte* codes = chunk + info.codes_at(units);
      chunk += info.chunk_bytes(units);
      const std::uint32_t* x = args.packed + first / kChunkUnits * args.packed_rows * kGroupedWords;
      const std::byte* prefetch = chunk;
      std::int64_t row = 0;
      for (std::int64_t tile = 0; tile < tiles.tiles; ++tile) {
        const int rows = tiles.rows_of(tile);
        const int columns = panel_columns_for(rows);
        for (int column = 0; column < kPanelColumns; column += columns) {
          const std::int64_t lane = column * kLanes;
          functions.of[rows - 1]({codes + lane * 4, info.unit_bytes, scales + lane,
                              groups.minimums ? minimums + lane : nullptr, table,
                              x + row * kGroupedWords, acc + row * kPanel + lane, units, groups.size, prefetch,
                              lines});
          prefetch += units * lines * 64;
        }
        row += rows;
      }
    }
    store_panel(args, acc, panel);
  }
}

/// Up to 32 values of a row to a unit's words: codes, and where they belong the other numbers.
DENDRITE_INLINE void pack_unit(const Groups& groups, const float* x, std::int64_t count,
                               std::int64_t unit, std::uint32_t* out) {
  alignas(64) float values[kUnit] = {};
  __builtin_memcpy(values, x, static_cast<std::size_t>(count) * 4);
  const auto [d, inverse] = scale_of_unit(values);
  std::int32_t codes[kUnit];
  for (std::int64_t i = 0; i < kUnit; ++i) {
    const float shifted = values[i] * inverse + kRoundsWhole;
    std::uint32_t bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    codes[i] = static_cast<std::int32_t>(bits << 24) >> 24;
  }
  for (std::int64_t word = 0; word < kUnit / 4; ++word) {
    std::uint32_t bits = 0;
    for (std::int64_t i = 0; i < 4; ++i) {
      bits |= (static_cast<std::uint32_t>(codes[word * 4 + i]) & 255u) << (8 * i);
    }
    out[unit * 8 + word] = bits;
  }
  auto* numbers = reinterpret_cast<float*>(out);
  numbers[kGroupedScales + unit] = d;
  const std::int64_t count_of_groups = kUnit / groups.size;
  for (std::int64_t part = 0; part < count_of_groups; ++part) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < groups.size; ++i) sum += codes[part * groups.size + i];
    const std::int64_t group = unit * count_of_groups + part;
    out[kGroupedStarts + group] = static_cast<std::uint32_t>(groups.lowest * sum);
    numbers[kGroupedSums + group] = -d * static_cast<float>(sum);
  }
}

void pack_grouped_rows(const PackRowsArgs& args, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kChunk = kChunkUnits * kUnit;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = args.x + row * args.stride;
    std::uint32_t* out = args.packed + row * kGroupedWords;
    for (std::int64_t k = 0; k < args.cols; k += kChunk, out += args.packed_rows * kGroupedWords) {
      for (std::int64_t unit = 0; unit < kChunkUnits && k + unit * kUnit < args.cols; ++unit) {
        const std::int64_t first = k + unit * kUnit;
        pack_unit(args.groups, x + first, smaller(kUnit, args.cols - first), unit, out);
      }
    }
  }
}
