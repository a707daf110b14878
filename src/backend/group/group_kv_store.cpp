#include "backend/group/group_kv_store.h"

#include <algorithm>
#include <utility>

namespace dendrite::group {
namespace {

/// f(what lies at place i of a rank's array, where it lies in that of all): `pieces` of so many
/// values each, which the ranks have in turns.
template <class F>
void in_turns(std::size_t pieces, std::size_t size, std::size_t rank, std::size_t ranks, F f) {
  for (std::size_t i = 0; i < pieces; ++i) f(i * size, (i * ranks + rank) * size);
}

}  // namespace

GroupKvStore::GroupKvStore(const KvShape& shape, std::vector<std::unique_ptr<KvStore>> of_ranks)
    : shape_(shape), of_ranks_(std::move(of_ranks)) {}

std::size_t GroupKvStore::values() const {
  const KvShape& of_rank = of_ranks_.front()->shape();
  return static_cast<std::size_t>(of_rank.kv_heads * of_rank.head_dim);
}

std::size_t GroupKvStore::layer_bytes() const {
  const KvShape& of_rank = of_ranks_.front()->shape();
  return static_cast<std::size_t>(of_rank.page_bytes() / of_rank.layers);
}

std::size_t GroupKvStore::raw_bytes() const {
  return static_cast<std::size_t>(of_ranks_.front()->raw_layout().page_bytes());
}

void GroupKvStore::copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) {
  for (const auto& store : of_ranks_) store->copy_slots(from, to, tokens);
}

void GroupKvStore::flush_copies() const {
  for (const auto& store : of_ranks_) store->flush_copies();
}

void GroupKvStore::read(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                        std::span<float> k, std::span<float> v) const {
  const auto rows = static_cast<std::size_t>(tokens);
  std::vector<float> of_rank(2 * rows * values());
  const auto keys = std::span(of_rank).first(rows * values());
  const auto values_of = std::span(of_rank).last(rows * values());
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    of_ranks_[rank]->read(page, layer, tokens, keys, values_of);
    in_turns(rows, values(), rank, of_ranks_.size(), [&](std::size_t from, std::size_t to) {
      std::ranges::copy(keys.subspan(from, values()), k.subspan(to).begin());
      std::ranges::copy(values_of.subspan(from, values()), v.subspan(to).begin());
    });
  }
}

void GroupKvStore::write(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                         std::span<const float> k, std::span<const float> v) {
  const auto rows = static_cast<std::size_t>(tokens);
  std::vector<float> of_rank(2 * rows * values());
  const auto keys = std::span(of_rank).first(rows * values());
  const auto values_of = std::span(of_rank).last(rows * values());
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    in_turns(rows, values(), rank, of_ranks_.size(), [&](std::size_t to, std::size_t from) {
      std::ranges::copy(k.subspan(from, values()), keys.subspan(to).begin());
      if (shape_.values_are_keys) return;
      std::ranges::copy(v.subspan(from, values()), values_of.subspan(to).begin());
    });
    of_ranks_[rank]->write(page, layer, tokens, keys, values_of);
  }
}

void GroupKvStore::export_page(std::int32_t page, std::int32_t tokens,
                               std::span<std::byte> out) const {
  const auto layers = static_cast<std::size_t>(shape_.layers);
  std::vector<std::byte> of_rank(layers * layer_bytes());
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    of_ranks_[rank]->export_page(page, tokens, of_rank);
    in_turns(layers, layer_bytes(), rank, of_ranks_.size(), [&](std::size_t from, std::size_t to) {
      std::ranges::copy(std::span(of_rank).subspan(from, layer_bytes()), out.subspan(to).begin());
    });
  }
}

void GroupKvStore::import_page(std::int32_t page, std::span<const std::byte> in) {
  const auto layers = static_cast<std::size_t>(shape_.layers);
  std::vector<std::byte> of_rank(layers * layer_bytes());
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    in_turns(layers, layer_bytes(), rank, of_ranks_.size(), [&](std::size_t to, std::size_t from) {
      std::ranges::copy(in.subspan(from, layer_bytes()), std::span(of_rank).subspan(to).begin());
    });
    of_ranks_[rank]->import_page(page, of_rank);
  }
}

KvStore::RawLayout GroupKvStore::raw_layout() const {
  RawLayout layout = of_ranks_.front()->raw_layout();
  layout.parts *= std::ssize(of_ranks_);
  return layout;
}

void GroupKvStore::read_raw(std::int32_t page, std::span<std::byte> out) const {
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    of_ranks_[rank]->read_raw(page, out.subspan(rank * raw_bytes(), raw_bytes()));
  }
}

void GroupKvStore::write_raw(std::int32_t page, std::span<const std::byte> in) {
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    of_ranks_[rank]->write_raw(page, in.subspan(rank * raw_bytes(), raw_bytes()));
  }
}

}  // namespace dendrite::group
