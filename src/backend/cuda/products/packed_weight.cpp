#include "backend/cuda/products/packed_weight.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "backend/cuda/products/packed_layouts.h"
#include "backend/host_cores.h"
#include "core/dtype.h"
#include "core/parallel.h"

namespace dendrite::cuda {
namespace {

constexpr std::int64_t kColumns = PackedLayout::kColumns;
static_assert(kColumns == GroupedValues::kMost);
constexpr float kMostBF16 = 3.3895314e38F;
constexpr float kMostModerate = 0x1p112F;  // kMost * 2^15 is finite

GroupedValues read_values(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin) {
  GroupedValues values;
  matrix.format->read_groups(matrix, row, begin, std::min(kColumns, matrix.cols - begin), values);
  return values;
}

/// What all scales and minimums of a matrix have in common.
struct Traits {
  bool shared = true;        // the same in all groups of one of 128 columns
  bool centred = true;       // a code of 8 above the lowest means 0
  bool points = true;        // a whole number in place of a code means 0
  bool short_scales = true;  // 11 significant bits, far from underflow
  bool halves = true;        // as f16 has them
  bool moderate = true;      // times 2^15 they are finite, too
  bool powers = true;        // of two

  Traits operator&(const Traits& other) const {
    return {shared && other.shared, centred && other.centred,
            points && other.points, short_scales && other.short_scales,
            halves && other.halves, moderate && other.moderate,
            powers && other.powers};
  }
};

bool is_power(float scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5F;
}

bool is_short(float scale) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &scale, sizeof bits);
  return (bits & 0x1fffu) == 0 && (scale == 0 || std::abs(scale) > 1e-30F);
}

/// The code that means 0: what a minimum is of its scale.
float point_of(float scale, float minimum) {
  return minimum == 0 ? 0 : minimum / scale;
}

bool is_point(float scale, float minimum) {
  constexpr float kMost = 100;  // 128 + a nibble and it have 8 bits
  const float point = point_of(scale, minimum);
  return std::abs(point) <= kMost && point == std::nearbyint(point) && scale * point == minimum;
}

Traits traits_of(const StoredMatrix& matrix, const Groups& groups) {
  Traits common;
  std::mutex joins;
  const std::int64_t of_group = 128 / groups.size;
  const float middle = static_cast<float>(groups.lowest + 8);
  const ThreadPool pool(usable_cores());
  pool.parallel_for(matrix.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    Traits traits;
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t k = 0; k < matrix.cols; k += kColumns) {
        const GroupedValues values = read_values(matrix, row, k);
        const std::int64_t count = std::min(kColumns, matrix.cols - k) / groups.size;
        for (std::int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const auto first = static_cast<std::size_t>(i / of_group * of_group);
          const float scale = values.scales[at];
          const float minimum = groups.minimums ? values.minimums[at] : 0;
          if (scale != values.scales[first] ||
              minimum != (groups.minimums ? values.minimums[first] : 0)) {
            traits.shared = false;
          }
          if (minimum != scale * middle) traits.centred = false;
          if (!is_point(scale, minimum)) traits.points = false;
          if (!is_short(scale)) traits.short_scales = false;
          if (to_f32(to_f16(scale)) != scale) traits.halves = false;
          if (!(std::abs(scale) < kMostModerate)) traits.moderate = false;
          if (!is_power(scale)) traits.powers = false;
        }
      }
    }
    const std::lock_guard lock(joins);
    common = common & traits;
  });
  return common;
}

/// Of four bits whose scales are in f32: with f32 those of 128 columns, with f16 those of 32.
void choose_of_four(const Traits& traits, PackedLayout& layout, int& lowest) {
  if (traits.shared && (traits.centred || traits.points)) {
    layout.group = 128;
  } else if (traits.halves && (traits.centred || traits.points)) {
    layout.scales = GroupScales::kF16;
    layout.points = !traits.centred;
  }
  const bool few_bits = layout.scales == GroupScales::kF16 || traits.short_scales;
  layout.minimums = !(traits.centred && few_bits);
  if (layout.group == 128) layout.points = layout.minimums;
  if (!layout.minimums) lowest = -8;
}

