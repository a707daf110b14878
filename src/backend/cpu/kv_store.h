#pragma once

#include <span>

#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/kv_store.h"

namespace dendrite::cpu {

/// Pages in the layout that attention multiplies from (see KvLayout), page after page, so that the
/// memory in use grows with the pages in use, and a page's copy is one run per layer and head.
class CpuKvStore final : public KvStore {
 public:
  explicit CpuKvStore(const KvShape& shape);
  const KvShape& shape() const override { return shape_; }
  void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) override;
  void read(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<float> k,
            std::span<float> v) const override;
  void write(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<const float> k,
             std::span<const float> v) override;
  void export_page(std::int32_t page, std::int32_t tokens, std::span<std::byte> out) const override;
  void import_page(std::int32_t page, std::span<const std::byte> in) override;
  RawLayout raw_layout() const override;
  void read_raw(std::int32_t page, std::span<std::byte> out) const override;
  void write_raw(std::int32_t page, std::span<const std::byte> in) override;

  const KvLayout& layout() const { return layout_; }
  /// Page 0 of a layer, first kv head.
  std::byte* layer_data(std::int64_t layer) const {
    return memory_.data() + before_ + layer * layout_.layer_stride;
  }

 private:
  std::byte* raw(std::int32_t page) const { return memory_.data() + page * layout_.page_stride; }
  std::byte* at(std::int32_t page, std::int64_t layer, std::int64_t kv_head) const {
    return layer_data(layer) + page * layout_.page_stride + kv_head * layout_.head_stride;
  }

  KvShape shape_;
  KvLayout layout_;
  std::int64_t before_;  // bytes before each page that are not its own, in a guarded store
  Memory memory_;
};

}  // namespace dendrite::cpu
