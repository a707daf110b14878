#include "backend/cuda/attention/tree_attention.h"

#include <array>
#include <span>

#include "backend/cuda/attention/tree_kernels.h"

namespace dendrite::cuda {
namespace {

/// The kernel of a head size and of what pages hold.
struct HeadKernel {
  std::int64_t head_dim;
  KvFormat format;
  void (*prepare)(int shared_bytes);
  void (*launch)(const TreeAttentionArguments& args, const TreeGrid& grid, cudaStream_t stream);
};
template <template <int, KvFormat> typename Kernel, KvFormat kFormat, int kDim>
constexpr HeadKernel kernel_of() {
  return {kDim, kFormat, Kernel<kDim, kFormat>::prepare, Kernel<kDim, kFormat>::launch};
}
template <template <int, KvFormat> typename Kernel, int... kDims>
constexpr std::array<HeadKernel, 2 * sizeof...(kDims)> kernels_of() {
  return {kernel_of<Kernel, KvFormat::kBF16, kDims>()...,
          kernel_of<Kernel, KvFormat::kFP8, kDims>()...};
}

constexpr auto kTileKernels = kernels_of<TileKernel, 64, 80, 96, 128, 192, 256, 320, 512, 576>();
template <int... kDims>
constexpr std::array<HeadKernel, sizeof...(kDims)> wide_kernels_of() {
  return {{{kDims, KvFormat::kBF16, WideKernel<kDims>::prepare, WideKernel<kDims>::launch}...}};
}
#ifdef DENDRITE_CUDA_SM90
constexpr auto kPairKernels = kernels_of<PairKernel, 64, 80, 96, 128>();
constexpr auto kWideKernels = wide_kernels_of<192, 256, 320, 512, 576>();
#else
constexpr std::array<HeadKernel, 0> kPairKernels{};
constexpr std::array<HeadKernel, 0> kWideKernels{};
#endif

const HeadKernel* find(std::span<const HeadKernel> kernels, std::int64_t head_dim,
                       KvFormat format) {
  for (const HeadKernel& kernel : kernels) {
    if (kernel.head_dim == head_dim && kernel.format == format) return &kernel;
  }
  return nullptr;
}

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, device), "attention");
  return value;
}

}  // namespace

bool fits_tree_attention(const KvShape& kv) {
  const auto fits = [&kv](std::int64_t head_dim) {
    return find(kTileKernels, head_dim, kv.format) != nullptr;
  };
  return fits(kv.head_dim) && (kv.wide.layers == 0 || fits(kv.wide.head_dim));
}

bool fits_tree_attention(const Rows& out, Tensor q, const KvShape& kv) {
  const auto aligned = [](const Rows& rows) {
    return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.ld % 4 == 0;
  };
  return fits_tree_attention(kv) && aligned(out) && aligned(q);
}

TreeAttention::TreeAttention() {
  int device = 0;
  check(cudaGetDevice(&device), "attention");
  multiprocessors_ = attribute_of(device, cudaDevAttrMultiProcessorCount);
  shared_bytes_ = attribute_of(device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  warpgroups_ = attribute_of(device, cudaDevAttrComputeCapabilityMajor) == 9 &&
                attribute_of(device, cudaDevAttrComputeCapabilityMinor) == 0;
  for (const HeadKernel& kernel : kTileKernels) {
    if (kind(kernel.head_dim, kernel.format) == Kind::kTiles) kernel.prepare(shared_bytes_);
  }
  if (warpgroups_) {
    for (const HeadKernel& kernel : kPairKernels) kernel.prepare(shared_bytes_);
    for (const HeadKernel& kernel : kWideKernels) kernel.prepare(shared_bytes_);
  }
  prepare_tree_merge();
}

TreeAttention::Kind TreeAttention::kind(std::int64_t head_dim, KvFormat format) const {
  if (!warpgroups_) return Kind::kTiles;
  if (find(kPairKernels, head_dim, format) != nullptr) return Kind::kPairs;
  return find(kWideKernels, head_dim, format) != nullptr ? Kind::kWide : Kind::kTiles;
}

TreePlan::Shape TreeAttention::shape(std::int64_t heads, const KvShape& kv) const {
  const Kind kind = this->kind(kv.head_dim, kv.format);
  TreePlan::Shape shape;
  shape.tile_rows = kind == Kind::kTiles ? tile_rows(kv.head_dim) : kWarpgroupRows;
  const HeadSlices slices = slice_heads(heads / kv.kv_heads, shape.tile_rows);
  shape.slice_heads = slices.heads;
  shape.slices = kv.kv_heads * slices.count;
  shape.page_tokens = kv.page_tokens;
  shape.pairs = kind == Kind::kPairs;
  shape.wide = kv.head_dim > 128;
  shape.workers = workers(kind);
  return shape;
}

std::int64_t TreeAttention::group_floats(const KvShape& kv) const {
  constexpr std::int64_t kDims = 128;  // of a panel of either warpgroup
  const Kind kind = this->kind(kv.head_dim, kv.format);
  if (kind != Kind::kWide) return 0;
  return workers(kind) * kWarpgroupRows * ((kv.head_dim + kDims - 1) / kDims * kDims);
}

void TreeAttention::launch(const TreeAttentionArguments& args, cudaStream_t stream) const {
  const std::int64_t head_dim = args.kv.head_dim;
  const Kind kind = this->kind(head_dim, args.kv.format);
  std::span<const HeadKernel> kernels = kTileKernels;
  if (kind == Kind::kPairs) kernels = kPairKernels;
  if (kind == Kind::kWide) kernels = kWideKernels;
  find(kernels, head_dim, args.kv.format)->launch(args, {workers(kind), shared_bytes_}, stream);
  launch_tree_merge(args, stream);
}

}  // namespace dendrite::cuda