PackedCodes codes_of(const Groups& groups) {
  if (groups.codes == GroupCodes::kE4M3) return PackedCodes::kE4M3;
  if (groups.codes == GroupCodes::kDoubledE2M1) return PackedCodes::kE2M1;
  if (groups.raised) return PackedCodes::kRaised;
  const bool fours = groups.bits == 4 && groups.codes == GroupCodes::kWhole;
  return fours ? PackedCodes::kNibbles : PackedCodes::kBytes;
}

/// Where no layout has them as the file does, scales and minimums are f32 at first.
GroupScales scales_of(const Groups& groups) {
  const bool powers = groups.codes == GroupCodes::kE4M3 && groups.scales == GroupScales::kPowers;
  const bool as_stored =
      powers || groups.scales == GroupScales::kTwoLevels || groups.scales == GroupScales::kF16;
  return as_stored && !groups.points ? groups.scales : GroupScales::kF32;
}

/// The layout of one matrix; none where no kernel has it.
std::optional<PackedAs> layout_of(const StoredMatrix& matrix) {
  const auto groups = matrix.format->groups(matrix);
  if (!groups || matrix.groups != nullptr) return std::nullopt;
  PackedLayout layout{.codes = codes_of(*groups),
                      .scales = scales_of(*groups),
                      .group = groups->size,
                      .minimums = groups->minimums};
  int lowest = groups->lowest;
  if (layout.scales == GroupScales::kF32) {
    const Traits traits = traits_of(matrix, *groups);
    if (layout.codes == PackedCodes::kE2M1) {
      if (groups->size == 32 && traits.halves && traits.powers) layout.scales = GroupScales::kF16;
      if (!traits.moderate) return std::nullopt;
    } else if (layout.codes == PackedCodes::kNibbles) {
      choose_of_four(traits, layout, lowest);
    } else if (traits.shared) {
      layout.group = 128;
    }
  } else if (layout.codes == PackedCodes::kBytes && layout.scales == GroupScales::kTwoLevels) {
    layout.group = 16;
  }
  const bool bytes = layout.codes == PackedCodes::kBytes;
  if (!packed::Compiled::has(layout) || (bytes && lowest != -128)) return std::nullopt;
  return PackedAs{layout, layout.codes == PackedCodes::kNibbles ? lowest : 0};
}

void put_number(std::byte* to, GroupScales scales, float value) {
  if (scales == GroupScales::kF32) {
    std::memcpy(to, &value, sizeof value);
  } else if (scales == GroupScales::kF16) {
    const F16 half = to_f16(value);
    std::memcpy(to, &half, sizeof half);
  } else if (scales == GroupScales::kPowers) {
    *to = static_cast<std::byte>(std::bit_cast<std::uint32_t>(value) >> 23);
  } else {
    const auto code = static_cast<std::int8_t>(value);
    std::memcpy(to, &code, sizeof code);
  }
}

/// See packed_layout.h.
void put_code(std::byte* codes, PackedCodes kind, int row, int column, int code) {
  const int step = column / 16;
  const int second = column % 16 / 8;
  const int lane = row * 4 + column % 8 / 2;
  if (kind == PackedCodes::kBytes || kind == PackedCodes::kE4M3) {
    codes[(step / 4 * 32 + lane) * 16 + step % 4 * 4 + second * 2 + column % 2] =
        static_cast<std::byte>(code);
    return;
  }
  const int bit = 4 * (step % 2 * 2 + second) + 16 * (column % 2);
  std::byte* const at = codes + (step / 8 * 32 + lane) * 16 + step / 2 % 4 * 4;
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  word |= std::rotl(static_cast<std::uint32_t>(code), kind == PackedCodes::kRaised ? bit + 3 : bit);
  std::memcpy(at, &word, sizeof word);
}

/// The E2M1 of which it is twice the value; zeros have no sign.
int e2m1_of(int doubled) {
  const int size = std::abs(doubled);
  const int code = size < 4 ? size : size == 4 ? 4 : size == 6 ? 5 : size == 8 ? 6 : 7;
  return doubled < 0 ? code + 8 : code;
}

