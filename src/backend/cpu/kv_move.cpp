// K and V of runs of tokens to other pages, K rotated from its old position to the new one (see
// Backend::move_kv). One scalar code for all instruction paths, so that all have the same bits:
// compiled for none of them and without contraction.
//
// Layouts (KvLayout): K of a page and head is [dims][page_tokens], in bf16 pairs of dims, so the
// loops run over the tokens of a run, which are neighbours there; the angles of a run are laid out
// the same way first, once for all layers and heads. V is [page_tokens][padded], in bf16 pairs of
// tokens, so a token's values are every other one. FP8 goes vector by vector, since all values of
// one share a scale: a K that is turned is rounded as a whole, V and other K keep their bits.
// Floor: the bytes of K and V, read and written once, over the memory's bandwidth.
#include "backend/cpu/kv_move.h"

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "backend/cpu/kv_layout.h"
#include "backend/cpu/kv_store.h"
#include "core/dtype.h"

namespace dendrite::cpu {
namespace {

struct Pair {
  float a, b;
};

/// Back by the angle with (cos, sin) `c`, `s`, over the scale, then on by that with `c2`, `s2`.
inline Pair turn(Pair k, float c, float s, float inverse_scale2, float c2, float s2) {
  const float u1 = (k.a * c + k.b * s) * inverse_scale2;  // exact where that is 1
  const float u2 = (k.b * c - k.a * s) * inverse_scale2;
  return {u1 * c2 - u2 * s2, u2 * c2 + u1 * s2};
}

inline float low_half(std::uint32_t word) {
  return std::bit_cast<float>(word << 16);
}
inline float high_half(std::uint32_t word) {
  return std::bit_cast<float>(word & 0xffff0000u);
}
inline std::uint32_t word_of(float low, float high) {
  return static_cast<std::uint32_t>(to_bf16(low)) | static_cast<std::uint32_t>(to_bf16(high)) << 16;
}

/// The cosines and sines of a run as [pairs][4][count]: old cosines, old sines, new ones.
class RunAngles {
 public:
  void set(const KvMoves& args, const KvMove& run) {
    count_ = run.count;
    const std::int64_t half = args.rotary_dim / 2;
    values_.resize(static_cast<std::size_t>(half * 4 * count_));
    for (std::int64_t token = 0; token < count_; ++token) {
      const float* old_angles = row(args, run.old_position + token);
      const float* new_angles = row(args, run.new_position + token);
      float* out = values_.data() + token;
      for (std::int64_t i = 0; i < half; ++i, out += 4 * count_) {
        out[0] = old_angles[i];
        out[count_] = old_angles[half + i];
        out[2 * count_] = new_angles[i];
        out[3 * count_] = new_angles[half + i];
      }
    }
  }
  const float* pair(std::int64_t i) const { return values_.data() + i * 4 * count_; }

  /// Of one position: cosines, then sines.
  static const float* row(const KvMoves& args, std::int64_t position) {
    return args.angles[static_cast<std::size_t>(position / KvMoves::kAnglePositions)] +
           position % KvMoves::kAnglePositions * args.rotary_dim;
  }

 private:
  std::int64_t count_ = 0;
  std::vector<float> values_;
};

/// Moves runs; one a thread.
class Mover {
 public:
  explicit Mover(const KvMoves& args)
      : args_(args),
        store_(static_cast<const CpuKvStore&>(*args.kv)),
        layout_(store_.layout()),
        half_(args.rotary_dim / 2) {}

  /// Runs one after the other, all layers of each: unit i is run i / layers, layer i % layers.
  void move(std::int64_t begin, std::int64_t end) {
    const std::int64_t layers = store_.shape().layers;
    const KvMove* last = nullptr;
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const KvMove& run = args_.runs[static_cast<std::size_t>(unit / layers)];
      if (&run != last) start(run);
      last = &run;
      const std::byte* from = at(unit % layers, run.from_slot >> layout_.page_shift);
      std::byte* to = at(unit % layers, run.to_slot >> layout_.page_shift);
      for (std::int64_t head = 0; head < store_.shape().kv_heads; ++head) {
        if (layout_.format == KvFormat::kFP8) {
          move_vectors(run, from, to);
        } else {
          move_keys(from, to);
          if (!layout_.values_are_keys) {
            move_values(from + layout_.v_offset, to + layout_.v_offset);
          }
        }
        from += layout_.head_stride;
        to += layout_.head_stride;
      }
    }
  }

