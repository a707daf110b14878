// Products of block-scaled weights: which kernel, and how it is launched. Floor: the bytes of W
// over read bandwidth; of many rows the tensor cores' rate, which these kernels do not aim at.
#include "backend/cuda/products/block_scaled_products.h"

#include "backend/cuda/products/block_scaled_kernel.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kFewRows = 16;

__global__ void ask_instruction(int* there) {
  *there = kHasBlockScaledMma ? 1 : 0;
}

template <BlockFormat kFormat, int kRowTiles, int kColumnTiles>
void launch(const block_scaled::Arguments& args, cudaStream_t stream) {
  using Block = block_scaled::Block<kFormat, kRowTiles, kColumnTiles>;
  // Bands first: weights that several bands read are still in the cache.
  const dim3 grid(
      static_cast<unsigned>((args.rows + 16 * kRowTiles - 1) / (16 * kRowTiles)),
      static_cast<unsigned>((args.weight_rows + Block::kOutputs - 1) / Block::kOutputs));
  launch_early(block_scaled::block_scaled_kernel<kFormat, kRowTiles, kColumnTiles>, grid,
               block_scaled::kWarps * 32, 0, stream, args);
}

template <BlockFormat kFormat>
void launch_rows(const block_scaled::Arguments& args, cudaStream_t stream) {
  if (args.rows <= kFewRows) {
    launch<kFormat, 1, 1>(args, stream);
  } else {
    launch<kFormat, 4, 2>(args, stream);
  }
}

}  // namespace

void launch_block_scaled(const FewRowsProduct& product, const BlockScaledRows& rows,
                         cudaStream_t stream) {
  const CudaWeight& weight = *product.weight;
  const BlockScales& scales = *weight.block_scales();
  block_scaled::Arguments args{};
  args.x = reinterpret_cast<const std::uint32_t*>(rows.data);
  args.x_scales = reinterpret_cast<const std::uint32_t*>(rows.scales());
  args.weight = reinterpret_cast<const std::uint32_t*>(weight.data());
  args.weight_rows = weight.rows();
  args.cols = weight.cols();
  args.rows = static_cast<int>(product.rows);
  args.factors = reinterpret_cast<const float*>(scales.factors.data());
  args.x_factor = scales.input_factor;
  args.bias = product.bias;
  args.out = static_cast<float*>(product.out);
  args.out_stride = product.out_stride;
  args.add = product.epilogue == Epilogue::kAdd;
  if (scales.format == BlockFormat::kMxfp8) {
    launch_rows<BlockFormat::kMxfp8>(args, stream);
  } else {
    launch_rows<BlockFormat::kNvfp4>(args, stream);
  }
}

bool has_block_scaled_instruction(cudaStream_t stream) {
  constexpr const char* kOp = "asking for an instruction";
  const Memory there(sizeof(int), kOp);
  ask_instruction<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(there.data()));
  check(cudaGetLastError(), kOp);
  int is_there = 0;
  check(cudaMemcpyAsync(&is_there, there.data(), sizeof is_there, cudaMemcpyDeviceToHost, stream),
        kOp);
  check(cudaStreamSynchronize(stream), kOp);
  return is_there != 0;
}

}  // namespace dendrite::cuda
