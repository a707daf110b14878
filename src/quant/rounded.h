#pragma once

#include <cstdint>

#include "quant/plain_format.h"

namespace dendrite {

/// What plain weights are rounded to when they are loaded.
enum class WeightRounding : std::uint8_t {
  kNone,
  kInt8,  // 32 neighbours share a scale
  kInt4,  // and a minimum
};

/// "int8"; "" for kNone.
constexpr const char* name_of(WeightRounding rounding) {
  switch (rounding) {
    case WeightRounding::kNone:
      break;
    case WeightRounding::kInt8:
      return "int8";
    case WeightRounding::kInt4:
      return "int4";
  }
  return "";
}

/// The values of a plain format, rounded: matrices of `plain` that name this as their format are
/// groups of neighbours. Rows are whole groups. `rounding` is not kNone.
const Format& rounded_format(DType plain, WeightRounding rounding);

}  // namespace dendrite
