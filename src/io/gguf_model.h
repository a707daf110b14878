#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/gguf_rows.h"

namespace dendrite {

/// A checkpoint that is a GGUF file, or several that one was split into: what Hugging Face's files
/// would say of it, made from its metadata, and its tensors under Hugging Face's names. Weights are
/// mapped, not read.
class GgufModel final : public Checkpoint {
 public:
  /// `path`: the file; of split ones ("NAME-00001-of-00003.gguf") the first, beside which the
  /// others are. Throws Error naming file and key or tensor: anything wrong in a file, a part that
  /// is missing or of another model, a tensor that the architecture doesn't have.
  explicit GgufModel(const std::filesystem::path& path);

  const std::filesystem::path& path() const override { return path_; }

  /// config.json, generation_config.json and, of a file with a tokenizer, tokenizer.json and
  /// tokenizer_config.json.
  bool has_text(const std::string& name) const override;
  std::string text(const std::string& name, std::int64_t max_bytes) const override;

  const TensorInfo* find(std::string_view name) const override;
  std::vector<std::string_view> names() const override;
  std::int64_t total_bytes() const override;
  void prefetch(int threads) const override;
  const std::vector<std::string>& warnings() const override { return warnings_; }

  /// Rows and columns that lie in another order come in a folder's (GgufLayout), and weights of
  /// norms less the 1 that a folder's go without.
  std::vector<StoredMatrix> stacked(std::string_view name, std::int64_t rows,
                                    std::int64_t cols) const override;
  std::vector<float> values(std::string_view name,
                            std::span<const std::int64_t> shape) const override;

 private:
  std::string tensors_path() const override { return path_.string(); }
  const GgufMetadata& metadata() const { return files_.front()->metadata(); }
  void open_parts();
  void leave_out();
  void name_tensors();
  void check_scales() const;
  const StoredMatrix& in_order(std::string_view name, const StoredMatrix& stored) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<GgufFile>> files_;
  std::vector<TensorInfo> tensors_;  // sorted by name
  std::string config_;
  std::string generation_config_;
  GgufLayout layout_;
  std::int64_t further_ =
      std::numeric_limits<std::int64_t>::max();  // layers from here are an MTP head's
  std::vector<std::string> warnings_;
  mutable std::mutex ordered_mutex_;
  mutable std::map<std::string, ColumnOrder, std::less<>> ordered_;  // by name, as they are asked
};

}  // namespace dendrite
