#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/model_folder.h"

namespace dendrite {

/// A matrix [rows, cols] that will be packed, and where the files hold it: every `step`-th row of
/// `stored` from `first` on, or of its columns.
struct SourceMatrix {
  StoredMatrix stored{};
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool transposed = false;  // columns of `stored` are rows of this
  std::int64_t first = 0;
  std::int64_t step = 1;

  /// Rows from `begin` on, widened: as many as `out` is whole rows.
  void widen(std::int64_t begin, std::span<float> out) const;
};

/// By the names under which they are written.
using Matrices = std::map<std::string, SourceMatrix, std::less<>>;

/// A tensor with something of all experts of a layer, which are written each by itself.
struct PartedTensor {
  /// Values of it that are a vector by themselves: every `step`-th, from `first` on.
  struct Vector {
    std::string name;
    std::int64_t count = 0;
    std::int64_t first = 0;
    std::int64_t step = 1;
  };

  std::string experts;  // what names of all that belongs to these experts begin with
  std::vector<std::string> matrices{};
  std::vector<Vector> biases{};
};
using Parted = std::map<std::string, PartedTensor, std::less<>>;

/// Of int4, the largest first.
inline constexpr std::array kGroups{std::int64_t{128}, std::int64_t{64}, std::int64_t{32}};

/// The matrices of layers that multiply, and in which tensors those lie that share one. Requires
/// that the model's loader has looked at all tensors. Experts that are packed already are none.
Matrices matrices_of(const ModelFolder& folder, Parted& parted);

/// The largest of kGroups that rows of all matrices are whole groups of; else the least.
std::int64_t common_group(const Matrices& matrices);

/// Takes out what is not whole groups (0: nothing): matrices by themselves, and experts of a layer
/// together, which stay in their tensors. The modules that are left.
std::vector<std::string> leave_out(Matrices& matrices, Parted& parted, std::int64_t group);

/// Modules that readers must not take for packed ones: matrices that are none of `matrices`,
/// experts that are packed in another way, and all of what is not the model's text.
std::vector<std::string> modules_that_stay(const ModelFolder& folder, const Matrices& matrices,
                                           const Parted& parted);

}  // namespace dendrite
