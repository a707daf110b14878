#include "quant/e2m1.h"

#include <algorithm>
#include <array>

#include "dendrite/error.h"
#include "quant/blocks.h"
#include "quant/small_floats.h"

namespace dendrite {

void take_steps(const std::array<float, 8>& steps, Groups& groups) {
  // Whatever power of two a scale has of a step's, both are rounded alike.
  constexpr float kLeast = 0x1p-100F;
  const bool usual = steps.front() >= kLeast && steps.back() <= 1 / kLeast;
  groups.scales = usual ? GroupScales::kSteps : GroupScales::kF32;
  if (usual) std::ranges::copy(steps, groups.steps);
}

std::optional<E2M1Tensors> E2M1Format::tensors_of(const TensorSource& source, std::string_view name,
                                                  std::string_view suffix) {
  const std::string base(name);
  const TensorInfo* const data = source.find(base + std::string(suffix));
  if (data == nullptr || data->stored_type != "U8") return std::nullopt;
  const TensorInfo* const scales = source.find(base + "_scale");
  if (scales == nullptr) {
    throw Error(std::string(data->file) + ": holds no tensor \"" + base + "_scale\", which \"" +
                data->name + "\" does not go without");
  }
  if (scales->stored_type != "F8_E4M3" && !is_e8m0(*scales)) {
    throw Error(std::string(scales->file) + ": tensor \"" + scales->name + "\" is stored as " +
                std::string(scales->stored_type) +
                ", expected F8_E4M3 (NVFP4), or F8_E8M0 or U8 (MXFP4)");
  }
  return E2M1Tensors{data, scales};
}

StoredMatrix E2M1Format::matrix_of(const E2M1Tensors& tensors, const Format& scales,
                                   std::int64_t rows, std::int64_t cols) const {
  if (cols % block() != 0) {
    throw Error(std::string(tensors.data->file) + ": tensor \"" + tensors.data->name +
                "\" is of rows of " + std::to_string(cols) + " values, expected a multiple of " +
                std::to_string(block()) + ", the group of " + std::string(this->name()));
  }
  check_shape(*tensors.data, std::array{rows, cols / 2});
  check_bytes(*tensors.data, rows * cols / 2);
  check_shape(*tensors.scales, std::array{rows, cols / block()},
              "of \"" + tensors.data->name + "\"");
  check_bytes(*tensors.scales, rows * cols / block());
  return {.format = this,
          .data = tensors.data->data,
          .rows = rows,
          .cols = cols,
          .stride = cols / 2,
          .name = tensors.data->name,
          .file = tensors.data->file,
          .scales = {&scales, tensors.scales->data, rows, cols / block()}};
}

void E2M1Format::read_scales(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                             std::span<float> out) const {
  matrix.scales.widen(row, begin / block(), out);
  apply_whole(matrix, out);
  for (float& scale : out) scale /= 2;
}

void E2M1Format::widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                       std::span<float> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  const Groups groups{.size = static_cast<std::uint8_t>(block())};
  GroupedValues values;
  for (std::int64_t first = 0; first < count; first += GroupedValues::kMost) {
    const std::int64_t some = std::min(GroupedValues::kMost, count - first);
    read_groups(matrix, row, begin + first, some, values);
    for (std::int64_t i = 0; i < some; ++i) {
      out[static_cast<std::size_t>(first + i)] = values.value(groups, i);
    }
  }
}

std::optional<Groups> E2M1Format::groups(const StoredMatrix& matrix) const {
  if (matrix.cols % 32 != 0) return std::nullopt;
  Groups groups{
      .codes = GroupCodes::kDoubledE2M1, .bits = 4, .size = static_cast<std::uint8_t>(block())};
  choose_scales(matrix, groups);
  return groups;
}

void E2M1Format::read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                             std::int64_t count, GroupedValues& out) const {
  const std::byte* const bytes = matrix.row(row) + begin / 2;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto byte = std::to_integer<unsigned>(bytes[i / 2]);
    out.codes[static_cast<std::size_t>(i)] = kDoubledE2M1[byte >> (i % 2 * 4) & 15];
  }
  read_scales(matrix, row, begin,
              std::span(out.scales).first(static_cast<std::size_t>(count / block())));
}

}  // namespace dendrite
