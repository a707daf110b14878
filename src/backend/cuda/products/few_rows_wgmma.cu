// Products of up to 64 rows, y = x W^T with W [n, k] in bf16, row-major, in one order of sums:
// k ascending in steps of 16, one accumulator an output, as cuBLASLt without split-K has it.
// Floor: the bytes of W over read bandwidth; and a chain of k / 16 products that depend on each
// other, about 40 cycles each.
//
// A block walks over units of outputs. Its warps have one job each. One streams W, tile after tile
// of 64 k, into a ring of stages in shared memory, the first of them before the kernel before is
// done: W does not depend on it. One streams x into a ring of its own, in pieces large enough that
// the blocks, which all walk over k alike, do not ask the same few lines of the L2 cache at once.
// A warpgroup multiplies: x is the left operand (rows that are not there are read as whatever lies
// behind and never stored), W the right one. Up to kSharingRows rows two blocks share a
// multiprocessor: one reads while the other begins or ends.
//
// Where rows of W are heads of q, k and v (Epilogue::kRope) a copy interleaves the halves of heads,
// so that neighbouring outputs, which a thread has anyway, are a pair that RoPE rotates.
#include <algorithm>
#include <array>
#include <numeric>

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/products/few_rows_epilogue.cuh"
#include "backend/cuda/products/few_rows_streams.cuh"
#include "backend/cuda/products/few_rows_wgmma.h"

namespace dendrite::cuda {
namespace few_rows {
namespace {

#ifdef DENDRITE_SM90A

/// Multiplies a unit's stages as they come. A thread's sums are, of every 8 outputs, columns 2t and
/// 2t + 1 of `row` and row + 8. kPiece outputs are one instruction, kPieces of them a unit.
template <int kPiece, int kPieces, bool kHeads>
class Multiplier {
 public:
  __device__ Multiplier(const Arguments& args, const Rings& rings)
      : args_(args),
        rings_(rings),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) / 32 * 16 + lane_ / 4),
        stage_{args.stages},
        chunk_{args.chunks} {}

  __device__ void run() {
    wait_for_earlier();
    if constexpr (kHeads) {
      run_heads();
    } else {
      run_outputs();
    }
  }

 private:
  static constexpr int kOutputs = kPiece * kPieces;
  static constexpr int kOfPiece = kPiece / 8;
  static constexpr int kEights = kOfPiece * kPieces;
  static constexpr bool kEarly = kOutputs <= 64;  // room for what is added to, from the start

