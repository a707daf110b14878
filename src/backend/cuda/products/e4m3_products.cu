// Products in FP8, for any number of rows. Blocks and their rings are those of few_rows_wgmma.cu: a
// row of 128 bytes has 128 columns here. Up to 64 rows a block works on a unit, or on two that read
// the same x, see shares_x(). More are multiplied by two warpgroups, in bands of 128, and where
// those and the outputs are many, in units of 256 outputs. Floor: the bytes of W over read
// bandwidth, and of many rows the tensor cores' rate.
#include "backend/cuda/products/e4m3_products.h"

#include "backend/cuda/products/e4m3_chain.cuh"
#include "backend/cuda/products/e4m3_diagonal.cuh"
#include "backend/cuda/products/e4m3_wide.cuh"
#include "backend/cuda/products/few_rows_shape.h"
#include "backend/cuda/products/few_rows_wgmma.h"

namespace dendrite::cuda {
namespace e4m3 {
namespace {

/// Of one warpgroup, up to so many outputs leave room for a second block.
constexpr int blocks_of(int outputs, int groups) {
  return groups == 1 && outputs <= 112 ? 2 : 1;
}

/// Of a thread that multiplies, where two warpgroups do: scales of squares take more.
template <bool kSquares>
constexpr int kRegisters = kSquares ? 240 : 232;

template <int kOutputs, bool kSquares, bool kHeads, int kGroups>
__global__ void __launch_bounds__(few_rows::threads_of(kGroups), blocks_of(kOutputs, kGroups))
    e4m3_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  few_rows::run_block<E4m3Chain<kOutputs, kSquares, kHeads, kGroups>, kHeads, kGroups, 1,
                      kRegisters<kSquares>>(weight, x, args);
#endif
}

template <bool kSquares>
__global__ void __launch_bounds__(few_rows::threads_of(2), 1)
    e4m3_wide_kernel(const __grid_constant__ CUtensorMap weight,
                     const __grid_constant__ CUtensorMap x,
                     const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  few_rows::run_block<E4m3Wide<kSquares>, false, 2>(weight, x, args);
#endif
}

template <int kOutputs, bool kSquares, bool kHeads>
__global__ void __launch_bounds__(few_rows::threads_of(2), 1)
    e4m3_pair_kernel(const __grid_constant__ CUtensorMap weight,
                     const __grid_constant__ CUtensorMap x,
                     const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  few_rows::run_block<E4m3Chain<kOutputs, kSquares, kHeads, 1, 2>, kHeads, 1, 2,
                      kRegisters<kSquares>>(weight, x, args);
#endif
}

/// Of at most kRows rows.
template <int kOutputs, bool kSquares, bool kHeads, int kRows>
__global__ void __launch_bounds__(few_rows::threads_of(1), 2)
    e4m3_diagonal_kernel(const __grid_constant__ CUtensorMap weight,
                         const __grid_constant__ CUtensorMap x,
                         const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  few_rows::run_block<E4m3Diagonal<kOutputs, kSquares, kHeads, kRows>, kHeads, 1>(weight, x, args);
#endif
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Arguments);

constexpr int kFewOutputs[] = {16, 24, 32, 48, 64, 96, 112};
template <bool kSquares, bool kHeads>
constexpr Kernel kFew[] = {
    e4m3_kernel<16, kSquares, kHeads, 1>,  e4m3_kernel<24, kSquares, kHeads, 1>,
    e4m3_kernel<32, kSquares, kHeads, 1>,  e4m3_kernel<48, kSquares, kHeads, 1>,
    e4m3_kernel<64, kSquares, kHeads, 1>,  e4m3_kernel<96, kSquares, kHeads, 1>,
    e4m3_kernel<112, kSquares, kHeads, 1>,
};
template <int kRows, bool kSquares, bool kHeads>
constexpr Kernel kDiagonal[] = {
    e4m3_diagonal_kernel<16, kSquares, kHeads, kRows>,
    e4m3_diagonal_kernel<24, kSquares, kHeads, kRows>,
    e4m3_diagonal_kernel<32, kSquares, kHeads, kRows>,
    e4m3_kernel<48, kSquares, kHeads, 1>,
    e4m3_kernel<64, kSquares, kHeads, 1>,
    e4m3_kernel<96, kSquares, kHeads, 1>,
    e4m3_kernel<112, kSquares, kHeads, 1>,
};
constexpr int kMostDiagonal = 32;  // outputs

constexpr int kPairOutputs[] = {16, 24, 32, 48, 64, 96, 112, 128, 144};
template <bool kSquares, bool kHeads>
constexpr Kernel kPairs[] = {
    e4m3_pair_kernel<16, kSquares, kHeads>,  e4m3_pair_kernel<24, kSquares, kHeads>,
    e4m3_pair_kernel<32, kSquares, kHeads>,  e4m3_pair_kernel<48, kSquares, kHeads>,
    e4m3_pair_kernel<64, kSquares, kHeads>,  e4m3_pair_kernel<96, kSquares, kHeads>,
    e4m3_pair_kernel<112, kSquares, kHeads>, e4m3_pair_kernel<128, kSquares, kHeads>,
    e4m3_pair_kernel<144, kSquares, kHeads>,
};

constexpr int kManyOutputs[] = {32, 48, 64, 96, 112, 128, 256};
constexpr Kernel kMany[] = {
    e4m3_kernel<32, false, false, 2>,  e4m3_kernel<48, false, false, 2>,
    e4m3_kernel<64, false, false, 2>,  e4m3_kernel<96, false, false, 2>,
    e4m3_kernel<112, false, false, 2>, e4m3_kernel<128, false, false, 2>,
    e4m3_wide_kernel<false>,
};
// Scales of squares take the registers of units of 128.
constexpr int kManySquareOutputs[] = {32, 48, 64, 96, 112, 256};
constexpr Kernel kManySquares[] = {
    e4m3_kernel<32, true, false, 2>,  e4m3_kernel<48, true, false, 2>,
    e4m3_kernel<64, true, false, 2>,  e4m3_kernel<96, true, false, 2>,
    e4m3_kernel<112, true, false, 2>, e4m3_wide_kernel<true>,
};

constexpr std::int64_t kFewRows = 64;
constexpr few_rows::Kernels kOfFew{.outputs = kFewOutputs,
                                   .sharing_rows = kFewRows,
                                   .most_sharing = kFewOutputs[std::size(kFewOutputs) - 1],
                                   .band_rows = kFewRows,
                                   .value_bytes = 1,
                                   .scale_bytes = sizeof(float),
                                   .batch = batch_of};
constexpr few_rows::Kernels kOfPairs{.outputs = kPairOutputs,
                                     .band_rows = kFewRows,
                                     .units = 2,
                                     .value_bytes = 1,
                                     .scale_bytes = sizeof(float),
                                     .batch = batch_of};
/// Up to kRows rows: as kOfFew, but for the first of them.
template <int kRows>
constexpr few_rows::Kernels kOfDiagonal{
    .outputs = kFewOutputs,
    .sharing_rows = kFewRows,
    .most_sharing = kOfFew.most_sharing,
    .band_rows = kFewRows,
    .value_bytes = 1,
    .scale_bytes = sizeof(float),
    .batch =
        [](int outputs) {
          return outputs <= kMostDiagonal ? DiagonalTiles<kRows>::batch(outputs)
                                          : batch_of(outputs);
        },
    .tile_rows = [](int outputs) { return outputs <= kMostDiagonal ? kRows : 0; },
    .reserved =
        [](int outputs) {
          return outputs <= kMostDiagonal ? 2 * DiagonalTiles<kRows>::hand_bytes(outputs) : 0;
        },
};
few_rows::Kernels of_many(std::span<const int> outputs) {
  return {.outputs = outputs,
          .band_rows = 2 * kFewRows,
          .value_bytes = 1,
          .scale_bytes = sizeof(float),
          .batch = batch_of};
}

/// Whether scales of squares are as the wide kernel reads them.
bool have_blocks(const FewRowsProduct& product) {
  const bool aligned = product.epilogue != Epilogue::kSiluMul ||
                       product.weight->rows() / 2 % kE4m3Group == 0;  // ups begin a block
  return product.weight->scales()->blocks.size_bytes() > 0 && aligned;
}

/// Kernels that differ in outputs alone, and how many warpgroups of a block multiply.
struct Variants {
  few_rows::Kernels kernels;
  const Kernel* all;  // in the order of kernels.outputs
  int groups;
};

/// Whether one block of a multiprocessor works on two units at once and reads x for both, instead
/// of two blocks that read it each, of which one reads while the other begins or ends. Up to 64
/// rows, as measured on an H200.
bool shares_x(const FewRowsProduct& product, int multiprocessors) {
  constexpr std::int64_t kMostApart = 8;  // rows
  constexpr std::int64_t kMostNarrow = 48;
  constexpr int kLeastWide = 96;  // outputs of a unit
  if (product.rows <= kMostApart) return false;
  return product.rows > kMostNarrow ||
         few_rows::Shape(product, kOfPairs, multiprocessors).outputs >= kLeastWide;
}

template <bool kSquares, bool kHeads>
Variants few_variants(const FewRowsProduct& product, int multiprocessors) {
  if (shares_x(product, multiprocessors)) return {kOfPairs, kPairs<kSquares, kHeads>, 2};
  if (product.rows <= 8) return {kOfDiagonal<8>, kDiagonal<8, kSquares, kHeads>, 1};
  if (product.rows <= 16) return {kOfDiagonal<16>, kDiagonal<16, kSquares, kHeads>, 1};
  if (product.rows <= 32) return {kOfDiagonal<32>, kDiagonal<32, kSquares, kHeads>, 1};
  return {kOfFew, kFew<kSquares, kHeads>, 1};
}

Variants variants_of(const FewRowsProduct& product, int multiprocessors) {
  const bool squares = product.weight->scales()->squares;
  if (product.rows <= kFewRows) {
    if (product.epilogue == Epilogue::kRope)
      return few_variants<false, true>(product, multiprocessors);
    return squares ? few_variants<true, false>(product, multiprocessors)
                   : few_variants<false, false>(product, multiprocessors);
  }
  if (!squares) return {of_many(kManyOutputs), kMany, 2};
  const std::span<const int> all = kManySquareOutputs;
  return {of_many(have_blocks(product) ? all : all.first(all.size() - 1)), kManySquares, 2};
}

template <bool kSquares, bool kHeads>
void allow_few() {
  few_rows::allow_memory(kFew<kSquares, kHeads>);
  few_rows::allow_memory(kPairs<kSquares, kHeads>);
  few_rows::allow_memory(kDiagonal<8, kSquares, kHeads>);
  few_rows::allow_memory(kDiagonal<16, kSquares, kHeads>);
  few_rows::allow_memory(kDiagonal<32, kSquares, kHeads>);
}

}  // namespace
}  // namespace e4m3

