// Attention over a tree of pages by tensor cores (mma.sync), bf16 K and V. A tile has the rows of
// one KV head's query heads, packed: packed row i is query head i % group of row i / group. Four
// warps are spread kM x kN: over packed rows, and over the tokens of S = Q K^T and the dims of P V.
// K and V come through shared memory in chunks of [128 tokens][64 dims], a ring of kStages filled
// in the background across tiles; 16-byte pieces of a chunk's row are swizzled (piece ^ row % 8).
//
// Order of operations (tree_plan.h): a block of 128 tokens from a fresh state: scores by a chain
// over the dims, their maximum, probabilities in bf16, their sum and P V by a chain over the
// tokens. A chain's elements depend on their own row and column alone, so neither kM x kN nor
// company shows in the bits; tokens that a row does not see have probability 0, which adds nothing,
// and V of slots that may hold anything is read as 0. Blocks are folded to runs, runs to groups, in
// f32.
// Floor: unique pages' bytes over bandwidth, or 4 rows tokens head_dim heads FLOP.
// Source of the running softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
#include "backend/cuda/tree_attention.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/tree_attention_sm90.h"
#include "backend/cuda/tree_loader.cuh"
#include "backend/cuda/tree_tile.cuh"

namespace dendrite::cuda {
namespace {

/// Shared memory: queries (then probabilities), row maxima, group states, the ring.
template <int kDim>
struct Shared {
  static constexpr int kQueryBytes = static_cast<int>(kTileRows) * kDim * 2;
  static constexpr int kMaxima = kQueryBytes;
  static constexpr int kGroups = kMaxima + 64 * 4;
  static constexpr int kRing = kGroups + kTileThreads * kDim / 2 * 4;
  static constexpr int bytes(int stages) { return kRing + stages * kChunkBytes; }
};

template <int kDim, int kStages, int kM, int kN>
__device__ __forceinline__ void work_on_tile(const TreeAttentionArguments& args,
                                             Loader<kDim, kStages>& loader, std::byte* shared,
                                             const TreeTile& tile, int kv_head) {
  const TileRoom room{shared_address(shared),
                      reinterpret_cast<float*>(shared + Shared<kDim>::kMaxima),
                      reinterpret_cast<float*>(shared + Shared<kDim>::kGroups)};
  TileWarp<kDim, Loader<kDim, kStages>, kM, kN>(args, loader, room, tile, kv_head).run();
}

/// grid: as many as run at once; block kTileThreads
template <int kDim, int kStages>
__global__ void __launch_bounds__(kTileThreads, 2)
    attend_kernel(const __grid_constant__ TreeAttentionArguments args) {
  extern __shared__ __align__(128) std::byte shared[];
  const auto kv_heads = static_cast<int>(args.kv.kv_heads);
  const auto group = static_cast<int>(args.heads / args.kv.kv_heads);
  Loader<kDim, kStages> loader(args, shared_address(shared) + Shared<kDim>::kRing);
  wait_for_earlier();
  let_next_begin();
  loader.fill();
  for (int work = static_cast<int>(blockIdx.x);; work += static_cast<int>(gridDim.x)) {
    const TreeTile tile = args.plan.tiles[work / kv_heads];
    if (tile.row_count == 0) return;
    const int packed_rows = tile.row_count * group;
    if (packed_rows <= 16) {
      work_on_tile<kDim, kStages, 1, 4>(args, loader, shared, tile, work % kv_heads);
    } else if (packed_rows <= 32) {
      work_on_tile<kDim, kStages, 2, 2>(args, loader, shared, tile, work % kv_heads);
    } else {
      work_on_tile<kDim, kStages, 4, 1>(args, loader, shared, tile, work % kv_heads);
    }
  }
}

}  // namespace

bool fits_tree_attention(Tensor out, Tensor q, std::int64_t heads, const KvView& kv) {
  const auto aligned = [](Tensor tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && tensor.stride % 4 == 0;
  };
  return fits_tree_attention(heads, kv) && aligned(out) && aligned(q);
}

bool fits_tree_attention(std::int64_t heads, const KvView& kv) {
  return kv.bf16 && (kv.head_dim == 64 || kv.head_dim == 128) && heads / kv.kv_heads <= kTileRows;
}

TreeAttention::TreeAttention() {
  int device = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;
  check(cudaGetDevice(&device), "attention");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "attention");
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "attention");
  multiprocessors_ = multiprocessors;
  stages_ = shared_bytes >= Shared<128>::bytes(4) ? 4 : 3;
  const auto allow = [](auto kernel, int bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "attention");
  };
  prepare_tree_merge();
#ifdef DENDRITE_CUDA_SM90
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "attention");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "attention");
  pairs_ = major == 9 && minor == 0;
  if (pairs_) {
    prepare_tree_attention_sm90();
    return;
  }
#endif
  allow(attend_kernel<64, 4>, Shared<64>::bytes(4));
  if (stages_ == 4) {
    allow(attend_kernel<128, 4>, Shared<128>::bytes(4));
  } else {
    allow(attend_kernel<128, 3>, Shared<128>::bytes(3));
  }
}

void TreeAttention::launch(const TreeAttentionArguments& args, cudaStream_t stream) const {
#ifdef DENDRITE_CUDA_SM90
  if (pairs_) {
    launch_tree_attention_sm90(args, workers(), stream);
    launch_tree_merge(args, stream);
    return;
  }
#endif
  const dim3 grid(static_cast<unsigned>(workers()));
  const int stages = args.kv.head_dim == 64 ? 4 : stages_;
  const auto kernel = args.kv.head_dim == 64 ? attend_kernel<64, 4>
                      : stages_ == 4         ? attend_kernel<128, 4>
                                             : attend_kernel<128, 3>;
  const int bytes = args.kv.head_dim == 64 ? Shared<64>::bytes(stages) : Shared<128>::bytes(stages);
  launch_early(kernel, grid, kTileThreads, static_cast<std::size_t>(bytes), stream, args);
  launch_tree_merge(args, stream);
}

}  // namespace dendrite::cuda