  __device__ void run_outputs() {
    for (int unit = static_cast<int>(blockIdx.x); unit < args_.units;
         unit += static_cast<int>(gridDim.x)) {
      float2 old[kEarly ? kEights : 1][2];
      if constexpr (kEarly) {
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
          old[i][0] = load_old(args_, row_, column_of(unit, i));
          old[i][1] = load_old(args_, row_ + 8, column_of(unit, i));
        }
      }
      float sums[kPieces][kPiece / 2];
      multiply(sums);
      if (args_.epilogue == Epilogue::kSiluMul) {
        store_silus(unit, sums);
        continue;
      }
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const int column = column_of(unit, i);
        const float* four = sums[i / kOfPiece] + i % kOfPiece * 4;
        store_pair(args_, row_, column, four[0], four[1],
                   kEarly ? old[kEarly ? i : 0][0] : load_old(args_, row_, column));
        store_pair(args_, row_ + 8, column, four[2], four[3],
                   kEarly ? old[kEarly ? i : 0][1] : load_old(args_, row_ + 8, column));
      }
    }
  }

  __device__ void run_heads() {
    const HeadSink sink(args_, row_, row_ + 8);
    for (int unit = static_cast<int>(blockIdx.x); unit < args_.units;
         unit += static_cast<int>(gridDim.x)) {
      float2 angles[kEarly ? kEights : 1][2];
      if constexpr (kEarly) {
        PairWalk walk(args_, unit);
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
          angles[i][0] = sink.load_angle(walk.pair(), 0);
          angles[i][1] = sink.load_angle(walk.pair(), 1);
          walk.next();
        }
      }
      float sums[kPieces][kPiece / 2];
      multiply(sums);
      PairWalk walk(args_, unit);
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float* four = sums[i / kOfPiece] + i % kOfPiece * 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sink.put(walk.pair(), r,
                   kEarly ? angles[kEarly ? i : 0][r] : sink.load_angle(walk.pair(), r),
                   four[2 * r], four[2 * r + 1]);
        }
        walk.next();
      }
      for (int e = 0; e < sink.extra_count(unit); ++e) store_again(sink, unit, e, sums);
    }
  }

  /// Extra store number e.
  __device__ void store_again(const HeadSink& sink, int unit, int e,
                              const float (&sums)[kPieces][kPiece / 2]) const {
    const ExtraStore extra = args_.rope.extra_stores[e];
    if (extra.row != row_ && extra.row != row_ + 8) return;
    const bool second = extra.row != row_;
    PairWalk walk(args_, unit);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float* four = sums[i / kOfPiece] + i % kOfPiece * 4;
      sink.put_again(walk.pair(), extra.slot, second ? four[2] : four[0],
                     second ? four[3] : four[1]);
      walk.next();
    }
  }

  __device__ int column_of(int unit, int i) const {
    return unit * kOutputs + 8 * i + lane_ % 4 * 2;
  }

  __device__ void multiply(float (&sums)[kPieces][kPiece / 2]) {
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
        x = rings_.x.slot(chunk_.slot);
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
            multiply_add(sums[piece], x_tile + step * 2,
                         weight_tile + piece * kPieceBytes / 16 + step * 2,
                         step > 0 || tile + i > 0);
          }
        }
        commit_products();
        wait_products<1>();
        x += args_.tile_rows * kTileRowBytes;
        weights += kOutputs * kTileRowBytes;
        if (i == 0 && lane_ == 0) {  // all products before this tile's are done
          if (used_stage != 0) arrive(used_stage);
          if (used != 0) arrive(used);
        }
      }
      left -= args_.stage_tiles;
      used_stage = rings_.weights.free + 8 * stage_.slot;
      stage_.next();
    }
    wait_products<0>();
    if (lane_ == 0) {
      arrive(used_stage);
      arrive(used_chunk);
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) take_sums(sums[piece]);
  }

  __device__ void store_silus(int unit, const float (&sums)[kPieces][kPiece / 2]) const {
    if constexpr (kEights % 2 == 0) {
      constexpr int kUps = kEights / 2;
#pragma unroll
      for (int i = 0; i < kUps; ++i) {
        const int column = unit * (kOutputs / 2) + 8 * i + lane_ % 4 * 2;
        const float* gates = sums[i / kOfPiece] + i % kOfPiece * 4;
        const float* ups = sums[(i + kUps) / kOfPiece] + (i + kUps) % kOfPiece * 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          store_silu(args_, row_ + j / 2 * 8, column + j % 2, gates[j], ups[j]);
        }
      }
    }
  }

  const Arguments& args_;
  const Rings& rings_;
  int lane_;
  int row_;
  Cursor stage_;
  Cursor chunk_;
};

#endif  // DENDRITE_SM90A

/// Blocks of so many outputs leave each other's registers alone where two share a multiprocessor.
/// 128 outputs of heads take too many.
constexpr int blocks_of(int outputs) {
  return outputs <= 112 ? 2 : 1;
}

/// kHeads: Epilogue::kRope.
template <int kPiece, int kPieces, bool kHeads>
__global__ void __launch_bounds__(kThreads, blocks_of(kPiece* kPieces))
    few_rows_kernel(const __grid_constant__ CUtensorMap weight,
                    const __grid_constant__ CUtensorMap x, const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  extern __shared__ __align__(1024) std::uint8_t memory[];
  constexpr int kOutputs = kPiece * kPieces;
  const Rings rings(args, shared_address(memory), kOutputs);
  // The compiler keeps what follows from a lane's value in uniform registers, as products need it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  WeightStream<kOutputs, kHeads> stream(args, weight, rings.weights);
  if (warp == kMultipliers) {
    if (lane == 0) prefetch_map(weight);
    if (lane < args.stages) rings.weights.init(lane);
    __syncwarp();
    for (int i = 0; lane == 0 && i < args.stages && !stream.done(); ++i) stream.fetch();
  } else if (warp > kMultipliers) {
    if (lane == 0) prefetch_map(x);
    if (lane < args.chunks) rings.x.init(lane);
  }
  __syncthreads();
  if (warp == kMultipliers) {
    while (lane == 0 && !stream.done()) {
      stream.wait();
      stream.fetch();
    }
  } else if (warp > kMultipliers) {
    wait_for_earlier();
    if (lane == 0) stream_x(args, x, rings.x);
  } else {
    Multiplier<kPiece, kPieces, kHeads>(args, rings).run();
  }
#endif
}

