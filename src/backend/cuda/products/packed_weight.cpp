#include "backend/cuda/products/packed_weight.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "backend/cuda/products/packed_kernels.h"
#include "backend/cuda/products/tensor_map.h"
#include "backend/host_cores.h"
#include "core/dtype.h"
#include "core/parallel.h"

namespace dendrite::cuda {
namespace {

constexpr std::int64_t kColumns = PackedLayout::kColumns;
static_assert(kColumns == GroupedValues::kMost);
constexpr float kMostBF16 = 3.3895314e38F;

GroupedValues read_values(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin) {
  GroupedValues values;
  matrix.format->read_groups(matrix, row, begin, std::min(kColumns, matrix.cols - begin), values);
  return values;
}

/// What all scales and minimums of a matrix have in common.
struct Traits {
  bool shared = true;        // the same in all groups of one of 128 columns
  bool centred = true;       // a code of 8 above the lowest means 0
  bool short_scales = true;  // 11 significant bits, far from underflow
};

bool is_short(float scale) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &scale, sizeof bits);
  return (bits & 0x1fffu) == 0 && (scale == 0 || std::abs(scale) > 1e-30F);
}

Traits traits_of(const StoredMatrix& matrix, const Groups& groups) {
  std::atomic<bool> shared{true}, centred{true}, short_scales{true};
  const std::int64_t of_group = 128 / groups.size;
  const float middle = static_cast<float>(groups.lowest + 8);
  const ThreadPool pool(usable_cores());
  pool.parallel_for(matrix.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end && shared; ++row) {
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
            shared = false;
          }
          if (minimum != scale * middle) centred = false;
          if (!is_short(scale)) short_scales = false;
        }
      }
    }
  });
  return {shared, centred, short_scales};
}

/// The layout of one matrix; none where no kernel has it.
std::optional<PackedAs> layout_of(const StoredMatrix& matrix) {
  const auto groups = matrix.format->groups(matrix);
  if (!groups) return std::nullopt;
  PackedLayout layout{.codes = groups->codes == GroupCodes::kE4M3 ? PackedCodes::kE4M3
                               : groups->bits == 4                ? PackedCodes::kNibbles
                                                                  : PackedCodes::kBytes,
                      .scales = groups->scales,
                      .group = groups->size,
                      .minimums = groups->minimums};
  int lowest = groups->lowest;
  if (layout.scales == GroupScales::kF32) {
    const Traits traits = traits_of(matrix, *groups);
    if (!traits.shared) return std::nullopt;
    layout.group = 128;
    if (layout.codes == PackedCodes::kNibbles) {
      layout.minimums = !(traits.centred && traits.short_scales);
      if (!layout.minimums) lowest = -8;
    }
  } else if (layout.codes == PackedCodes::kBytes && layout.scales == GroupScales::kTwoLevels) {
    layout.group = 16;
  }
  const bool bytes = layout.codes == PackedCodes::kBytes;
  if (packed::find_kernels(layout) == nullptr || (bytes && lowest != -128)) return std::nullopt;
  return PackedAs{layout, layout.codes == PackedCodes::kNibbles ? lowest : 0};
}

void put_number(std::byte* to, GroupScales scales, float value) {
  if (scales == GroupScales::kF32) {
    std::memcpy(to, &value, sizeof value);
  } else if (scales == GroupScales::kF16) {
    const F16 half = to_f16(value);
    std::memcpy(to, &half, sizeof half);
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
  if (kind == PackedCodes::kNibbles) {
    const int bit = 4 * (step % 2 * 2 + second) + 16 * (column % 2);
    codes[(step / 8 * 32 + lane) * 16 + step / 2 % 4 * 4 + bit / 8] |=
        static_cast<std::byte>(code << bit % 8);
  } else {
    codes[(step / 4 * 32 + lane) * 16 + step % 4 * 4 + second * 2 + column % 2] =
        static_cast<std::byte>(code);
  }
}

/// A row of a tile. `groups`: of the file.
bool put_row(std::byte* tile, const PackedAs& packed, int row, const GroupedValues& values,
             const Groups& groups, std::int64_t columns) {
  const PackedLayout& layout = packed.layout;
  const auto number = [&](int at, int group, float value) {
    put_number(tile + at + row * layout.row_bytes() + group * layout.scale_size(), layout.scales,
               value);
  };
  const float most_code = layout.codes == PackedCodes::kE4M3      ? 448
                          : layout.codes == PackedCodes::kNibbles ? 15
                                                                  : 128;
  const int first = layout.codes == PackedCodes::kNibbles ? groups.lowest : 0;
  bool finite = true;
  for (int group = 0; group < layout.groups() && group * layout.group < columns; ++group) {
    const auto from = static_cast<std::size_t>(group * layout.group / groups.size);
    const float scale = values.scale * values.scales[from];
    const float minimum = layout.minimums ? values.minimum * values.minimums[from] : 0;
    finite &= std::abs(scale) * most_code + std::abs(minimum) <= kMostBF16;  // false for NaN
    number(layout.scales_at(), group, values.scales[from]);
    if (layout.minimums) number(layout.minimums_at(), group, values.minimums[from]);
  }
  if (layout.scales == GroupScales::kTwoLevels) {
    put_number(tile + layout.scale_at() + row * 2, GroupScales::kF16, values.scale);
    if (layout.minimums) {
      put_number(tile + layout.minimum_at() + row * 2, GroupScales::kF16, values.minimum);
    }
  }
  for (int column = 0; column < columns; ++column) {
    const int code = values.codes[static_cast<std::size_t>(column)];
    if (layout.codes == PackedCodes::kE4M3 && (code & 0x7f) == 0x7f) finite = false;
    put_code(tile, layout.codes, row, column, code - first);
  }
  return finite;
}

}  // namespace

std::optional<PackedAs> packed_as(std::span<const StoredMatrix> parts) {
  std::optional<PackedAs> common;
  if (parts.front().cols % kTileColumns != 0) return std::nullopt;  // as copies of x need it
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
