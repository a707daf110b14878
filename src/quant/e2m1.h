#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "quant/format.h"

// E2M1 in safetensors: two values in a byte, the even one in its low bits, with scales beside.
namespace dendrite {

/// Scales of E4M3, halved, as Groups::steps: from 2^-10 on, an eighth of that apart.
constexpr std::array<float, 8> halved_e4m3_steps() {
  std::array<float, 8> steps{};
  for (int i = 0; i < 8; ++i) steps[static_cast<std::size_t>(i)] = static_cast<float>(8 + i) / 8192;
  return steps;
}

/// Has scales in `steps`, or where these have next to no number for them, in f32.
void take_steps(const std::array<float, 8>& steps, Groups& groups);

/// The tensors of such a matrix.
struct E2M1Tensors {
  const TensorInfo* data = nullptr;
  const TensorInfo* scales = nullptr;
};

/// Groups of neighbours, each with a scale of a byte in "x.weight_scale"; their bytes are in
/// "x.weight_packed" (compressed-tensors) or "x.weight" (Model Optimizer), of type U8.
class E2M1Format : public Format {
 public:
  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const final;
  std::optional<Groups> groups(const StoredMatrix& matrix) const final;
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const final;

 protected:
  E2M1Format(std::string_view name, std::int64_t group) : Format(name, "U8", group, group / 2) {}

  /// The tensors of matrix `name` whose bytes are in `name` + `suffix`; none where these are not
  /// there. Throws Error where scales are missing, or are neither E4M3 nor E8M0.
  static std::optional<E2M1Tensors> tensors_of(const TensorSource& source, std::string_view name,
                                               std::string_view suffix);
  /// Throws Error where a shape is not that of [rows, cols].
  StoredMatrix matrix_of(const E2M1Tensors& tensors, const Format& scales, std::int64_t rows,
                         std::int64_t cols) const;

  /// How the scales of `groups` are stored.
  virtual void choose_scales(const StoredMatrix& matrix, Groups& groups) const = 0;
  /// What scales are multiplied with, or divided by.
  virtual void apply_whole(const StoredMatrix& /*matrix*/, std::span<float> /*scales*/) const {}

 private:
  /// Of whole numbers, which are twice the values.
  void read_scales(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::span<float> out) const;
};

}  // namespace dendrite
