#pragma once

#include <cstddef>
#include <cstdint>

// What the kernels of move_kv share: their arguments, which thread has which values, rotations.
namespace dendrite::cuda {

constexpr int kMoveThreads = 128;

/// A KvMove whose positions are in one block of angles each.
struct MoveRun {
  const float* old_angles;  // of the first token; null: K is copied
  const float* new_angles;
  std::int64_t from;  // bytes from page 0 of a layer to the first token's K of head 0
  std::int64_t to;
  std::int64_t from_scale;  // likewise to its scale; FP8 only
  std::int64_t to_scale;
  std::int32_t count;
};

struct MoveArguments {
  std::byte* data;  // page 0 of layer 0
  const MoveRun* runs;
  std::int64_t layer_bytes;    // from layer to layer
  std::int64_t head_bytes;     // from head to head of a page
  std::int64_t value_bytes;    // from K to V of a head; 0: there is none
  std::int32_t head_vectors;   // KvView
  std::int32_t value_vectors;  // KvView
  std::int32_t head_dim;
  std::int32_t half;  // rotary_dim / 2
  std::uint32_t kv_heads;
  std::uint32_t items;  // layers * kv_heads
  std::uint32_t block_items;
  float inverse_scale2;
};

using MoveKernel = void (*)(const MoveArguments);
/// The kernel for pages in FP8, in kv_move_codes.cu.
MoveKernel code_move_kernel(const MoveArguments& args);

/// Whether chunks of so many values fill a token and the halves that are rotated.
inline bool fits_chunks(const MoveArguments& args, int chunk) {
  return args.head_dim % chunk == 0 && args.half % chunk == 0;
}

/// Two chunks of a token, by the number that they have among all of the token's.
struct Place {
  int first, second;  // values from the token's first; second may be behind the last one
  bool pairs;         // of RoPE

  __host__ __device__ static int count(int head_dim, int chunk, int half) {
    return half / chunk + (head_dim - 2 * half + 2 * chunk - 1) / (2 * chunk);
  }
  __device__ Place(int number, int chunk, int half) {
    const int rotated = half / chunk;
    pairs = number < rotated;
    first = pairs ? number * chunk : 2 * half + (number - rotated) * 2 * chunk;
    second = pairs ? first + half : first + chunk;
  }
};

template <int kCount>
__device__ void load_angles(const float* from, float (&angles)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
      angles[i] = four.x;
      angles[i + 1] = four.y;
      angles[i + 2] = four.z;
      angles[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) angles[i] = __ldg(from + i);
  }
}

/// The rotations of one token's pairs.
template <int kCount>
struct Rotation {
  float cos_old[kCount], sin_old[kCount], cos_new[kCount], sin_new[kCount];

  __device__ void load(const float* old_angles, const float* new_angles, int half) {
    load_angles(old_angles, cos_old);
    load_angles(old_angles + half, sin_old);
    load_angles(new_angles, cos_new);
    load_angles(new_angles + half, sin_new);
  }
  /// No contraction: the same roundings as on every other device.
  __device__ void turn(float (&a)[kCount], float (&b)[kCount], float inverse_scale2) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float u1 = __fadd_rn(__fmul_rn(a[i], cos_old[i]), __fmul_rn(b[i], sin_old[i]));
      float u2 = __fsub_rn(__fmul_rn(b[i], cos_old[i]), __fmul_rn(a[i], sin_old[i]));
      u1 = __fmul_rn(u1, inverse_scale2);  // exact where that is 1
      u2 = __fmul_rn(u2, inverse_scale2);
      a[i] = __fsub_rn(__fmul_rn(u1, cos_new[i]), __fmul_rn(u2, sin_new[i]));
      b[i] = __fadd_rn(__fmul_rn(u2, cos_new[i]), __fmul_rn(u1, sin_new[i]));
    }
  }
};

}  // namespace dendrite::cuda