struct Variant {
  int outputs;
  void (*kernel)(CUtensorMap, CUtensorMap, Arguments);
  void (*head_kernel)(CUtensorMap, CUtensorMap, Arguments);
};
template <int kPiece, int kPieces>
constexpr Variant kVariant = {kPiece* kPieces, few_rows_kernel<kPiece, kPieces, false>,
                              few_rows_kernel<kPiece, kPieces, true>};
constexpr std::array kVariants = {
    kVariant<16, 1>, kVariant<24, 1>,  kVariant<32, 1>,  kVariant<48, 1>,
    kVariant<64, 1>, kVariant<96, 1>,  kVariant<112, 1>, kVariant<128, 1>,
    kVariant<96, 2>, kVariant<112, 2>, kVariant<128, 2>,
};

// As measured on an H200.
constexpr int kSharingRows = 32;          // up to so many, two blocks share a multiprocessor
constexpr int kMostSharingOutputs = 128;  // of a unit
constexpr int kSharedBytes = 227 << 10;   // of a multiprocessor
constexpr int kChunkBytes = 8 << 10;      // of x, with at most 16 tiles
constexpr int kMostStageX = 32 << 10;     // bytes of x that go with a stage of weights

/// Which kernel, and how its shared memory is cut.
struct Shape {
  Arguments args{};
  Variant variant{};
  int blocks = 0;
  int shared_bytes = 0;

  Shape(const FewRowsProduct& product, int multiprocessors) {
    const CudaWeight& weight = *product.weight;
    const bool silu = product.epilogue == Epilogue::kSiluMul;
    args.outputs = static_cast<int>(silu ? weight.rows() / 2 : weight.rows());
    args.ffn = silu ? args.outputs : 0;
    args.epilogue = product.epilogue;
    if (product.epilogue == Epilogue::kRope) args.rope = *product.rope;
    args.rows = static_cast<int>(product.rows);
    args.tile_rows = (args.rows + 7) / 8 * 8;
    args.tiles = static_cast<int>(weight.cols() / kTileK);
    args.bias = product.bias;
    args.out = product.out;
    args.out_stride = product.out_stride;
    args.paired =
        product.out_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(product.out) % 8 == 0;
    const int sharing = args.rows <= kSharingRows ? 2 : 1;
    shared_bytes = kSharedBytes / sharing - (sharing - 1) * 1024;  // the system takes 1 KB a block
    choose_variant(static_cast<int>(weight.rows()), sharing, sharing * multiprocessors);
    cut(sharing > 1 ? 16 << 10 : 32 << 10);
  }

  CUtensorMap describe_weight(const CudaWeight& weight) const {
    if (args.epilogue == Epilogue::kRope) {
      return describe_pairs(weight.data(), weight.rows() / args.rope.head_dim, args.rope.head_dim,
                            weight.cols(), weight.ld(), args.unit_pairs, args.unit_heads,
                            args.stage_tiles);
    }
    const bool silu = args.ffn > 0;
    return describe_tiles(weight.data(), weight.rows(), weight.cols(), weight.ld(),
                          silu ? variant.outputs / 2 : variant.outputs,
                          silu ? 1 : args.stage_tiles);
  }

