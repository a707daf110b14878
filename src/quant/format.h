#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "quant/groups.h"
#include "quant/tensor_info.h"

namespace dendrite {

class Format;

/// Numbers that go with a matrix [rows, cols]: one for each piece of it, all pieces of one size, as
/// a dense grid. [rows, 1]: one a row; [rows, cols / 32]: one for 32 values of a row; [1, 1]: one
/// for all.
struct Companion {
  const Format* format = nullptr;  // null: there is none
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  /// Numbers [begin, begin + out.size()) of row `row`, widened.
  void widen(std::int64_t row, std::int64_t begin, std::span<float> out) const;
};

/// A matrix [rows, cols] as a file holds it: what a checkpoint gives, and a backend makes a weight
/// of. A view, valid as long as its tensors are.
struct StoredMatrix {
  const Format* format = nullptr;
  const std::byte* data = nullptr;  // rows of `stride` bytes, each whole blocks; may be unaligned
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
  std::string_view name{};  // of the tensor, and its file: for messages alone
  std::string_view file{};
  Companion scales{};  // what they mean, the format knows
  Companion zeros{};
  Companion whole{};                  // one number for all of it, beside scales
  const std::byte* groups = nullptr;  // i32 [cols]: whose scale a column takes; null: by its place
  bool as_plain = false;              // to be multiplied as if it were stored as plain numbers
  bool rounds_inputs = false;         // made for inputs that are rounded to its format, too
  Companion input_whole{};  // the same as `whole`, of such inputs; none where the file says none

  const std::byte* row(std::int64_t i) const { return data + i * stride; }
};

/// How the values of a matrix are stored. One object a format, in a file of its own; no device
/// code. A device that has a kernel for a format keeps a matrix as it is stored; all others widen
/// it when they load it, so a new format is its file and its line in formats.h.
class Format {
 public:
  virtual ~Format() = default;
  Format(const Format&) = delete;
  Format& operator=(const Format&) = delete;

  std::string_view name() const { return name_; }  // "bf16"
  /// The type of its data tensor, as files spell it: "BF16".
  std::string_view stored_type() const { return stored_type_; }
  /// Values of a row that are read together, and their bytes of data. A row is whole blocks, and so
  /// are kMostBlock values.
  static constexpr std::int64_t kMostBlock = 256;
  std::int64_t block() const { return block_; }
  std::int64_t block_bytes() const { return block_bytes_; }

  /// The number type of a plain format, whose values lie one by one as devices compute with them.
  virtual std::optional<DType> number() const { return std::nullopt; }

  /// The matrix [rows, cols] that `source` holds under `name` ("....q_proj.weight") in this format;
  /// none where it holds it in another, or not at all. Throws Error naming tensor and file, what
  /// was got and what was expected, where it is in this format and broken: another shape, a row
  /// that is no whole blocks, a companion that is missing or of a wrong shape or type.
  virtual std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                           std::int64_t rows, std::int64_t cols) const;

  /// Values [begin, begin + out.size()) of row `row`, exactly as they are meant: whole blocks.
  virtual void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                     std::span<float> out) const = 0;

  /// What the groups of a matrix in this format are like; none where it has no groups of
  /// neighbours, which with StoredMatrix::groups are those of column_order.h.
  virtual std::optional<Groups> groups(const StoredMatrix&) const { return std::nullopt; }
  /// Values [begin, begin + count) of row `row` as groups() has them: whole blocks, from a multiple
  /// of 256 on.
  virtual void read_groups(const StoredMatrix&, std::int64_t /*row*/, std::int64_t /*begin*/,
                           std::int64_t /*count*/, GroupedValues&) const {}

 protected:
  Format(std::string_view name, std::string_view stored_type, std::int64_t block,
         std::int64_t block_bytes)
      : name_(name), stored_type_(stored_type), block_(block), block_bytes_(block_bytes) {}

  /// `tensor` of shape [rows, cols] as the data of a matrix; checked as find() says.
  StoredMatrix matrix_of(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols) const;
  /// The companion [rows, cols] of `matrix` of plain numbers, in the tensor of its name with
  /// `suffix` behind. Throws Error where it is missing or broken: nothing is ever taken for 1.
  static Companion companion_of(const TensorSource& source, const StoredMatrix& matrix,
                                std::string_view suffix, std::int64_t rows, std::int64_t cols);

 private:
  std::string_view name_;
  std::string_view stored_type_;
  std::int64_t block_;
  std::int64_t block_bytes_;
};

}  // namespace dendrite
