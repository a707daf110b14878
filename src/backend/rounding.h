#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

// Plain weights that are rounded when they are loaded.
namespace dendrite {

/// A matrix, rounded; as it is where it is not plain, or no whole groups. What its groups are is
/// read from the matrix given; codes of FP8 it holds itself, with a scale a row, as files of
/// `quantize` have them. Values that are not finite leave all as it is, for who packs it to find.
class RoundedMatrix {
 public:
  RoundedMatrix(const StoredMatrix& matrix, WeightRounding rounding);
  const StoredMatrix& matrix() const { return matrix_; }  // as long as this lives

 private:
  void round_to_fp8();

  StoredMatrix matrix_;
  std::vector<std::byte> codes_;
  std::vector<float> scales_;
};

/// As Backend::random_weight, rounded. of_expert: to be packed by Backend::pack_expert.
std::unique_ptr<Weight> random_rounded_weight(Backend& backend, std::int64_t rows,
                                              std::int64_t cols, WeightRounding rounding,
                                              std::uint64_t seed, bool of_expert = false,
                                              const Split& split = {});
/// A random matrix of an expert in MXFP4. Requires: cols is a multiple of 32.
std::unique_ptr<Weight> random_mxfp4_expert(Backend& backend, std::int64_t rows, std::int64_t cols,
                                            std::uint64_t seed);

}  // namespace dendrite
