// Products of up to 112 rows, y = x W^T with W [n, k] in bf16, row-major, in one order of sums:
// k ascending in steps of 16, one accumulator an output, as cuBLASLt without split-K has it.
// Floor: the bytes of W over read bandwidth; and a chain of k / 16 products that depend on each
// other, about 40 cycles each.
//
// A block walks over units of outputs. Its warps have one job each. One streams W, tile after tile
// of 64 k, into a ring of stages in shared memory, the first of them before the kernel before is
// done: W does not depend on it. One streams x into a ring of its own, in pieces large enough that
// the blocks, which all walk over k alike, do not ask the same few lines of the L2 cache at once.
// A warpgroup multiplies 64 rows: x is the left operand (rows that are not there are read as
// whatever lies behind and never stored), W the right one. Up to 48 rows two blocks share a
// multiprocessor: one reads while the other begins or ends. Above 64 rows two warpgroups of a
// block, or two blocks, share them, see groups_of().
//
// Where rows of W are heads of q, k and v (Epilogue::kRope) a copy interleaves the halves of heads,
// so that neighbouring outputs, which a thread has anyway, are a pair that RoPE rotates.
#include "backend/cuda/base/wgmma.cuh"
#include "backend/cuda/products/few_rows_multiplier.cuh"
#include "backend/cuda/products/few_rows_shape.h"
#include "backend/cuda/products/few_rows_wgmma.h"

namespace dendrite::cuda {
namespace few_rows {
namespace {

#ifdef DENDRITE_SM90A

/// See Multiplier. kGroups: of warps that multiply.
template <int kPieceOutputs, int kOfPieces, int kGroups>
class Bf16Chain {
 public:
  using Args = Arguments;
  static constexpr int kPiece = kPieceOutputs;
  static constexpr int kPieces = kOfPieces;
  static constexpr bool kRowScales = false;
  static constexpr bool kColumnScales = false;
  static constexpr int kMostOfSixteen = 128;
  static constexpr bool kSixteenAlone = false;
  static constexpr bool kPairsSilus = true;  // (rows of SiLU's results are whole eights)
  static constexpr int kEarlyOutputs = 64;

  __device__ Bf16Chain(const Args& args, const Rings& rings)
      : args_(args), rings_(rings), stage_{args.stages}, chunk_{args.chunks} {
    if constexpr (kGroups > 1) first_x_ = first_x_of_group();
  }

  __device__ std::uint32_t multiply_for_all(int unit) {
    float sums[kPieces][kPiece / 2];
    multiply(sums, unit);
    const std::uint32_t shared = rings_.behind(args_);
    hand_to_all(args_, shared, sums);
    return shared;
  }

  __device__ void multiply(float (&sums)[kPieces][kPiece / 2], int /*unit*/) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t used_stage = 0;  // barriers of slots whose products may still run
    std::uint32_t used_chunk = 0;
    std::uint32_t x = 0;
    int left = 0;  // tiles of the chunk
#pragma unroll 1
    for (int tile = 0; tile < args_.tiles; tile += args_.stage_tiles) {
      std::uint32_t used = 0;
      if (left == 0) {
        used = used_chunk;
        wait_barrier(rings_.x.full + 8 * chunk_.slot, chunk_.parity);
        x = rings_.x.slot(chunk_.slot) + first_x_;
        used_chunk = rings_.x.free + 8 * chunk_.slot;
        left = args_.chunk_tiles;
        chunk_.next();
      }
      wait_barrier(rings_.weights.full + 8 * stage_.slot, stage_.parity);
      std::uint32_t weights = rings_.weights.slot(stage_.slot);
#pragma unroll 1
      for (int i = 0; i < args_.stage_tiles; ++i) {
        const std::uint32_t x_tile = tile_descriptor(x);
        const std::uint32_t weight_tile = tile_descriptor(weights);
        begin_products();
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) {
            constexpr int kPieceBytes = kPiece * kTileRowBytes;
            multiply_add<Operand::kBF16>(sums[piece], x_tile + step * 2,
                                         weight_tile + piece * kPieceBytes / 16 + step * 2,
                                         step > 0 || tile + i > 0);
          }
        }
        commit_products();
        wait_products<1>();
        x += args_.tile_rows * kTileRowBytes;
        weights += kOutputs * kTileRowBytes;
        if (i == 0 && lane == 0) {  // all products before this tile's are done
          if (used_stage != 0) arrive(used_stage);
          if (used != 0) arrive(used);
        }
      }
      left -= args_.stage_tiles;
      used_stage = rings_.weights.free + 8 * stage_.slot;
      stage_.next();
    }
    wait_products<0>();
    if (lane == 0) {
      arrive(used_stage);
      arrive(used_chunk);
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) take_sums(sums[piece]);
  }

 private:
  static constexpr int kOutputs = kPiece * kPieces;

  const Args& args_;
  const Rings& rings_;
  Cursor stage_;
  Cursor chunk_;
  std::uint32_t first_x_ = 0;  // of the warpgroup's rows in a tile
};

