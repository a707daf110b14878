#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/kv_format.h"

namespace dendrite {

/// Layers whose K and V have heads of one size.
struct KvLayers {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;

  /// Of K or V of a token, in a layer.
  std::int64_t values() const { return kv_heads * head_dim; }
  bool operator==(const KvLayers&) const = default;
};

struct KvShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t pages = 0;
  std::int64_t page_tokens = 16;  // 8, 16 or 32
  KvFormat format = KvFormat::kBF16;
  bool guarded = false;  // debug mode: unused bytes around pages, KvStore::raw_layout
  /// Pages hold K alone, and what attention reads as V is K: of attention through a latent.
  bool values_are_keys = false;
  /// Layers of another size, which are numbered behind the others; none, mostly. Only a store of
  /// parts has them: make_kv_stores().
  KvLayers wide{};

  std::int64_t all_layers() const { return layers + wide.layers; }
  /// Of one layer of all.
  KvLayers of(std::int64_t layer) const {
    return layer < layers ? KvLayers{1, kv_heads, head_dim}
                          : KvLayers{1, wide.kv_heads, wide.head_dim};
  }
  /// That a page holds of a token, layer and head: K and V, or K.
  std::int64_t vectors() const { return values_are_keys ? 1 : 2; }
  /// Bytes of K or V of one token and head, but of wide layers, and of all of a token over all
  /// layers; unpadded.
  std::int64_t vector_bytes() const { return dendrite::vector_bytes(format, head_dim); }
  std::int64_t token_bytes() const {
    return vectors() *
           (layers * kv_heads * vector_bytes() +
            wide.layers * wide.kv_heads * dendrite::vector_bytes(format, wide.head_dim));
  }
  std::int64_t page_bytes() const { return token_bytes() * page_tokens; }
};

/// The pages' bytes: one allocation, private layout, made by Backend::make_kv_store. A page id
/// means the same slots in every layer. K is stored after RoPE. Memory is touched on first use.
class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual const KvShape& shape() const = 0;
  /// What ops are given: a store whose layers all have one size. Itself, but of a store of two
  /// parts (KvShape::wide) that of part 0 or 1.
  virtual KvStore& part(std::size_t) { return *this; }

  /// Copies the first `tokens` slots of page `from` to page `to` in all layers; nothing else of
  /// `to` is meaningful afterwards. Requires 0 < tokens <= page_tokens, from != to. Where the
  /// device takes many copies at a time, a pass sees it after flush_copies() only.
  virtual void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) = 0;
  /// Before a pass: enqueues what was copied since the last time.
  virtual void flush_copies() const {}

  /// K and V of slots [0, tokens) of one page and layer, widened to f32, in canonical order:
  ///   k, v  [tokens, kv_heads, head_dim], those of shape().of(layer); both K where values are keys
  virtual void read(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<float> k,
                    std::span<float> v) const = 0;
  /// The inverse of read() for values that came from it; exact. Where values are keys, nobody looks
  /// at v. For tests.
  virtual void write(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                     std::span<const float> k, std::span<const float> v) = 0;

  /// The stored bits of slots [0, tokens) of a page in the layout of snapshots, which is the same
  /// on every device; zeros in the other slots.
  ///   out  shape().page_bytes() bytes: [layers][kv_heads][K, V][page_tokens][head_dim] of the
  ///   format, without V where values are keys, then the same of wide layers; FP8: [head_dim]
  ///   codes, then the scale (quant/e4m3.h)
  /// Several threads may call it at once. Requires 0 <= tokens <= page_tokens.
  virtual void export_page(std::int32_t page, std::int32_t tokens,
                           std::span<std::byte> out) const = 0;
  /// The inverse: fills all slots. Several threads may call it at once for different pages.
  virtual void import_page(std::int32_t page, std::span<const std::byte> in) = 0;

  // --- for debug mode and its tests
  /// A page as it lies in memory: `parts` pieces of `bytes`. In a guarded store each has bytes
  /// around it that no operation touches: 64 before it, 64 and a guard region behind it. Whole
  /// numbers of 8 bytes.
  struct RawLayout {
    std::int64_t parts = 1;
    std::int64_t before = 0;
    std::int64_t bytes = 0;
    std::int64_t after = 0;

    std::int64_t part_bytes() const { return before + bytes + after; }
    std::int64_t page_bytes() const { return parts * part_bytes(); }
  };
  virtual RawLayout raw_layout() const = 0;
  /// All of a page's memory, part after part, as everything enqueued before leaves it, and the
  /// inverse. raw_layout().page_bytes() bytes. May be called while another thread runs a pass.
  virtual void read_raw(std::int32_t page, std::span<std::byte> out) const = 0;
  virtual void write_raw(std::int32_t page, std::span<const std::byte> in) = 0;
};

/// One more place where a row's K and V go: the copy of a page that a child made before its
/// parent's last tokens were computed.
struct ExtraStore {
  std::int32_t row = 0;
  std::int64_t slot = 0;  // page * page_tokens + offset
};

}  // namespace dendrite
