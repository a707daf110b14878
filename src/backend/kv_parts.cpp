#include "backend/kv_parts.h"

#include <array>
#include <utility>

namespace dendrite {
namespace {

/// Of the layers of one size.
KvShape shape_of(KvShape shape, const KvLayers& layers) {
  shape.layers = layers.layers;
  shape.kv_heads = layers.kv_heads;
  shape.head_dim = layers.head_dim;
  shape.wide = {};
  return shape;
}

class KvParts final : public KvStore {
 public:
  KvParts(Backend& backend, const KvShape& shape)
      : shape_(shape),
        parts_{
            backend.make_kv_store(shape_of(shape, {shape.layers, shape.kv_heads, shape.head_dim})),
            backend.make_kv_store(shape_of(shape, shape.wide))} {}

  const KvShape& shape() const override { return shape_; }
  KvStore& part(std::size_t i) override { return *parts_[i]; }

  void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) override {
    for (const auto& part : parts_) part->copy_slots(from, to, tokens);
  }
  void flush_copies() const override {
    for (const auto& part : parts_) part->flush_copies();
  }
  void read(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<float> k,
            std::span<float> v) const override {
    const auto [part, of_part] = place(layer);
    part->read(page, of_part, tokens, k, v);
  }
  void write(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<const float> k,
             std::span<const float> v) override {
    const auto [part, of_part] = place(layer);
    part->write(page, of_part, tokens, k, v);
  }
  void export_page(std::int32_t page, std::int32_t tokens,
                   std::span<std::byte> out) const override {
    each(out, &page_bytes,
         [&](KvStore& part, std::span<std::byte> bytes) { part.export_page(page, tokens, bytes); });
  }
  void import_page(std::int32_t page, std::span<const std::byte> in) override {
    each(in, &page_bytes,
         [&](KvStore& part, std::span<const std::byte> bytes) { part.import_page(page, bytes); });
  }

  /// All of both parts, as one piece: what is around pages is the parts' own.
  RawLayout raw_layout() const override {
    return {.bytes = raw_bytes(*parts_[0]) + raw_bytes(*parts_[1])};
  }
  void read_raw(std::int32_t page, std::span<std::byte> out) const override {
    each(out, &raw_bytes,
         [&](KvStore& part, std::span<std::byte> bytes) { part.read_raw(page, bytes); });
  }
  void write_raw(std::int32_t page, std::span<const std::byte> in) override {
    each(in, &raw_bytes,
         [&](KvStore& part, std::span<const std::byte> bytes) { part.write_raw(page, bytes); });
  }

 private:
  static std::int64_t page_bytes(const KvStore& part) { return part.shape().page_bytes(); }
  static std::int64_t raw_bytes(const KvStore& part) { return part.raw_layout().page_bytes(); }

  std::pair<KvStore*, std::int64_t> place(std::int64_t layer) const {
    const bool wide = layer >= shape_.layers;
    return {parts_[wide ? 1 : 0].get(), wide ? layer - shape_.layers : layer};
  }
  /// f(part, its bytes of `all`)
  template <class Byte, class F>
  void each(std::span<Byte> all, std::int64_t (*bytes)(const KvStore&), F f) const {
    const auto first = static_cast<std::size_t>(bytes(*parts_[0]));
    f(*parts_[0], all.first(first));
    f(*parts_[1], all.subspan(first));
  }

  KvShape shape_;
  std::array<std::unique_ptr<KvStore>, 2> parts_;
};

}  // namespace

std::unique_ptr<KvStore> make_kv_stores(Backend& backend, const KvShape& shape) {
  if (shape.wide.layers == 0) return backend.make_kv_store(shape);
  return std::make_unique<KvParts>(backend, shape);
}

}  // namespace dendrite
