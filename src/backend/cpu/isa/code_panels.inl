// Panels of E4M3 with scales (CodesInfo) to the bf16 that they mean, a piece at a time, which products then
// multiply as they multiply bf16 weights: the bits are those of weights that were widened when they were loaded.
// Rows of 16 codes look up the bytes of their row's table, which a multiplication and two roundings a value would
// make otherwise, at twice the time; four vectors of them are transposed to pairs of k side by side. Codes below 16 take
// twice the look-ups, and most rows of 16 have none: one or two of 10,000 weights are that small beside the largest.
// Floor: the codes' bytes over the read bandwidth; 15 operations for two vectors of pairs, of which 8 are shuffles.
// Included inside an unnamed namespace by the path's file.

/// A panel's units of 32 k, from one on. For 64 bytes of codes a line is prefetched, `ahead` further and each
/// `prefetched` bytes after the one before: what they leave out, the product asks for.
struct CodedUnits {
  const CodesInfo& info;
  const std::byte* panel;
  std::int64_t first;
  std::int64_t units;
  std::int64_t ahead;
  std::int64_t prefetched;
};

/// Where pairs go: 16 rows of a step are 64 bytes.
struct PairOrder {
  std::int64_t rows_bytes;  // from 16 rows to the next
  std::int64_t step_bytes;
};
constexpr PairOrder kPairSteps = {64, kPanel * 4};
constexpr std::int64_t kPairUnitBytes = kUnit * kPanel * 2;

/// 16 k of kLanes rows; `tables` are theirs, or one for all. kBelow16: some codes are.
template <bool kOfRows, bool kPowers, bool kBelow16>
DENDRITE_INLINE void widen_rows(const std::byte* codes, const std::byte* tables, Int exponents,
                                std::byte* out, std::int64_t step_bytes) {
  Int low[4];
  Int high[4];
  DENDRITE_UNROLL
  for (int v = 0; v < 4; ++v) {
    Int table[kTablesOfScale];
    DENDRITE_UNROLL
    for (int i = 0; i < (kBelow16 ? kTablesOfScale : 2); ++i) {
      table[i] = kOfRows ? Vector::load_int(tables + (v * kTablesOfScale + i) * 64)
                         : Vector::load_repeated(tables + i * 16);
    }
    Vector::widen_codes<kBelow16>(Vector::load_int(codes + v * 64), table, low[v], high[v]);
  }
  Vector::transpose(low);
  Vector::transpose(high);
  DENDRITE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (kPowers) {
      low[i] = Vector::add_exponents<kBelow16>(low[i], exponents);
      high[i] = Vector::add_exponents<kBelow16>(high[i], exponents);
    }
    Vector::store_int(out + i * step_bytes, low[i]);
    Vector::store_int(out + (i + 4) * step_bytes, high[i]);
  }
}

/// A unit's exponents in both halves of a word each.
DENDRITE_INLINE void widen_exponents(const std::byte* exponents, std::uint32_t* out) {
  for (std::int64_t i = 0; i < kPanel; ++i) {
    out[i] = ((static_cast<std::uint32_t>(exponents[i]) - 127u) << 7 & 0xffffu) * 0x10001u;
  }
}

template <bool kOfRows, bool kPowers>
void widen_units(const CodedUnits& from, std::byte* out, const PairOrder& order) {
  constexpr std::int64_t kHalfBytes = 16 * kPanel;
  alignas(64) std::uint32_t exponents[kPanel] = {};
  const std::byte* prefetch = from.panel + from.info.codes_at(from.first) + from.ahead;
  for (std::int64_t unit = from.first; unit < from.first + from.units; ++unit) {
    const std::byte* codes = from.panel + from.info.codes_at(unit);
    const std::byte* const table = from.panel + from.info.table_at(unit);
    if constexpr (kPowers) widen_exponents(from.panel + from.info.exponents_at(unit), exponents);
    for (std::int64_t half = 0; half < 2; ++half, codes += kHalfBytes, out += 8 * order.step_bytes) {
      for (std::int64_t row = 0; row < kPanel; row += kLanes) {
        const std::int64_t part = row % 16 / 4 * 16;
        const std::byte* const of_rows = codes + row / 16 * 256 + part;
        DENDRITE_UNROLL
        for (int line = 0; line < kLanes / 4; ++line, prefetch += from.prefetched) {
          __builtin_prefetch(prefetch);
        }
        const std::byte* const tables = kOfRows ? table + row / 16 * 1024 + part : table;
        const Int exponent = Vector::load_int(reinterpret_cast<const std::byte*>(exponents + row));
        std::byte* const to = out + row / 16 * order.rows_bytes + row % 16 * 4;
        if (Vector::any_below_16(of_rows)) {
          widen_rows<kOfRows, kPowers, true>(of_rows, tables, exponent, to, order.step_bytes);
        } else {
          widen_rows<kOfRows, kPowers, false>(of_rows, tables, exponent, to, order.step_bytes);
        }
      }
    }
    out += kPairUnitBytes - 16 * order.step_bytes;
  }
}

DENDRITE_NOINLINE void widen_coded(const Groups& groups, const CodedUnits& from, std::byte* out,
                                   const PairOrder& order) {
  if (groups.scales == GroupScales::kPowers) return widen_units<false, true>(from, out, order);
  if (groups.squares) return widen_units<false, false>(from, out, order);
  widen_units<true, false>(from, out, order);
}
