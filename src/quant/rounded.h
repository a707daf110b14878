#pragma once

#include <cstdint>

#include "quant/plain_format.h"

namespace dendrite {

/// What plain weights are rounded to when they are loaded.
enum class WeightRounding : std::uint8_t {
  kNone,
  kFp8,   // E4M3, a scale a row
  kInt8,  // 32 neighbours share a scale
  kInt4,  // and a minimum (Groups::raised)
};

/// "int8"; "" for kNone.
constexpr const char* name_of(WeightRounding rounding) {
  switch (rounding) {
    case WeightRounding::kNone:
      break;
    case WeightRounding::kFp8:
      return "fp8";
    case WeightRounding::kInt8:
      return "int8";
    case WeightRounding::kInt4:
      return "int4";
  }
  return "";
}

/// The values of a plain format, rounded: matrices of `plain` that name this as their format are
/// groups of neighbours. Rows are whole groups. `rounding` is kInt8 or kInt4.
const Format& rounded_format(DType plain, WeightRounding rounding);

}  // namespace dendrite
