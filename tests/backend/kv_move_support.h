#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/angle_blocks.h"
#include "model/rope.h"
#include "quant/e4m3.h"

// What the tests of Backend::move_kv share: angles on a device, and all pages of a store on the
// host, where a move is the formula of the op.
namespace dendrite::testing_support {

/// A kind of RoPE and the blocks of its angles on a device.
class Angles {
 public:
  Angles(Backend& backend, const RopeConfig& rope, std::int64_t rotary_dim)
      : frequencies_(inv_freq(rope, rotary_dim)),
        scaling_(attention_scaling(rope)),
        table_(frequencies_, scaling_),
        blocks_(table_, backend) {}
  Angles(const Angles&) = delete;
  Angles& operator=(const Angles&) = delete;

  KvMoves moves(KvStore& store, std::span<const KvMove> runs) {
    KvMoves moves;
    moves.runs = runs;
    moves.rotary_dim = table_.rotary_dim();
    moves.angles = blocks_.of(runs);
    const auto scaling = static_cast<double>(scaling_);
    moves.inverse_scale2 = static_cast<float>(1 / (scaling * scaling));
    moves.kv = &store;
    return moves;
  }
  std::vector<float> at(std::int64_t position) {
    std::vector<float> out(static_cast<std::size_t>(table_.rotary_dim()));
    table_.fill({&position, 1}, out.data());
    return out;
  }
  /// The f32 angle of a pair, which models were trained with.
  double angle(std::int64_t position, std::int64_t pair) const {
    const float angle = static_cast<float>(position) * frequencies_[static_cast<std::size_t>(pair)];
    return static_cast<double>(angle);
  }

 private:
  std::vector<float> frequencies_;
  float scaling_;
  RopeTable table_;
  AngleBlocks blocks_;
};

/// All slots of a store, as bits in the layout of snapshots.
class Image {
 public:
  explicit Image(const KvStore& store) : shape_(store.shape()) {
    for (std::int64_t page = 0; page < shape_.pages; ++page) {
      pages_.emplace_back(static_cast<std::size_t>(shape_.page_bytes()));
      store.export_page(static_cast<std::int32_t>(page),
                        static_cast<std::int32_t>(shape_.page_tokens), pages_.back());
    }
  }
  bool operator==(const Image& other) const { return pages_ == other.pages_; }

  /// A value of K (0) or V (1), widened.
  float get(std::int64_t slot, std::int64_t layer, std::int64_t head, int value,
            std::int64_t i) const {
    const std::byte* vector = const_cast<Image*>(this)->place(slot, layer, head, value);
    const std::byte* from = vector + i * size_of(shape_.format);
    if (shape_.format == KvFormat::kF32) {
      float out;
      std::memcpy(&out, from, 4);
      return out;
    }
    if (shape_.format == KvFormat::kFP8) {
      return e4m3_value(std::to_integer<std::uint8_t>(*from)) *
             std::ldexp(1.0F, std::to_integer<int>(vector[shape_.head_dim]) - 127);
    }
    BF16 out;
    std::memcpy(&out, from, 2);
    return to_f32(out);
  }
  /// Rounds all of a vector.
  void set(std::int64_t slot, std::int64_t layer, std::int64_t head, int value,
           std::span<const float> values) {
    std::byte* to = place(slot, layer, head, value);
    if (shape_.format == KvFormat::kFP8) {
      to[shape_.head_dim] = std::byte{round_to_e4m3(values, reinterpret_cast<std::uint8_t*>(to))};
      return;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (shape_.format == KvFormat::kF32) {
        std::memcpy(to + 4 * i, &values[i], 4);
      } else {
        const BF16 bits = to_bf16(values[i]);
        std::memcpy(to + 2 * i, &bits, 2);
      }
    }
  }

  /// What Backend::move_kv is to leave.
  void apply(const KvMoves& moves, Angles& angles) {
    const std::int64_t half = moves.rotary_dim / 2;
    for (const KvMove& run : moves.runs) {
      for (std::int64_t t = 0; t < run.count; ++t) {
        const std::vector<float> old_row = angles.at(run.old_position + t);
        const std::vector<float> new_row = angles.at(run.new_position + t);
        for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
          for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
            copy(run.from_slot + t, run.to_slot + t, layer, head);
            if (run.old_position == run.new_position) continue;
            std::vector<float> turned;
            for (std::int64_t i = 0; i < shape_.head_dim; ++i) {
              turned.push_back(get(run.from_slot + t, layer, head, 0, i));
            }
            for (std::int64_t i = 0; i < half; ++i) {
              const auto at = static_cast<std::size_t>(i);
              const auto sine = static_cast<std::size_t>(half + i);
              const float a = get(run.from_slot + t, layer, head, 0, i);
              const float b = get(run.from_slot + t, layer, head, 0, half + i);
              float u1 = a * old_row[at] + b * old_row[sine];
              float u2 = b * old_row[at] - a * old_row[sine];
              if (moves.inverse_scale2 != 1) {
                u1 *= moves.inverse_scale2;
                u2 *= moves.inverse_scale2;
              }
              turned[at] = u1 * new_row[at] - u2 * new_row[sine];
              turned[sine] = u2 * new_row[at] + u1 * new_row[sine];
            }
            if (half > 0) set(run.to_slot + t, layer, head, 0, turned);
          }
        }
      }
    }
  }

 private:
  std::byte* place(std::int64_t slot, std::int64_t layer, std::int64_t head, int value) {
    const std::int64_t run =
        (layer * shape_.kv_heads + head) * shape_.vectors() + (shape_.values_are_keys ? 0 : value);
    const std::int64_t token = run * shape_.page_tokens + slot % shape_.page_tokens;
    return pages_[static_cast<std::size_t>(slot / shape_.page_tokens)].data() +
           token * shape_.vector_bytes();
  }
  void copy(std::int64_t from, std::int64_t to, std::int64_t layer, std::int64_t head) {
    for (int value = 0; value < shape_.vectors(); ++value) {
      std::memcpy(place(to, layer, head, value), place(from, layer, head, value),
                  static_cast<std::size_t>(shape_.vector_bytes()));
    }
  }

  KvShape shape_;
  std::vector<std::vector<std::byte>> pages_;
};

/// Random normal numbers in all slots.
inline void fill(KvStore& store, std::uint32_t seed) {
  const KvShape& shape = store.shape();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto values = static_cast<std::size_t>(shape.page_tokens * shape.kv_heads * shape.head_dim);
  std::vector<float> k(values);
  std::vector<float> v(values);
  for (std::int64_t page = 0; page < shape.pages; ++page) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      for (float& value : k) value = normal(random);
      for (float& value : v) value = normal(random);
      store.write(static_cast<std::int32_t>(page), layer,
                  static_cast<std::int32_t>(shape.page_tokens), k, v);
    }
  }
}

/// The runs of `count` tokens that are consecutive in both slots and positions: cut where either
/// side's page ends.
inline std::vector<KvMove> runs_of(const KvMove& span, std::int64_t count,
                                   std::int64_t page_tokens) {
  std::vector<KvMove> runs;
  KvMove run = span;
  for (std::int64_t at = 0; at < count; at += run.count) {
    run.from_slot = span.from_slot + at;
    run.to_slot = span.to_slot + at;
    run.old_position = span.old_position + at;
    run.new_position = span.new_position + at;
    run.count =
        static_cast<std::int32_t>(std::min({count - at, page_tokens - run.from_slot % page_tokens,
                                            page_tokens - run.to_slot % page_tokens}));
    runs.push_back(run);
  }
  return runs;
}

}  // namespace dendrite::testing_support