 private:
  void start(const KvMove& run) {
    count_ = run.count;
    from_ = run.from_slot & (layout_.page_tokens - 1);
    to_ = run.to_slot & (layout_.page_tokens - 1);
    turned_ = run.old_position == run.new_position ? 0 : half_;
    if (turned_ > 0 && layout_.format != KvFormat::kFP8) angles_.set(args_, run);
  }
  std::byte* at(std::int64_t layer, std::int64_t page) const {
    return store_.layer_data(layer) + page * layout_.page_stride;
  }

  void move_keys(const std::byte* from, std::byte* to) const {
    const bool words = layout_.format == KvFormat::kBF16;  // two dims each
    if (!words) {
      for (std::int64_t i = 0; i < turned_; ++i) turn_dims(from, to, i);
    } else if (turned_ % 2 == 0) {
      for (std::int64_t i = 0; i < turned_; i += 2) turn_words(from, to, i);
    } else {
      for (std::int64_t i = 0; i < turned_; ++i) turn_halves(from, to, i);
    }
    // Past rotary_dim, which is even; a last word of one dim with the zero beside it.
    const std::int64_t steps = words ? (layout_.head_dim + 1) / 2 : layout_.head_dim;
    for (std::int64_t step = words ? turned_ : 2 * turned_; step < steps; ++step) {
      std::memcpy(word(to, step) + to_, word(from, step) + from_,
                  static_cast<std::size_t>(count_) * 4);
    }
  }

  /// Words of a step of K: of all tokens of the page.
  std::uint32_t* word(std::byte* keys, std::int64_t step) const {
    return reinterpret_cast<std::uint32_t*>(keys) + step * layout_.page_tokens;
  }
  const std::uint32_t* word(const std::byte* keys, std::int64_t step) const {
    return reinterpret_cast<const std::uint32_t*>(keys) + step * layout_.page_tokens;
  }

  /// f32: dims i and i + half.
  void turn_dims(const std::byte* from, std::byte* to, std::int64_t i) const {
    const auto* __restrict a = reinterpret_cast<const float*>(word(from, i)) + from_;
    const auto* __restrict b = reinterpret_cast<const float*>(word(from, i + half_)) + from_;
    auto* __restrict a_out = reinterpret_cast<float*>(word(to, i)) + to_;
    auto* __restrict b_out = reinterpret_cast<float*>(word(to, i + half_)) + to_;
    const float* angles = angles_.pair(i);
    const float scale = args_.inverse_scale2;
    const std::int64_t n = count_;
    for (std::int64_t t = 0; t < n; ++t) {
      const Pair out =
          turn({a[t], b[t]}, angles[t], angles[n + t], scale, angles[2 * n + t], angles[3 * n + t]);
      a_out[t] = out.a;
      b_out[t] = out.b;
    }
  }

  /// bf16, where pairs lie in the same half of two words: dims i, i + 1 and those at + half.
  void turn_words(const std::byte* from, std::byte* to, std::int64_t i) const {
    const std::uint32_t* __restrict a = word(from, i / 2) + from_;
    const std::uint32_t* __restrict b = word(from, (i + half_) / 2) + from_;
    std::uint32_t* __restrict a_out = word(to, i / 2) + to_;
    std::uint32_t* __restrict b_out = word(to, (i + half_) / 2) + to_;
    const float* angles = angles_.pair(i);
    const float scale = args_.inverse_scale2;
    const std::int64_t n = count_;
    for (std::int64_t t = 0; t < n; ++t) {
      const Pair low = turn({low_half(a[t]), low_half(b[t])}, angles[t], angles[n + t], scale,
                            angles[2 * n + t], angles[3 * n + t]);
      const Pair high = turn({high_half(a[t]), high_half(b[t])}, angles[4 * n + t],
                             angles[5 * n + t], scale, angles[6 * n + t], angles[7 * n + t]);
      a_out[t] = word_of(low.a, high.a);
      b_out[t] = word_of(low.b, high.b);
    }
  }