/// A row of a tile. `groups`: of the file.
bool put_row(std::byte* tile, const PackedAs& packed, int row, const GroupedValues& values,
             const Groups& groups, std::int64_t columns) {
  const PackedLayout& layout = packed.layout;
  const bool raised = layout.codes == PackedCodes::kRaised;
  const auto number = [&](int at, int group, float value) {
    std::byte* const to = tile + at + row * layout.row_bytes() + group * layout.scale_size();
    if (!raised) return put_number(to, layout.scales, value);
    const BF16 eight = to_bf16(value);
    std::memcpy(to, &eight, sizeof eight);
  };
  const float most_code = layout.codes == PackedCodes::kE4M3      ? 448
                          : layout.codes == PackedCodes::kNibbles ? 15
                          : layout.codes == PackedCodes::kE2M1    ? 12
                                                                  : 128;
  const int first = layout.codes == PackedCodes::kNibbles ? groups.lowest : 0;
  bool finite = true;
  for (int group = 0; group < layout.groups() && group * layout.group < columns; ++group) {
    const auto from = static_cast<std::size_t>(group * layout.group / groups.size);
    const float scale = values.scale * values.scales[from];
    const float minimum = layout.minimums ? values.minimum * values.minimums[from] : 0;
    finite &= std::abs(scale) * most_code + std::abs(minimum) <= kMostBF16;  // false for NaN
    number(layout.scales_at(), group, values.scales[from]);
    if (!layout.minimums) continue;
    const float stored = values.minimums[from];
    number(layout.minimums_at(), group,
           layout.points ? point_of(values.scales[from], stored)
           : raised      ? -(stored + 16 * values.scales[from])
                         : stored);
  }
  if (layout.scales == GroupScales::kTwoLevels) {
    put_number(tile + layout.scale_at() + row * 2, GroupScales::kF16, values.scale);
    if (layout.minimums) {
      put_number(tile + layout.minimum_at() + row * 2, GroupScales::kF16, values.minimum);
    }
  }
  for (int column = 0; column < columns; ++column) {
    int code = values.codes[static_cast<std::size_t>(column)];
    if (layout.scales == GroupScales::kTwoLevels && values.scale == 0) code = 0;  // see LaneRow
    if (layout.codes == PackedCodes::kE2M1) code = e2m1_of(code);
    if (layout.codes == PackedCodes::kE4M3 && (code & 0x7f) == 0x7f) finite = false;
    put_code(tile, layout.codes, row, column, code - first);
  }
  return finite;
}

}  // namespace

std::optional<PackedAs> packed_as(std::span<const StoredMatrix> parts) {
  std::optional<PackedAs> common;
  if (parts.front().cols % PackedLayout::kCopyColumns != 0)
    return std::nullopt;  // as copies of x need it
  for (const StoredMatrix& part : parts) {
    const auto packed = layout_of(part);
    if (!packed) return std::nullopt;
    if (!common || (packed->layout == common->layout && packed->lowest == common->lowest)) {
      common = packed;
      continue;
    }
    // As some files have q and k in other types than v: codes of 8 bits hold those of 4.
    for (const PackedAs& of : {*packed, *common}) {
      if (of.layout.scales != GroupScales::kTwoLevels || of.lowest != 0) return std::nullopt;
    }
    const bool minimums = packed->layout.minimums || common->layout.minimums;
    common = PackedAs{minimums ? packed::Q8Minimums::kLayout : packed::Q8TwoLevels::kLayout, 0};
  }
  return common;
}

std::int64_t tile_rows_of(std::int64_t rows) {
  return (rows + 15) / 16 * 2;
}

bool write_tiles(std::span<const StoredMatrix> parts, const PackedAs& packed, std::int64_t first,
                 std::int64_t count, std::byte* out) {
  const std::int64_t tiles = tiles_of(parts.front().cols);
  const std::int64_t tile_bytes = packed.layout.tile_bytes();
  std::atomic<bool> finite{true};
  const ThreadPool pool(usable_cores());
  pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
    bool all_finite = true;
    for (std::int64_t row = (first + begin) * 8; row < (first + end) * 8; ++row) {
      std::int64_t of_part = row;
      const auto part = std::ranges::find_if(parts, [&](const StoredMatrix& candidate) {
        if (of_part < candidate.rows) return true;
        of_part -= candidate.rows;
        return false;
      });
      if (part == parts.end()) break;
      const auto groups = part->format->groups(*part);
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        all_finite &=
            put_row(out + ((row / 8 - first) * tiles + tile) * tile_bytes, packed,
                    static_cast<int>(row % 8), read_values(*part, of_part, tile * kColumns),
                    *groups, std::min(kColumns, part->cols - tile * kColumns));
      }
    }
    if (!all_finite) finite = false;
  });
  return finite;
}

}  // namespace dendrite::cuda
