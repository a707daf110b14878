#include "backend/cpu/code_panel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/dtype.h"
#include "quant/e4m3.h"

namespace dendrite::cpu {
namespace {

constexpr std::size_t kEntries = 16;
constexpr std::uint8_t kSign = 0x80;
constexpr int kBias = 127;

/// [lower bytes, upper bytes] of magnitudes from 16 on, then of those below.
using Table = std::array<std::array<std::uint8_t, kEntries>, kTablesOfScale>;

/// None where one of the values would not be a normal number of bf16.
std::optional<Table> table_of(float scale) {
  const auto bits_of = [scale](std::size_t code) {
    return static_cast<std::uint16_t>(to_bf16(e4m3_value(static_cast<std::uint8_t>(code)) * scale));
  };
  constexpr std::size_t kMost = 126;
  constexpr std::uint16_t kInfinity = 0x7f80;
  const bool fits = e4m3_value(1) * scale >= 0x1p-126F && bits_of(kMost) < kInfinity;
  if (!fits) return std::nullopt;
  Table table{};
  for (std::size_t i = 0; i < kEntries; ++i) {
    const auto from_16 = static_cast<std::uint16_t>(bits_of(kEntries + i) - 0x100);
    const std::uint16_t below_16 = bits_of(i);
    table[0][i] = static_cast<std::uint8_t>(from_16);
    table[1][i] = static_cast<std::uint8_t>(from_16 >> 8);
    table[2][i] = static_cast<std::uint8_t>(below_16);
    table[3][i] = static_cast<std::uint8_t>(below_16 >> 8);
  }
  return table;
}

/// Of 16 bytes of a row, where in those of 16 rows they are.
std::int64_t place_of(std::int64_t lane) {
  return lane % 4 * 64 + lane % 16 / 4 * 16;
}
/// Where a panel has the code of column k of a row.
std::int64_t code_at(const CodesInfo& info, std::int64_t lane, std::int64_t k) {
  return info.codes_at(k / kUnit) + k % kUnit / 16 * 16 * kPanel + lane / 16 * 256 +
         place_of(lane) + k % 16;
}
/// Where it has part `part` of the table of a row and a unit.
std::int64_t table_at(const CodesInfo& info, std::int64_t lane, std::int64_t unit,
                      std::int64_t part) {
  if (!info.of_rows) return info.table_at(unit) + part * 16;
  return ((lane / 16 * 4 + lane % 4) * kTablesOfScale + part) * 64 + lane % 16 / 4 * 16;
}

class CodesOfPanel {
 public:
  CodesOfPanel(std::byte* panel, const Groups& groups)
      : panel_(panel), info_(info_of_codes(groups)) {}

  /// `codes` of a row from column k on, which `scale` multiplies.
  bool put(std::int64_t lane, std::int64_t k, std::span<const std::int8_t> codes, float scale) {
    const float size = std::abs(scale);
    const auto magnitude = [](std::int8_t code) { return code & ~kSign & 0xff; };
    if (!std::isfinite(size)) return false;
    if (std::ranges::any_of(codes, [&](auto code) { return magnitude(code) == 127; })) return false;
    const bool none =
        size == 0 || std::ranges::all_of(codes, [&](auto code) { return magnitude(code) == 0; });
    if (!put_scale(lane, k / kUnit, size, none)) return false;
    const std::uint8_t keep = size == 0 ? kSign : 255;
    const std::uint8_t turn = std::signbit(scale) ? kSign : 0;
    for (std::size_t i = 0; i < codes.size(); i += 16) {
      std::byte* const to = panel_ + code_at(info_, lane, k + static_cast<std::int64_t>(i));
      for (std::size_t j = 0; j < 16; ++j) {
        to[j] = static_cast<std::byte>((static_cast<std::uint8_t>(codes[i + j]) & keep) ^ turn);
      }
    }
    return true;
  }

 private:
  bool put_scale(std::int64_t lane, std::int64_t unit, float size, bool none) {
    if (info_.exponent_bytes > 0) {
      if (lane == 0 && unit == 0 && !put_table(lane, unit, 1)) return false;
      const int exponent = none ? kBias : std::ilogb(size) + kBias;
      panel_[info_.exponents_at(unit) + lane] = static_cast<std::byte>(exponent);
      return none || (exponent >= kLeastScale && exponent <= kMostScale &&
                      std::ldexp(1.0F, exponent - kBias) == size);
    }
    const bool first = info_.of_rows ? unit == 0 : lane == 0 && unit % kTableUnits == 0;
    const std::int64_t place = info_.of_rows ? lane : unit / kTableUnits % 2;
    float& of_table = sizes_[static_cast<std::size_t>(place)];
    if (!first) return size == of_table;
    of_table = size;
    return put_table(lane, unit, size == 0 ? 1 : size);
  }
  bool put_table(std::int64_t lane, std::int64_t unit, float size) {
    const auto table = table_of(size);
    if (!table) return false;
    for (std::size_t i = 0; i < table->size(); ++i) {
      std::memcpy(panel_ + table_at(info_, lane, unit, static_cast<std::int64_t>(i)),
                  (*table)[i].data(), kEntries);
    }
    return true;
  }

  std::byte* panel_;
  CodesInfo info_;
  std::array<float, kPanel> sizes_{};  // that tables were made of: rows, or chunks of 256 columns
};

}  // namespace

bool pack_codes(std::byte* panel, const Groups& groups, std::span<const StoredRow> rows,
                std::int64_t cols) {
  CodesOfPanel out(panel, groups);
  for (std::int64_t k = 0; k < cols; k += GroupedValues::kMost) {
    const std::int64_t count = std::min(GroupedValues::kMost, cols - k);
    for (std::size_t lane = 0; lane < rows.size(); ++lane) {
      const auto& [matrix, row] = rows[lane];
      GroupedValues values;
      matrix->format->read_groups(*matrix, row, k, count, values);
      for (std::int64_t i = 0; i < count; i += kUnit) {
        const auto codes = std::span(values.codes).subspan(static_cast<std::size_t>(i), kUnit);
        const float scale = values.scales[static_cast<std::size_t>(i / kUnit)];
        if (!out.put(static_cast<std::int64_t>(lane), k + i, codes, scale)) return false;
      }
    }
  }
  return true;
}

void read_codes(const std::byte* panel, const Groups& groups, std::int64_t lane, std::int64_t cols,
                float* out) {
  const CodesInfo info = info_of_codes(groups);
  for (std::int64_t k = 0; k < cols; ++k) {
    const auto byte_at = [panel](std::int64_t at) { return std::to_integer<unsigned>(panel[at]); };
    const unsigned code = byte_at(code_at(info, lane, k));
    const unsigned magnitude = code & 127U;
    const auto of_table = [&](std::int64_t part) {
      const std::int64_t from =
          table_at(info, lane, k / kUnit, magnitude < kEntries ? part + 2 : part);
      return byte_at(from + magnitude % kEntries);
    };
    unsigned bits = of_table(0) + (of_table(1) << 8) + (magnitude / kEntries << 8);
    if (info.exponent_bytes > 0 && magnitude != 0) {
      bits += (byte_at(info.exponents_at(k / kUnit) + lane) - kBias) << 7;
    }
    out[k] = to_f32(static_cast<BF16>(static_cast<std::uint16_t>(bits | (code & kSign) << 8)));
  }
}

}  // namespace dendrite::cpu
