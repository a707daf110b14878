#pragma once

#include <cstdint>
#include <string>

#include "model/parts/linear.h"
#include "model/parts/weight_source.h"

namespace dendrite {

/// The norm of that name (LayerNorms) behind `prefix`, which ends in a dot. No name: no norm.
inline Norm read_norm(WeightSource& source, const std::string& prefix, const std::string& name,
                      std::int64_t dim, float eps, bool zero_centred) {
  if (name.empty()) return {};
  return {source.vector({{prefix + name + ".weight", dim}}, 1.0F, change_of(zero_centred)), eps};
}

}  // namespace dendrite