  /// bf16, where they don't.
  void turn_halves(const std::byte* from, std::byte* to, std::int64_t i) const {
    const auto place = [this](std::int64_t dim, std::int64_t token) {
      return (dim / 2 * layout_.page_tokens + token) * 2 + dim % 2;
    };
    const auto* in = reinterpret_cast<const BF16*>(from);
    auto* out = reinterpret_cast<BF16*>(to);
    const float* angles = angles_.pair(i);
    const std::int64_t n = count_;
    for (std::int64_t t = 0; t < n; ++t) {
      const Pair k{to_f32(in[place(i, from_ + t)]), to_f32(in[place(i + half_, from_ + t)])};
      const Pair turned = turn(k, angles[t], angles[n + t], args_.inverse_scale2, angles[2 * n + t],
                               angles[3 * n + t]);
      out[place(i, to_ + t)] = to_bf16(turned.a);
      out[place(i + half_, to_ + t)] = to_bf16(turned.b);
    }
  }

  void move_values(const std::byte* from, std::byte* to) const {
    const std::int64_t row = layout_.padded_dim;
    if (layout_.format == KvFormat::kF32) {
      for (std::int64_t t = 0; t < count_; ++t) {
        std::memcpy(to + (to_ + t) * row * 4, from + (from_ + t) * row * 4,
                    static_cast<std::size_t>(layout_.head_dim) * 4);
      }
      return;
    }
    // A word has a value of two tokens. Other threads may write the other one of a word at an end
    // of the run, so that one is left alone.
    for (std::int64_t t = 0; t < count_; ++t) {
      const std::int64_t source = from_ + t;
      const std::int64_t target = to_ + t;
      const std::byte* in = from + source / 2 * row * 4;
      std::byte* out = to + target / 2 * row * 4;
      if (target % 2 == 0 && source % 2 == 0 && t + 1 < count_) {
        std::memcpy(out, in, static_cast<std::size_t>(layout_.head_dim) * 4);
        ++t;
        continue;
      }
      const auto* values = reinterpret_cast<const std::uint16_t*>(in) + source % 2;
      auto* copies = reinterpret_cast<std::uint16_t*>(out) + target % 2;
      for (std::int64_t i = 0; i < layout_.head_dim; ++i) copies[2 * i] = values[2 * i];
    }
  }

  void move_vectors(const KvMove& run, const std::byte* from, std::byte* to) const {
    std::array<std::byte, kMaxVectorBytes> stored;
    std::array<float, kMaxHeadDim> room;
    const std::span key = std::span(room).first(static_cast<std::size_t>(layout_.head_dim));
    for (std::int64_t t = 0; t < count_; ++t) {
      for (const KvPart part : parts_of(layout_)) {
        get_vector(layout_, from, part, from_ + t, stored.data());
        if (part == KvPart::kK && turned_ > 0) {
          widen_vector(layout_.format, stored.data(), key);
          turn_vector(key.data(), RunAngles::row(args_, run.old_position + t),
                      RunAngles::row(args_, run.new_position + t));
          round_vector(layout_.format, key, stored.data());
        }
        put_vector(layout_, to, part, to_ + t, stored.data());
      }
    }
  }

  void turn_vector(float* k, const float* old_angles, const float* new_angles) const {
    const std::int64_t half = half_;
    for (std::int64_t i = 0; i < half; ++i) {
      const Pair out = turn({k[i], k[half + i]}, old_angles[i], old_angles[half + i],
                            args_.inverse_scale2, new_angles[i], new_angles[half + i]);
      k[i] = out.a;
      k[half + i] = out.b;
    }
  }

  const KvMoves& args_;
  const CpuKvStore& store_;
  const KvLayout& layout_;
  const std::int64_t half_;
  // Of the current run.
  std::int64_t count_ = 0;
  std::int64_t from_ = 0;  // its first token in either page
  std::int64_t to_ = 0;
  std::int64_t turned_ = 0;  // pairs of K that are rotated
  RunAngles angles_;
};

}  // namespace

void move_kv(const KvMoves& args, const ThreadPool& pool) {
  const std::int64_t units = std::ssize(args.runs) * args.kv->shape().layers;
  pool.parallel_for(units, 8,
                    [&](std::int64_t begin, std::int64_t end) { Mover(args).move(begin, end); });
}

}  // namespace dendrite::cpu
