// Products in FP8, for any number of rows. Blocks and their rings are those of few_rows_wgmma.cu: a
// row of 128 bytes has 128 columns here. More than 64 rows are multiplied by two warpgroups, in
// bands of 128. Floor: the bytes of W over read bandwidth, and of many rows the tensor cores' rate.
#include "backend/cuda/products/e4m3_products.h"

#include "backend/cuda/products/e4m3_chain.cuh"
#include "backend/cuda/products/few_rows_shape.h"
#include "backend/cuda/products/few_rows_wgmma.h"

namespace dendrite::cuda {
namespace e4m3 {
namespace {

/// Of one warpgroup, up to so many outputs leave room for a second block.
constexpr int blocks_of(int outputs, int groups) {
  return groups == 1 && outputs <= 112 ? 2 : 1;
}

template <int kOutputs, bool kSquares, bool kHeads, int kGroups>
__global__ void __launch_bounds__(few_rows::threads_of(kGroups), blocks_of(kOutputs, kGroups))
    e4m3_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  few_rows::run_block<E4m3Chain<kOutputs, kSquares, kHeads, kGroups>, kHeads, kGroups>(weight, x,
                                                                                       args);
#endif
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Arguments);

constexpr int kFewOutputs[] = {16, 24, 32, 48, 64, 96, 112, 128};
template <bool kSquares, bool kHeads>
constexpr Kernel kFew[] = {
    e4m3_kernel<16, kSquares, kHeads, 1>,  e4m3_kernel<24, kSquares, kHeads, 1>,
    e4m3_kernel<32, kSquares, kHeads, 1>,  e4m3_kernel<48, kSquares, kHeads, 1>,
    e4m3_kernel<64, kSquares, kHeads, 1>,  e4m3_kernel<96, kSquares, kHeads, 1>,
    e4m3_kernel<112, kSquares, kHeads, 1>, e4m3_kernel<128, kSquares, kHeads, 1>,
};
constexpr int kManyOutputs[] = {32, 48, 64, 96, 112, 128};
template <bool kSquares>
constexpr Kernel kMany[] = {
    e4m3_kernel<32, kSquares, false, 2>,  e4m3_kernel<48, kSquares, false, 2>,
    e4m3_kernel<64, kSquares, false, 2>,  e4m3_kernel<96, kSquares, false, 2>,
    e4m3_kernel<112, kSquares, false, 2>, e4m3_kernel<128, kSquares, false, 2>,
};

constexpr std::int64_t kFewRows = 64;
constexpr few_rows::Kernels kOfFew{.outputs = kFewOutputs,
                                   .most_sharing = 112,
                                   .band_rows = kFewRows,
                                   .value_bytes = 1,
                                   .batch = batch_of};
/// Scales of squares take the registers of the widest.
constexpr few_rows::Kernels of_many(bool squares) {
  return {.outputs = std::span(kManyOutputs).first(std::size(kManyOutputs) - (squares ? 1 : 0)),
          .most_sharing = 112,
          .band_rows = 2 * kFewRows,
          .value_bytes = 1,
          .batch = batch_of};
}

Kernel kernel_of(const FewRowsProduct& product, bool squares, std::size_t variant) {
  if (product.rows > kFewRows) return squares ? kMany<true>[variant] : kMany<false>[variant];
  if (product.epilogue == Epilogue::kRope) return kFew<false, true>[variant];
  return squares ? kFew<true, false>[variant] : kFew<false, false>[variant];
}

}  // namespace
}  // namespace e4m3

E4m3Products::E4m3Products(const Device& device) : device_(device) {
  if (!multiplies_tiles(device)) return;
  few_rows::allow_memory(e4m3::kFew<false, false>);
  few_rows::allow_memory(e4m3::kFew<true, false>);
  few_rows::allow_memory(e4m3::kFew<false, true>);
  few_rows::allow_memory(e4m3::kMany<false>);
  few_rows::allow_memory(e4m3::kMany<true>);
}

bool E4m3Products::rotates(const CudaWeight& weight, const RopeArguments& rope, std::int64_t rows) {
  return rows <= e4m3::kFewRows && !weight.scales()->squares && WgmmaProducts::rotates(rope);
}

void E4m3Products::launch(const FewRowsProduct& product, const E4m3Rows& rows) const {
  const CudaWeight& weight = *product.weight;
  const bool squares = weight.scales()->squares;
  const few_rows::Kernels kernels =
      product.rows > e4m3::kFewRows ? e4m3::of_many(squares) : e4m3::kOfFew;
  FewRowsProduct of_codes = product;
  of_codes.x = rows.data;
  of_codes.x_stride = rows.cols;
  const few_rows::Shape shape(of_codes, kernels, device_.multiprocessors());
  const e4m3::Arguments args{shape.args,
                             rows.scales(),
                             rows.scale_cols(),
                             weight.scales()->data(),
                             static_cast<int>(weight.rows()),
                             static_cast<int>(weight.rows() / 8)};
  launch_early(e4m3::kernel_of(product, squares, shape.variant),
               dim3(static_cast<unsigned>(shape.blocks)),
               few_rows::threads_of(product.rows > e4m3::kFewRows ? 2 : 1),
               static_cast<std::size_t>(shape.shared_bytes), device_.stream(),
               shape.describe_weight(weight, kernels), shape.describe_x(of_codes, kernels), args);
}

}  // namespace dendrite::cuda
