#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/pass.h"

namespace dendrite::cuda {

/// Sizes that passes are padded to, so that few are recorded.
constexpr std::array<std::int64_t, 16> kPaddedSizes = {0,  1,  2,  4,  8,   16,  24,  32,
                                                       48, 64, 80, 96, 112, 128, 192, 256};
/// Arrays of a pass with as many rows and logit rows as were asked for: see Backend::run_pass.
class PaddedInputs {
 public:
  /// fine: of all sizes. Else of none between 64 and 128: cuBLASLt takes longer for those than for
  /// 128 rows.
  explicit PaddedInputs(bool fine) : fine_(fine) {}

  /// The least size that is not below `count`; -1: there is none.
  std::int64_t size_for(std::int64_t count) const;
  /// Backend::first_passes: a size is recorded by its second pass. A prompt's come first, as they
  /// take the most memory for what lies between kernels: where that grows, recordings are
  /// forgotten.
  std::vector<FirstPass> first_passes(bool records) const;
  /// Valid until the next call. Arrays that may be empty are told apart by where they are, too.
  PassInputs pad(const PassInputs& inputs, std::int64_t rows, std::int64_t logit_rows);

 private:
  bool has(std::int64_t size) const { return fine_ || size <= 64 || size >= 128; }

  bool fine_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> slots_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<ExtraStore> extra_stores_;
};

}  // namespace dendrite::cuda
