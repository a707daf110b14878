#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/kv_store.h"

namespace dendrite::group {

/// Pages whose heads lie on the ranks, as many on each. Page ids are the same on all.
class GroupKvStore final : public KvStore {
 public:
  /// shape: of all. A rank's store has the same but for its heads.
  GroupKvStore(const KvShape& shape, std::vector<std::unique_ptr<KvStore>> of_ranks);

  const KvShape& shape() const override { return shape_; }
  void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) override;
  void flush_copies() const override;
  void read(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<float> k,
            std::span<float> v) const override;
  void write(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<const float> k,
             std::span<const float> v) override;
  void export_page(std::int32_t page, std::int32_t tokens, std::span<std::byte> out) const override;
  void import_page(std::int32_t page, std::span<const std::byte> in) override;
  /// Parts of rank 0, then those of the next.
  RawLayout raw_layout() const override;
  void read_raw(std::int32_t page, std::span<std::byte> out) const override;
  void write_raw(std::int32_t page, std::span<const std::byte> in) override;

  KvStore& on(std::size_t rank) const { return *of_ranks_[rank]; }

 private:
  /// Values of K or V of a token and layer on a rank.
  std::size_t values() const;
  /// Bytes of a layer of a page on a rank, in the layout of snapshots.
  std::size_t layer_bytes() const;
  std::size_t raw_bytes() const;

  KvShape shape_;
  std::vector<std::unique_ptr<KvStore>> of_ranks_;
};

}  // namespace dendrite::group