 private:
  /// The widest block does the least; of equals, the one with the fewest units reads x least often.
  void choose_variant(int rows, int sharing, int most_blocks) {
    double least = 0;
    for (const Variant& candidate : kVariants) {
      if (args.ffn > 0 && candidate.outputs % 16 != 0) continue;
      if (sharing > 1 && candidate.outputs > kMostSharingOutputs) continue;
      const int units = cut_units(candidate.outputs, rows);
      const int rounds = (units + most_blocks - 1) / most_blocks;
      const double cost = rounds * (candidate.outputs + 0.25 * args.tile_rows);
      if (variant.kernel != nullptr && cost >= least) continue;
      variant = candidate;
      least = cost;
    }
    args.units = cut_units(variant.outputs, rows);
    blocks = std::min(args.units, most_blocks);
  }

  /// How many units there are of so many of the weight's rows.
  int cut_units(int outputs, int rows) {
    if (args.epilogue != Epilogue::kRope) return (rows + outputs - 1) / outputs;
    const int head_eights = static_cast<int>(args.rope.head_dim) / 8;
    const int eights = std::gcd(outputs / 8, head_eights);
    args.unit_pairs = 4 * eights;
    args.unit_heads = outputs / 8 / eights;
    const int heads = rows / static_cast<int>(args.rope.head_dim);
    return (heads + args.unit_heads - 1) / args.unit_heads * (head_eights / eights);
  }

  void cut(int stage_bytes) {
    const int room = shared_bytes - kBarrierBytes;
    const int tile_bytes = variant.outputs * kTileRowBytes;
    const int x_bytes = args.tile_rows * kTileRowBytes;
    args.stage_tiles = 1;
    while (args.stage_tiles < 8 && 2 * args.stage_tiles * tile_bytes <= stage_bytes &&
           2 * args.stage_tiles * x_bytes <= kMostStageX) {
      args.stage_tiles *= 2;
    }
    for (;; args.stage_tiles /= 2) {
      args.chunk_tiles = args.stage_tiles;
      while (args.chunk_tiles < 16 && 2 * args.chunk_tiles * x_bytes <= kChunkBytes) {
        args.chunk_tiles *= 2;
      }
      const int chunks = (args.tiles + args.chunk_tiles - 1) / args.chunk_tiles;
      const int as_deep = room / (tile_bytes + x_bytes) / args.chunk_tiles;  // as the weights' ring
      args.chunks = std::clamp(as_deep, 2, std::clamp(chunks, 2, kMostSlots));
      const int left = room - args.chunks * args.chunk_tiles * x_bytes;
      args.stages = std::min(left / (args.stage_tiles * tile_bytes), kMostSlots);
      if (args.stages >= 3 || args.stage_tiles == 1) return;
    }
  }
};

}  // namespace
}  // namespace few_rows

WgmmaProducts::WgmmaProducts(const Device& device) : device_(device) {
  fits_ = device.architecture() / 10 == 9 && device.shared_bytes() >= few_rows::kSharedBytes &&
          describes_tiles();
  if (!fits_) return;
  for (const few_rows::Variant& variant : few_rows::kVariants) {
    for (const auto kernel : {variant.kernel, variant.head_kernel}) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 few_rows::kSharedBytes),
            "matmul");
    }
  }
}

bool WgmmaProducts::takes(const CudaWeight& weight) const {
  return fits_ && weight.is_bf16() && weight.cols() % few_rows::kTileK == 0;
}

bool WgmmaProducts::rotates(const RopeArguments& rope) {
  return rotates_in_product(rope) && rope.head_dim % 8 == 0;
}

void WgmmaProducts::launch(const FewRowsProduct& product) const {
  const CudaWeight& weight = *product.weight;
  const few_rows::Shape shape(product, device_.multiprocessors());
  const few_rows::Arguments& args = shape.args;
  const CUtensorMap weight_map = shape.describe_weight(weight);
  const CUtensorMap x_map = describe_tiles(product.x, product.rows, weight.cols(), product.x_stride,
                                           args.tile_rows, args.chunk_tiles);
  const bool heads = product.epilogue == Epilogue::kRope;
  launch_early(heads ? shape.variant.head_kernel : shape.variant.kernel,
               dim3(static_cast<unsigned>(shape.blocks)), few_rows::kThreads,
               static_cast<std::size_t>(shape.shared_bytes), device_.stream(), weight_map, x_map,
               args);
}

}  // namespace dendrite::cuda
