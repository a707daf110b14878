#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/base/pass_arrays.h"
#include "backend/cuda/base/staging.h"
#include "backend/cuda/stores/rope.h"
#include "backend/ops.h"
#include "backend/pass.h"

namespace dendrite::cuda {

/// Stages what rope_and_store reads.
class RopeStaging {
 public:
  explicit RopeStaging(Staging& staging) : staging_(staging) {}

  /// Checked, with arrays on the device.
  RopeArguments arguments(const RopeStore& args);
  /// Declares the same arrays.
  void declare(const PassInputs& inputs, PassArrays& arrays);

 private:
  /// `to`: Staging or PassArrays.
  template <typename Stage>
  RopeArguments stage(Stage& to, std::span<const std::int64_t> slots,
                      std::span<const ExtraStore> extra_stores);

  Staging& staging_;
  std::vector<std::int32_t> extra_begins_;
};

}  // namespace dendrite::cuda
