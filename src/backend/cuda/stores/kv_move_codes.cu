// move_kv in FP8: a K that goes to another position is rounded as a whole, with a scale of its own,
// so the threads that have a vector find its largest value together. V and other K keep their
// bytes. Who does what is as in kv_move.cu, with `lanes` of a warp for a token and head.
// Floor: the bytes of K and V, read and written once, over the copy bandwidth; some 25 operations a
// value of K beside that.
#include <bit>

#include "backend/cuda/base/e4m3.cuh"
#include "backend/cuda/stores/kv_move_kernels.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kUnroll = 2;

/// kCount neighbouring codes, the first in the lowest byte.
template <int kCount>
struct Codes {
  static_assert(kCount == 1 || kCount == 4);
  std::uint32_t codes = 0;

  // Each byte is used once: not kept in caches.
  __device__ void load(const std::byte* from) {
    if constexpr (kCount == 4) {
      codes = __ldcs(reinterpret_cast<const unsigned int*>(from));
    } else {
      codes = __ldcs(reinterpret_cast<const unsigned char*>(from));
    }
  }
  __device__ void store(std::byte* to) const {
    if constexpr (kCount == 4) {
      __stcs(reinterpret_cast<unsigned int*>(to), codes);
    } else {
      __stcs(reinterpret_cast<unsigned char*>(to), static_cast<unsigned char>(codes));
    }
  }
  __device__ void unpack(float (&values)[kCount], float factor) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = e4m3_value_of(codes >> 8 * i & 255u, factor);
  }
  __device__ void pack(const float (&values)[kCount], std::uint32_t scale) {
    codes = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) codes |= e4m3_code_of(values[i], scale) << 8 * i;
  }
};

/// What a lane has of K or V: kSteps times two chunks.
template <int kCount, int kSteps>
struct Vector {
  Codes<kCount> chunks[kSteps][2];
  std::uint8_t scale = 0;
};

/// The lane's places in a vector.
template <int kCount, int kSteps>
struct Places {
  int first[kSteps], second[kSteps];  // see Place
  bool has[kSteps], has_second[kSteps], pairs[kSteps];

  __device__ Places(const MoveArguments& args, int lane, int lanes) {
    const int count = Place::count(args.head_dim, kCount, args.half);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int number = lane + s * lanes;
      const Place place(number, kCount, args.half);
      first[s] = place.first;
      second[s] = place.second;
      has[s] = number < count;
      has_second[s] = has[s] && place.second < args.head_dim;
      pairs[s] = has[s] && place.pairs;
    }
  }

  __device__ void load(Vector<kCount, kSteps>& vector, const std::byte* from) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (has[s]) vector.chunks[s][0].load(from + first[s]);
      if (has_second[s]) vector.chunks[s][1].load(from + second[s]);
    }
  }
  __device__ void store(const Vector<kCount, kSteps>& vector, std::byte* to) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (has[s]) vector.chunks[s][0].store(to + first[s]);
      if (has_second[s]) vector.chunks[s][1].store(to + second[s]);
    }
  }

  /// Rotates the vector's pairs and rounds all of it anew. For all lanes of `mask`, which have it
  /// together. What a lane lacks is zero.
  __device__ void turn(Vector<kCount, kSteps>& vector, const Rotation<kCount> (&rotation)[kSteps],
                       float inverse_scale2, unsigned mask) const {
    const float factor = e4m3_factor(vector.scale);
    float values[kSteps][2][kCount];
    std::uint32_t most = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      float(&a)[kCount] = values[s][0];
      float(&b)[kCount] = values[s][1];
      vector.chunks[s][0].unpack(a, factor);
      vector.chunks[s][1].unpack(b, factor);
      if (pairs[s]) rotation[s].turn(a, b, inverse_scale2);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        most = max(most, max(finite_magnitude(a[i]), finite_magnitude(b[i])));
      }
    }
    const std::uint32_t scale = e4m3_scale_of(__reduce_max_sync(mask, most));
    vector.scale = static_cast<std::uint8_t>(scale);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      vector.chunks[s][0].pack(values[s][0], scale);
      vector.chunks[s][1].pack(values[s][1], scale);
    }
  }
};

