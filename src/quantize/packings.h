#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "quant/packed_rows.h"

namespace dendrite {

/// What matrices of a model become: those of layers, and the one that gives the logits.
struct Packings {
  RowPacking layers;
  std::optional<RowPacking> output{};  // none: it stays

  /// As most models have it.
  static constexpr std::string_view kOutput = "lm_head.weight";
  std::string output_name{kOutput};

  const RowPacking& of(std::string_view tensor) const {
    return output && tensor == output_name ? *output : layers;
  }
};

}  // namespace dendrite
