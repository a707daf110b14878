#pragma once

#include <optional>
#include <string>

#include "quant/format.h"
#include "quant/nibbles.h"

namespace dendrite {

/// The tensors of a matrix of 4 bits that lies transposed, columns first, as AWQ and GPTQ write
/// theirs: qweight beside scales and qzeros, [groups, rows] each.
struct Columns4 {
  const TensorInfo* weight = nullptr;
  std::string base;  // "....q_proj."

  /// Of the matrix "....q_proj.weight"; none where there is no such tensor.
  static std::optional<Columns4> of(const TensorSource& source, std::string_view name);

  /// All but where the words of `weight` are. `zeros`: how words of qzeros are read.
  StoredMatrix matrix(const TensorSource& source, const Format& format, const Format& zeros,
                      std::int64_t rows, std::int64_t cols) const;
};

/// Rows of words of eight zero points, `more` added to each.
class ZerosAcross final : public Format {
 public:
  ZerosAcross(const NibbleOrder& order, int more)
      : Format("int4 zeros", "I32", 8, 4), order_(order), more_(more) {}
  void widen(const StoredMatrix& zeros, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override;

 private:
  NibbleOrder order_;
  int more_;
};

/// The scale and the zero point of a row in one group after the other.
class GroupsOfRow {
 public:
  GroupsOfRow(const StoredMatrix& matrix, std::int64_t row) : matrix_(matrix), row_(row) {}

  float value(std::uint32_t nibble, std::int64_t group) {
    if (group != group_) read(group);
    return (static_cast<float>(nibble) - zero_) * scale_;
  }
  void read(std::int64_t group, float& scale, float& minimum) {
    if (group != group_) read(group);
    scale = scale_;
    minimum = scale_ * zero_;
  }

 private:
  void read(std::int64_t group);

  const StoredMatrix& matrix_;
  std::int64_t row_;
  std::int64_t group_ = -1;
  float scale_ = 0;
  float zero_ = 0;
};

}  // namespace dendrite
