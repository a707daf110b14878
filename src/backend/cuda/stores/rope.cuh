#pragma once

#include <cstdint>

#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/stores/rope.h"

// RoPE and the places of K and V, for the kernel in rope.cu and those of products that do its work
// (Epilogue::kRope).
namespace dendrite::cuda {

/// A pair of values of a head, by an angle given by its cosine and sine.
__device__ inline void rotate(float& a, float& b, float cosine, float sine) {
  // No contraction: the same roundings wherever the compiler inlines this.
  const float first = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
  b = __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine));
  a = first;
}

/// K or V [head_dim] of a KV head of a slot; FP8: its codes.
template <typename T>
__device__ T* slot_data(const KvView& kv, std::int64_t slot, std::int64_t head, bool value) {
  const std::int64_t page = slot >> kv.page_shift;
  const std::int64_t offset = slot - (page << kv.page_shift);
  const std::int64_t vector = head * kv.head_vectors + (value ? kv.value_vectors : 0) + offset;
  return reinterpret_cast<T*>(kv.data + page * kv.page_stride) + vector * kv.head_dim;
}

/// FP8: its scale.
__device__ inline std::uint8_t* slot_scale(const KvView& kv, std::int64_t slot, std::int64_t head,
                                           bool value) {
  const std::int64_t page = slot >> kv.page_shift;
  const std::int64_t offset = slot - (page << kv.page_shift);
  const std::int64_t vector = head * kv.head_vectors + (value ? kv.value_vectors : 0) + offset;
  return reinterpret_cast<std::uint8_t*>(kv.data + page * kv.page_stride + kv.scales_offset) +
         vector;
}

/// The extra stores of a row.
struct ExtraStores {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  ExtraStores() = default;
  __device__ ExtraStores(const RopeArguments& rope, std::int64_t row)
      : begin(rope.extra_begins[row]), end(rope.extra_begins[row + 1]) {}

  /// Calls store(slot) for each.
  template <typename Store>
  __device__ void each(const RopeArguments& rope, Store store) const {
    for (std::int32_t e = begin; e < end; ++e) store(rope.extra_stores[e].slot);
  }
};

/// Values i and i + head_dim / 2 of a head of q, k or v; see rotates_in_product().
struct HeadPair {
  int head;  // those of k follow those of q, then those of v; there may be more, of nothing
  int i;

  __device__ bool exists(const RopeArguments& rope) const {
    return head < rope.heads + 2 * rope.kv_heads;
  }
  __device__ bool is_query(const RopeArguments& rope) const { return head < rope.heads; }
  /// The first one's column of the product.
  __device__ int column(const RopeArguments& rope) const {
    return head * static_cast<int>(rope.head_dim) + i;
  }
  static __device__ int half(const RopeArguments& rope) {
    return static_cast<int>(rope.head_dim) / 2;
  }

  /// Cosine and sine for a row.
  __device__ float2 load_angle(const RopeArguments& rope, int row) const {
    const float* from = rope.cos_sin + row * rope.head_dim + i;
    return make_float2(__ldcg(from), __ldcg(from + half(rope)));
  }
  /// What becomes of a row's sums: the bias is added (null: none), and q and k are rotated, in
  /// place. Then q goes to the row at `queries` (null: nowhere), k and v to their slot (-1: none).
  __device__ void put(const RopeArguments& rope, const float* bias, float2 angle, std::int64_t slot,
                      float* queries, float& a, float& b) const {
    const int at = column(rope);
    if (bias != nullptr) {
      a += bias[at];
      b += bias[at + half(rope)];
    }
    if (head < rope.heads + rope.kv_heads) rotate(a, b, angle.x, angle.y);
    if (!is_query(rope)) {
      if (slot >= 0) store(rope, slot, a, b);
    } else if (queries != nullptr) {
      queries[at] = a;
      queries[at + half(rope)] = b;
    }
  }
  /// Requires a pair of k or v.
  __device__ void store(const RopeArguments& rope, std::int64_t slot, float a, float b) const {
    const std::int64_t kv_head = head - rope.heads;
    const bool value = kv_head >= rope.kv_heads;
    bf16* to = slot_data<bf16>(rope.kv, slot, value ? kv_head - rope.kv_heads : kv_head, value);
    to[i] = narrow<bf16>(a);
    to[i + half(rope)] = narrow<bf16>(b);
  }
};

}  // namespace dendrite::cuda
