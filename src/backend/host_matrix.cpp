#include "backend/host_matrix.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "dendrite/error.h"

namespace dendrite {

/// Round to nearest even; beyond the largest half, infinity.
F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<F16>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<F16>(sign | 0x7c00u);  // rounds past 65504
  if (magnitude < 0x38800000u) {  // subnormal: let an addition round at the right bit
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<F16>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u));
  }
  const std::uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<F16>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float stored_value(const std::byte* data, DType dtype, std::int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + i * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data + i * 2, 2);
  return dtype == DType::kBF16 ? to_f32(static_cast<BF16>(bits)) : to_f32(static_cast<F16>(bits));
}

/// `count` values of one row in the device's dtype.
void convert(std::byte* out, DType to, const std::byte* row, DType from, std::int64_t begin,
             std::int64_t count) {
  const std::int64_t from_size = size_of(from);
  if (to == from) {
    std::memcpy(out, row + begin * from_size, static_cast<std::size_t>(count * from_size));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = stored_value(row, from, begin + i);
    if (to == DType::kF32) {
      std::memcpy(out + i * 4, &value, 4);
    } else {
      const auto bits = to == DType::kBF16 ? static_cast<std::uint16_t>(to_bf16(value))
                                           : static_cast<std::uint16_t>(to_f16(value));
      std::memcpy(out + i * 2, &bits, 2);
    }
  }
}

std::int64_t stacked_rows(std::span<const HostMatrix> parts) {
  if (parts.empty()) throw Error("pack: no matrices given, expected at least one");
  std::int64_t rows = 0;
  for (const HostMatrix& part : parts) {
    if (part.rows <= 0 || part.cols <= 0) {
      throw Error(part.file + ": tensor \"" + part.name + "\" has shape [" +
                  std::to_string(part.rows) + ", " + std::to_string(part.cols) +
                  "], expected positive sizes");
    }
    if (part.cols != parts[0].cols) {
      throw Error(part.file + ": tensor \"" + part.name + "\" has " + std::to_string(part.cols) +
                  " columns, expected " + std::to_string(parts[0].cols) + " as in \"" +
                  parts[0].name + "\"");
    }
    rows += part.rows;
  }
  return rows;
}

DType device_dtype(std::span<const HostMatrix> parts, const Numerics& numerics) {
  if (numerics.weights) return *numerics.weights;
  for (const HostMatrix& part : parts) {
    if (part.dtype != parts[0].dtype) return DType::kF32;
  }
  return parts[0].dtype;
}

void throw_not_finite(std::span<const HostMatrix> parts, DType device) {
  for (const HostMatrix& part : parts) {
    for (std::int64_t i = 0; i < part.rows * part.cols; ++i) {
      const float value = stored_value(part.data, part.dtype, i);
      std::byte converted[4];
      convert(converted, device, part.data, part.dtype, i, 1);
      const float kept = stored_value(converted, device, 0);
      if (std::isfinite(kept)) continue;
      const std::string where = part.file + ": tensor \"" + part.name + "\" holds ";
      const std::string element = " at element " + std::to_string(i);
      if (std::isfinite(value)) {
        throw Error(where + std::to_string(value) + element + ", which is beyond the range of " +
                    name_of(device) + "; expected values up to 65504");
      }
      throw Error(where +
                  (std::isnan(value) ? "NaN"
                   : value > 0       ? "infinity"
                                     : "-infinity") +
                  element + "; expected finite values");
    }
  }
  throw Error("pack: a value is not finite");
}

}  // namespace dendrite