/// Lanes that have a vector: a power of two.
__host__ __device__ inline int lanes_of(int places) {
  int lanes = 1;
  while (lanes < places && lanes < kWarp) lanes *= 2;
  return lanes;
}

/// grid (runs, items / block_items)
template <int kCount, int kSteps>
__global__ void __launch_bounds__(kMoveThreads) code_kernel(const MoveArguments args) {
  using Values = Vector<kCount, kSteps>;
  const MoveRun run = args.runs[blockIdx.x];
  const std::uint32_t item_begin = blockIdx.y * args.block_items;
  const std::uint32_t item_end = min(item_begin + args.block_items, args.items);
  const int lanes = lanes_of(Place::count(args.head_dim, kCount, args.half));
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int team = static_cast<int>(threadIdx.x) / lanes;
  const int first_lane = static_cast<int>(threadIdx.x % kWarp) - lane;
  const unsigned mask = (lanes == kWarp ? ~0u : (1u << lanes) - 1) << first_lane;
  const Places<kCount, kSteps> places(args, lane, lanes);
  // Teams have a token each; few tokens leave room for several, with other items.
  const int teams = kMoveThreads / lanes;
  const int width = min(run.count, teams);
  const auto groups = static_cast<std::uint32_t>(teams / width);
  const auto group = static_cast<std::uint32_t>(team / width);
  if (group >= groups) return;
  const bool turned = run.old_angles != nullptr;
  const bool has_values = args.value_bytes > 0;
  for (int token = team % width; token < run.count; token += width) {
    Rotation<kCount> rotation[kSteps];
    if (turned) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (!places.pairs[s]) continue;
        const std::int64_t row = static_cast<std::int64_t>(token) * 2 * args.half + places.first[s];
        rotation[s].load(run.old_angles + row, run.new_angles + row, args.half);
      }
    }
    const std::int64_t begin = static_cast<std::int64_t>(token) * args.head_dim;
    for (std::uint32_t item = item_begin + group; item < item_end; item += groups * kUnroll) {
      Values keys[kUnroll];
      Values values[kUnroll];
      std::int64_t layers[kUnroll];
      std::uint32_t heads[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::uint32_t mine = item + u * groups;
        const std::uint32_t layer = mine / args.kv_heads;
        layers[u] = layer * args.layer_bytes;
        heads[u] = mine - layer * args.kv_heads;
        if (mine >= item_end) continue;
        const std::byte* data = args.data + layers[u];
        const std::byte* from = data + run.from + begin + heads[u] * args.head_bytes;
        const std::byte* scale = data + run.from_scale + token + heads[u] * args.head_vectors;
        places.load(keys[u], from);
        keys[u].scale = static_cast<std::uint8_t>(scale[0]);
        if (!has_values) continue;
        places.load(values[u], from + args.value_bytes);
        values[u].scale = static_cast<std::uint8_t>(scale[args.value_vectors]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (item + u * groups >= item_end) continue;
        if (turned) places.turn(keys[u], rotation, args.inverse_scale2, mask);
        std::byte* data = args.data + layers[u];
        std::byte* to = data + run.to + begin + heads[u] * args.head_bytes;
        std::byte* scale = data + run.to_scale + token + heads[u] * args.head_vectors;
        places.store(keys[u], to);
        if (has_values) places.store(values[u], to + args.value_bytes);
        if (lane > 0) continue;
        scale[0] = static_cast<std::byte>(keys[u].scale);
        if (has_values) scale[args.value_vectors] = static_cast<std::byte>(values[u].scale);
      }
    }
  }
}

}  // namespace

MoveKernel code_move_kernel(const MoveArguments& args) {
  if (!fits_chunks(args, 4)) return code_kernel<1, 9>;  // up to kMaxHeadDim
  const int places = Place::count(args.head_dim, 4, args.half);
  if (places <= kWarp) return code_kernel<4, 1>;
  return places <= 2 * kWarp ? code_kernel<4, 2> : code_kernel<4, 3>;
}

}  // namespace dendrite::cuda
