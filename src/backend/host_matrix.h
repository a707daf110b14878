#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/numerics.h"
#include "backend/weight.h"

// Reading stored matrices, for backends that pack them.
namespace dendrite {

/// Round to nearest even; beyond the largest half, infinity.
F16 to_f16(float value);

/// Element `i` of a run of stored values, widened.
float stored_value(const std::byte* data, DType dtype, std::int64_t i);

/// `count` values of one row from value `begin` on, converted.
void convert(std::byte* out, DType to, const std::byte* row, DType from, std::int64_t begin,
             std::int64_t count);

/// Rows of the matrices stacked. Throws Error unless all have positive sizes and equal cols.
std::int64_t stacked_rows(std::span<const HostMatrix> parts);

/// What a device keeps the stacked matrices as.
DType device_dtype(std::span<const HostMatrix> parts, const Numerics& numerics);

/// Finds the value that is not finite, as stored or once converted to `device`, and throws Error
/// naming its tensor and file.
[[noreturn]] void throw_not_finite(std::span<const HostMatrix> parts, DType device);

}  // namespace dendrite