E4m3Products::E4m3Products(const Device& device) : device_(device) {
  if (!multiplies_tiles(device)) return;
  e4m3::allow_few<false, false>();
  e4m3::allow_few<true, false>();
  e4m3::allow_few<false, true>();
  few_rows::allow_memory(e4m3::kMany);
  few_rows::allow_memory(e4m3::kManySquares);
}

bool E4m3Products::rotates(const CudaWeight& weight, const RopeArguments& rope, std::int64_t rows) {
  return rows <= e4m3::kFewRows && !weight.scales()->squares && WgmmaProducts::rotates(rope);
}

void E4m3Products::launch(const FewRowsProduct& product, const E4m3Rows& rows) const {
  const CudaWeight& weight = *product.weight;
  FewRowsProduct of_codes = product;
  of_codes.x = rows.data;
  of_codes.x_stride = rows.cols;
  const e4m3::Variants variants = e4m3::variants_of(of_codes, device_.multiprocessors());
  few_rows::Shape shape(of_codes, variants.kernels, device_.multiprocessors());
  shape.args.x_scales = rows.scales();
  shape.args.x_scale_rows = static_cast<int>(rows.scale_rows());
  const e4m3::Arguments args{shape.args, weight.scales()->data(),
                             reinterpret_cast<const float*>(weight.scales()->blocks.data()),
                             static_cast<int>(weight.rows()), static_cast<int>(weight.rows() / 8)};
  launch_early(variants.all[shape.variant], dim3(static_cast<unsigned>(shape.blocks)),
               few_rows::threads_of(variants.groups), static_cast<std::size_t>(shape.shared_bytes),
               device_.stream(), shape.describe_weight(weight, variants.kernels),
               shape.describe_x(of_codes, variants.kernels), args);
}

}  // namespace dendrite::cuda
