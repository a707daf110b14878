#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// One matrix of a tensor that holds several of one shape: [count, rows, cols].
struct Slice {
  std::int64_t index = 0;
  std::int64_t count = 0;
};

/// A model as files hold it: texts and tensors by name. What loaders read, whatever the files are.
/// Views of tensors live as long as the checkpoint.
class Checkpoint : public TensorSource {
 public:
  /// Of the folder or the file: messages name it.
  virtual const std::filesystem::path& path() const = 0;

  /// Texts are named as files of a folder are: "config.json".
  virtual bool has_text(const std::string& name) const = 0;
  /// Throws Error naming it when it is missing or longer than `max_bytes`.
  virtual std::string text(const std::string& name, std::int64_t max_bytes) const = 0;

  /// All tensor names, sorted.
  virtual std::vector<std::string_view> names() const = 0;
  virtual std::int64_t total_bytes() const = 0;  // of all tensors
  /// Reads all tensors into the page cache, with `threads` readers.
  virtual void prefetch(int threads) const = 0;
  /// What was odd but usable, one line each; for the caller to show.
  virtual const std::vector<std::string>& warnings() const = 0;

  /// Throws Error naming tensor, file, and got and expected shape.
  const TensorInfo& require(std::string_view name, std::span<const std::int64_t> shape) const;
  const TensorInfo& require(std::string_view name,
                            std::initializer_list<std::int64_t> shape) const {
    return require(name, std::span(shape.begin(), shape.size()));
  }
  /// The matrix [rows, cols] under a name, in whatever format it is stored. Throws Error naming
  /// tensor and file: missing, of another shape, of a type that no format has, or broken as
  /// Format::find says.
  StoredMatrix matrix(std::string_view name, std::int64_t rows, std::int64_t cols) const;
  /// The same as matrices that lie one below the other: more than one where rows are not stored in
  /// the order that they have.
  virtual std::vector<StoredMatrix> stacked(std::string_view name, std::int64_t rows,
                                            std::int64_t cols) const;
  /// The matrix [rows, cols] that is one of several in the tensor [slice.count, rows, cols] under a
  /// name: a view. Or in E2M1 with exponents, in the tensors of that name with "_blocks" and
  /// "_scales" behind. Throws Error likewise, and where its format has more than that tensor and,
  /// of NVFP4, a number for each matrix.
  virtual StoredMatrix slice(std::string_view name, const Slice& slice, std::int64_t rows,
                             std::int64_t cols) const;
  /// The values of a tensor of plain numbers, widened. Throws Error likewise.
  virtual std::vector<float> values(std::string_view name,
                                    std::span<const std::int64_t> shape) const;
  /// The same of one that is [count].
  std::vector<float> vector(std::string_view name, std::int64_t count) const {
    return values(name, {&count, 1});
  }

 protected:
  /// The file that a tensor which is missing is missing from.
  virtual std::string tensors_path() const = 0;
};

}  // namespace dendrite
