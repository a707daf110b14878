#pragma once

#include <cstdint>

#include "quant/groups.h"

// How packed weights lie in panels, for what writes them and for kernels: plain data alone.
namespace dendrite::cpu {

/// Outputs of one weight panel. The same on every path, so one packed weight serves all of them.
inline constexpr std::int64_t kPanel = 64;
/// Values of k that a row's activations have one scale for, and units of a chunk.
inline constexpr std::int64_t kUnit = 32;
inline constexpr std::int64_t kChunkUnits = 8;
/// Bytes of a panel of grouped weights: chunks of up to 8 units, each
///   [whole scales [64] f16, whole minimums [64] f16]   (kTwoLevels)
///   scales [numbers][64], minimums [numbers][64], codes [units]
/// where codes, from `lowest` on or entries of a table, are [8][64][4] bytes, or [4][64][4] of two:
/// of eight values the first four in the low bits, the others in the high ones. A number holds for
/// Groups::repeats groups; minimums that are points are those, of 8 bits.
struct GroupsInfo {
  std::int64_t groups = 1;  // of a unit
  std::int64_t repeats = 1;
  std::int64_t scale_bytes = 0;    // of one
  std::int64_t minimum_bytes = 0;  // of one
  std::int64_t unit_bytes = 0;     // codes
  std::int64_t whole_bytes = 0;    // of a chunk, before its scales

  constexpr std::int64_t numbers(std::int64_t units) const {
    return (units * groups + repeats - 1) / repeats;
  }
  constexpr std::int64_t minimums_at(std::int64_t units) const {
    return whole_bytes + numbers(units) * kPanel * scale_bytes;
  }
  constexpr std::int64_t codes_at(std::int64_t units) const {
    return minimums_at(units) + numbers(units) * kPanel * minimum_bytes;
  }
  constexpr std::int64_t chunk_bytes(std::int64_t units) const {
    return codes_at(units) + units * unit_bytes;
  }
  constexpr std::int64_t panel_bytes(std::int64_t units) const {
    return units / kChunkUnits * chunk_bytes(kChunkUnits) +
           (units % kChunkUnits == 0 ? 0 : chunk_bytes(units % kChunkUnits));
  }
};
constexpr std::int64_t bytes_of(GroupScales scales) {
  switch (scales) {
    case GroupScales::kF32:
      return 4;
    case GroupScales::kF16:
      return 2;
    case GroupScales::kTwoLevels:
    case GroupScales::kPowers:
    case GroupScales::kSteps:
      break;
  }
  return 1;
}
constexpr GroupsInfo info_of(const Groups& groups) {
  const std::int64_t bytes = bytes_of(groups.scales);
  GroupsInfo info;
  info.groups = kUnit / groups.size;
  info.repeats = groups.repeats;
  info.scale_bytes = bytes;
  info.minimum_bytes = !groups.minimums ? 0 : groups.points ? 1 : bytes;
  info.unit_bytes = kUnit * kPanel * groups.bits / 8;
  if (groups.scales == GroupScales::kTwoLevels) {
    info.whole_bytes = 2 * kPanel * (groups.minimums ? 2 : 1);
  }
  return info;
}

/// Bytes of a table of E4M3 and of a panel that has some (GroupCodes::kE4M3). What shares a scale
/// has a table: bf16 of codes without their signs, by their lower four bits; the upper three times
/// 256 are added. There are two, of codes from 16 on and, among which are those below the smallest
/// normal one, of the others: lower bytes [16], upper bytes [16], and the same again. Scales of 32
/// values are powers of two: exponents, added too where a code is not 0, and one table for all.
/// Panels are, of scales that
///   rows have            tables [16 x 4 rows][4][16], codes
///   128 x 128 have       chunks of up to 4 units: table, codes [units]
///   32 of a row have     table, units: exponents [64], codes
/// where a unit's codes are [2][64][16], of 16 of k each. Rows of 16, of codes and of tables, are
/// in the order 0, 4, 8, 12, 1, 5...: a vector's parts of 128 bits hold rows that become neighbours
/// when four vectors are transposed.
inline constexpr std::int64_t kTableUnits = 4;
inline constexpr std::int64_t kTablesOfScale = 4;
struct CodesInfo {
  static constexpr std::int64_t kTableBytes = kTablesOfScale * 16;
  static constexpr std::int64_t kUnitBytes = kUnit * kPanel;
  bool of_rows = false;             // tables
  std::int64_t head_bytes = 0;      // of tables, before all chunks
  std::int64_t table_bytes = 0;     // of a chunk
  std::int64_t exponent_bytes = 0;  // of a unit

  constexpr std::int64_t chunk_at(std::int64_t unit) const {
    return head_bytes +
           unit / kTableUnits * (table_bytes + kTableUnits * (exponent_bytes + kUnitBytes));
  }
  constexpr std::int64_t table_at(std::int64_t unit) const {
    return table_bytes > 0 ? chunk_at(unit) : 0;
  }
  /// The exponents of a unit, and behind them its codes.
  constexpr std::int64_t exponents_at(std::int64_t unit) const {
    return chunk_at(unit) + table_bytes + unit % kTableUnits * (exponent_bytes + kUnitBytes);
  }
  constexpr std::int64_t codes_at(std::int64_t unit) const {
    return exponents_at(unit) + exponent_bytes;
  }
  constexpr std::int64_t panel_bytes(std::int64_t units) const {
    return head_bytes + (units + kTableUnits - 1) / kTableUnits * table_bytes +
           units * (exponent_bytes + kUnitBytes);
  }
};
constexpr CodesInfo info_of_codes(const Groups& groups) {
  const bool powers = groups.scales == GroupScales::kPowers;
  CodesInfo info;
  info.of_rows = !powers && !groups.squares;
  info.head_bytes = info.of_rows ? kPanel * CodesInfo::kTableBytes
                    : powers     ? CodesInfo::kTableBytes
                                 : 0;
  info.table_bytes = groups.squares ? CodesInfo::kTableBytes : 0;
  info.exponent_bytes = powers ? kPanel : 0;
  return info;
}

}  // namespace dendrite::cpu
