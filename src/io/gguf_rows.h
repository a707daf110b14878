#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// How a file's tensors lie where that is not as a folder's do. Names are Hugging Face's.
struct GgufLayout {
  std::int64_t head_dim = 0;
  bool paired = false;        // row 2i + h of a head of q or k is row i of half h
  bool zero_centred = false;  // norms hold 1 + what a folder's do
  /// Of delta networks: value heads lie in turns of their key heads, the first of each, then the
  /// second of each.
  bool tiled = false;
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;

  /// Whether that of a norm is 1 too many.
  bool adds_one(std::string_view name) const;
  /// Whether columns are those of value heads that lie in turns.
  bool has_columns_in_turns(std::string_view name) const;
  /// Where value head `head` lies among the others.
  std::int64_t place_of(std::int64_t head) const;
};

/// Rows first, first + step, ...
struct RowRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
};

/// The rows of a tensor in the order that a folder has. Empty: as they are. Throws Error naming
/// `file` and tensor where they are no whole heads.
std::vector<RowRun> row_runs(const GgufLayout& layout, std::string_view name, std::int64_t rows,
                             std::string_view file);

/// A matrix whose columns lie in turns, in the order that a folder has them. Plain numbers are
/// copied; others are put in order as they are widened.
class ColumnOrder {
 public:
  ColumnOrder(const StoredMatrix& stored, const GgufLayout& layout);
  const StoredMatrix& matrix() const { return matrix_; }  // as long as this lives

 private:
  void copy(const StoredMatrix& stored, const GgufLayout& layout);

  std::vector<std::byte> bytes_;
  std::unique_ptr<Format> format_;
  StoredMatrix matrix_;
};

}  // namespace dendrite
