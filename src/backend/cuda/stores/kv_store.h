#pragma once

#include <mutex>
#include <vector>

#include "backend/cuda/base/device.h"
#include "backend/cuda/stores/copy_queue.h"
#include "backend/kv_store.h"

namespace dendrite::cuda {

/// Pages as  [layers][pages][kv_heads][K, V][page_tokens][head_dim]  in the KV format: a page of
/// one head is one run of memory, a warp reads a token's values in one piece, and a page of one
/// layer is as snapshots have it. In FP8 these are the codes; behind those of a page of a layer are
/// its scales  [kv_heads][K, V][page_tokens],  so that codes begin on 16 bytes where head_dim is a
/// multiple of that, and four scales on 4. Where values are keys (KvShape) there is no V in all
/// this. Pages of a layer begin on 16 bytes; in a guarded store each has unused bytes around it.
struct KvView {
  std::byte* data = nullptr;     // page 0 of one layer
  std::int64_t page_stride = 0;  // bytes from page to page
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int32_t page_tokens = 16;
  std::int32_t page_shift = 4;
  std::int32_t head_vectors = 32;   // from a head of a page to the next
  std::int32_t value_vectors = 16;  // from its K to its V; 0: values are keys
  KvFormat format = KvFormat::kBF16;
  std::int64_t scales_offset = 0;  // bytes from a page to its scales; FP8 only
};

/// What a kernel must know of pages of this shape, but for where they are.
KvView view_of(const KvShape& shape);

/// Copies of a step are one launch: a draft of 64 tokens has some 40, and a launch takes longer
/// than a copy. They wait until something is to see them, or until one depends on another
/// (CopyQueue).
class CudaKvStore final : public KvStore {
 public:
  CudaKvStore(Device& device, const KvShape& shape);
  const KvShape& shape() const override { return shape_; }
  void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) override;
  /// Also before reads and writes of pages: copies that were asked for before come before.
  void flush_copies() const override;
  void read(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<float> k,
            std::span<float> v) const override;
  void write(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<const float> k,
             std::span<const float> v) override;
  void export_page(std::int32_t page, std::int32_t tokens, std::span<std::byte> out) const override;
  void import_page(std::int32_t page, std::span<const std::byte> in) override;
  RawLayout raw_layout() const override;
  void read_raw(std::int32_t page, std::span<std::byte> out) const override;
  void write_raw(std::int32_t page, std::span<const std::byte> in) override;

  KvView view(std::int64_t layer) const;

 private:
  std::int64_t layer_bytes() const { return page_stride_ * shape_.pages; }
  /// Of one layer.
  std::int64_t page_bytes() const { return vectors() * shape_.vector_bytes(); }
  std::int64_t vectors() const { return shape_.vectors() * shape_.kv_heads * shape_.page_tokens; }
  bool has_scales() const { return shape_.format == KvFormat::kFP8; }
  std::byte* page(std::int32_t page, std::int64_t layer) const {
    return memory_.data() + layer * layer_bytes() + page * page_stride_ + before_;
  }

  void launch(const std::vector<SlotCopy>& copies) const;
  /// A page of one layer to and from the host.
  std::vector<std::byte> get(const char* op, std::int32_t page, std::int64_t layer) const;
  void put(const char* op, std::int32_t page, std::int64_t layer,
           std::span<const std::byte> bytes) const;

  Device& device_;
  KvShape shape_;
  std::int64_t before_;       // bytes before each page of a layer that are not its own
  std::int64_t after_;        // and behind it
  std::int64_t page_stride_;  // of one layer, with those
  Memory memory_;
  mutable std::mutex mutex_;  // debug mode reads while another thread runs a pass
  mutable CopyQueue waiting_;
};

}  // namespace dendrite::cuda