#endif  // DENDRITE_SM90A

/// Blocks of so many outputs leave each other's registers alone where two share a multiprocessor.
/// 128 outputs of heads take too many.
constexpr int blocks_of(int outputs, int groups) {
  return groups == 1 && outputs <= 112 ? 2 : 1;
}

/// kHeads: Epilogue::kRope.
template <int kPiece, int kPieces, bool kHeads, int kGroups>
__global__ void __launch_bounds__(threads_of(kGroups), blocks_of(kPiece* kPieces, kGroups))
    few_rows_kernel(const __grid_constant__ CUtensorMap weight,
                    const __grid_constant__ CUtensorMap x, const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  run_block<Bf16Chain<kPiece, kPieces, kGroups>, kHeads, kGroups>(weight, x, args);
#endif
}

constexpr int kOutputs[] = {16, 24, 32, 48, 64, 96, 112, 128, 192, 224, 256};

using Kernel = void (*)(CUtensorMap, CUtensorMap, Arguments);
template <bool kHeads, int kGroups>
constexpr Kernel kVariants[] = {
    few_rows_kernel<16, 1, kHeads, kGroups>,  few_rows_kernel<24, 1, kHeads, kGroups>,
    few_rows_kernel<32, 1, kHeads, kGroups>,  few_rows_kernel<48, 1, kHeads, kGroups>,
    few_rows_kernel<64, 1, kHeads, kGroups>,  few_rows_kernel<96, 1, kHeads, kGroups>,
    few_rows_kernel<112, 1, kHeads, kGroups>, few_rows_kernel<128, 1, kHeads, kGroups>,
    few_rows_kernel<96, 2, kHeads, kGroups>,  few_rows_kernel<112, 2, kHeads, kGroups>,
    few_rows_kernel<128, 2, kHeads, kGroups>,
};
static_assert(std::size(kVariants<false, 1>) == std::size(kOutputs));

/// Warpgroups of a block. Above 64 rows two have the same weights. But where outputs are few,
/// blocks have so few of them that reading two tiles of x from shared memory for each step of k
/// takes longer than all else, if k is long: then two blocks of one have half of the rows each and
/// units twice as wide. (With heads, whose k is short, that took longer on an H200.)
int groups_of(const FewRowsProduct& product, int multiprocessors) {
  if (product.rows <= kGroupRows) return 1;
  const bool wide = product.weight->rows() > std::int64_t{kGroupRows} * multiprocessors;
  return wide || product.epilogue == Epilogue::kRope ? 2 : 1;
}

/// Of a block's band, at most as many as its warpgroups have: bands are even, as copies of rows
/// that are not there take longer than of those that are.
std::int64_t band_rows(std::int64_t rows, int groups) {
  const std::int64_t most = std::int64_t{groups} * kGroupRows;
  const std::int64_t bands = (rows + most - 1) / most;
  return ((rows + bands - 1) / bands + 7) / 8 * 8;
}

template <int kGroups>
Kernel kernel_of(bool heads, std::size_t variant) {
  return heads ? kVariants<true, kGroups>[variant] : kVariants<false, kGroups>[variant];
}

}  // namespace
}  // namespace few_rows

WgmmaProducts::WgmmaProducts(const Device& device)
    : device_(device), fits_(multiplies_tiles(device)) {
  if (!fits_) return;
  few_rows::allow_memory(few_rows::kVariants<false, 1>);
  few_rows::allow_memory(few_rows::kVariants<true, 1>);
  few_rows::allow_memory(few_rows::kVariants<false, 2>);
  few_rows::allow_memory(few_rows::kVariants<true, 2>);
}

bool WgmmaProducts::takes(const CudaWeight& weight) const {
  return fits_ && weight.is_bf16() && weight.cols() % few_rows::kTileK == 0;
}

bool WgmmaProducts::rotates(const RopeArguments& rope) {
  return rotates_in_product(rope) && rope.head_dim % 8 == 0;
}

void WgmmaProducts::launch(const FewRowsProduct& product) const {
  const bool heads = product.epilogue == Epilogue::kRope;
  const int groups = few_rows::groups_of(product, device_.multiprocessors());
  const few_rows::Kernels kernels{.outputs = few_rows::kOutputs,
                                  .sharing_rows = 48,
                                  .most_sharing = 128,
                                  .band_rows = few_rows::band_rows(product.rows, groups)};
  const few_rows::Shape shape(product, kernels, device_.multiprocessors());
  launch_early(groups == 1 ? few_rows::kernel_of<1>(heads, shape.variant)
                           : few_rows::kernel_of<2>(heads, shape.variant),
               dim3(static_cast<unsigned>(shape.blocks)), few_rows::threads_of(groups),
               static_cast<std::size_t>(shape.shared_bytes), device_.stream(),
               shape.describe_weight(*product.weight, kernels), shape.describe_x(product, kernels),
               shape.args);
}

}  // namespace dendrite::cuda
