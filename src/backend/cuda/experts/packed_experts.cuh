#pragma once

#include "backend/cuda/base/activations.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/experts/packed_experts.h"
#include "backend/cuda/products/packed_decode.cuh"

// The two products of each pair of a row and an expert, of packed weights: decoded in registers,
// they are the first operand of mma.sync, sixteen of their rows, and rows of the batch the second,
// eight a tile. So an output is a chain over k that depends on its own row alone, and a gate and
// its up are in one thread.
// Floor: the bytes of the experts that are taken, once for each 64 rows of one; some five
// instructions a weight of four bits.
//
// A warp has 8 gates and their ups, or 8 or 16 outputs of `down` or of ups without gates. It loads
// tiles straight to registers, the next ones before those that it multiplies. Rows of the item lie
// in shared memory, the next columns of which are brought meanwhile, for all warps of the block.
namespace dendrite::cuda::packed {

/// Of an item, as a block brings its rows: thread i has some 16 bytes of one row.
template <bool kFew, int kRowTiles>
class RowCopies {
 public:
  using Piece = RowPiece<kFew, kRowTiles>;

  /// row_begin(row): where one of the `count` rows begins, 16-byte aligned. cols: of a row, a
  /// multiple of 8; behind them there are zeros.
  template <typename RowBegin>
  __device__ RowCopies(int count, int cols, int tiles_k, RowBegin row_begin)
      : cols_(cols), padded_(tiles_k * PackedLayout::kColumns) {
    const int row = static_cast<int>(threadIdx.x) / kOfRow;
    at_ = row * Piece::kRowBytes + first() * 16;
    if (row < count) from_ = row_begin(row) + first() * 8;
  }

  /// Begins to copy a piece. What rows hold that are not there stays as it is: nobody keeps what
  /// comes of them.
  __device__ void fetch(int piece, std::uint32_t target) const {
    if (from_ == nullptr) return;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int behind = piece * Piece::kColumns + i * kOfRow * 8;
      const int column = behind + first() * 8;
      if (column >= padded_) return;
      const std::uint32_t to = target + at_ + i * kOfRow * 16;
      if constexpr (kFew) {
        copy_async_cached(to, from_ + behind, column < cols_);
      } else {
        copy_async(to, from_ + behind, column < cols_);
      }
    }
  }

 private:
  static constexpr int kOfRow = ExpertCut<kFew>::kThreads / Piece::kRows;  // threads
  static constexpr int kCopies = Piece::kColumns / 8 / kOfRow;
  static_assert(kOfRow * Piece::kRows == ExpertCut<kFew>::kThreads &&
                kCopies * kOfRow * 8 == Piece::kColumns);

  static __device__ int first() {
    return static_cast<int>(threadIdx.x) % kOfRow;
  }

  int cols_;
  int padded_;
  int at_;
  const bf16* from_ = nullptr;
};

/// Two tiles in a lane's registers: the same columns of two rows of tiles; or, kInLine, two of one
/// row that follow each other.
template <class Q, bool kInLine>
class TwoTiles {
 public:
  static constexpr int kStep = kInLine ? 2 : 1;

  __device__ TwoTiles(const std::uint8_t* const (&rows)[2], int tile, int tiles_k, int lane,
                      std::uint32_t less)
      : first(in_memory(rows[0] + tile * Q::kTileBytes), lane, less),
        second(in_memory(kInLine ? rows[0] + min(tile + 1, tiles_k - 1) * Q::kTileBytes
                                 : rows[1] + tile * Q::kTileBytes),
               lane, less) {}

  LaneTile<Q> first;
  LaneTile<Q> second;

 private:
  /// So that loads are those of global memory.
  static __device__ const std::uint8_t* in_memory(const std::uint8_t* tile) {
    __builtin_assume(__isGlobal(tile));
    return tile;
  }
};

/// Of eights of rows, as mma has them: rows of the upper tile, then of the lower one.
template <int kRowTiles>
struct ItemSums {
  float at[kRowTiles][4] = {};

  /// Adds products over the columns of a tile. x: where this lane loads rows of, see
  /// multiply_item(). kBoth: there is a lower tile.
  template <class Q, int kRowBytes, bool kBoth>
  __device__ void add(const LaneTile<Q>& upper, const LaneTile<Q>& lower, std::uint32_t x) {
#pragma unroll
    for (int step = 0; step < PackedLayout::kColumns / 16; step += 2) {
      std::uint32_t weights[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 above = upper.step(step + i);
        const uint2 below = kBoth ? lower.step(step + i) : make_uint2(0, 0);
        weights[i][0] = above.x;
        weights[i][1] = below.x;
        weights[i][2] = above.y;
        weights[i][3] = below.y;
      }
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        std::uint32_t rows[4];  // of 32 columns
        load_matrices(rows, x + tile * 8 * kRowBytes + step * 32);
        multiply_add(at[tile], weights[0], rows[0], rows[1]);
        multiply_add(at[tile], weights[1], rows[2], rows[3]);
      }
    }
  }
};

/// What a warp multiplies.
struct WarpUnit {
  const std::uint8_t* rows[2];  // of tiles; the second: not of TwoTiles in line
  std::uint32_t less;
  bool is_there;  // else the warp only brings rows
};

/// The item's rows times the unit's. Of all threads of a block. memory: of two pieces; turn: of all
/// pieces that the block has had.
template <class Q, bool kFew, bool kInLine, int kRowTiles>
__device__ void multiply_item(ItemSums<kRowTiles>& sums, const WarpUnit& unit,
                              const RowCopies<kFew, kRowTiles>& copies, int tiles_k,
                              std::uint32_t memory, int& turn) {
  using Piece = RowPiece<kFew, kRowTiles>;
  using Tiles = TwoTiles<Q, kInLine>;
  static_assert(Piece::kTiles % Tiles::kStep == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto place_of = [&](int of_turn) {
    return memory + static_cast<std::uint32_t>(of_turn % 2 * kPieceRoom<kFew>);
  };
  // Of two steps: a lane gives the address of row lane % 8, eight columns.
  const auto mine = static_cast<std::uint32_t>(lane % 8 * Piece::kRowBytes + lane / 8 * 16);
  copies.fetch(0, place_of(turn));
  commit_copies();
  Tiles next(unit.rows, 0, tiles_k, lane, unit.less);
  for (int begin = 0; begin < tiles_k; begin += Piece::kTiles, ++turn) {
    wait_copies<0>();
    // This piece is there, and all warps are done with the one before, whose place is the next's.
    __syncthreads();
    if (begin + Piece::kTiles < tiles_k) {
      copies.fetch(begin / Piece::kTiles + 1, place_of(turn + 1));
    }
    commit_copies();
    __syncwarp();  // not all threads of a warp copied
    if (!unit.is_there) continue;
    const int end = min(begin + Piece::kTiles, tiles_k);
    std::uint32_t x = place_of(turn) + mine;
#pragma unroll 1
    for (int tile = begin; tile < end; tile += Tiles::kStep) {
      const Tiles tiles = next;
      if (tile + Tiles::kStep < tiles_k) {
        next = Tiles(unit.rows, tile + Tiles::kStep, tiles_k, lane, unit.less);
      }
      constexpr int kTileRowBytes = PackedLayout::kColumns * 2;
      sums.template add<Q, Piece::kRowBytes, !kInLine>(tiles.first, tiles.second, x);
      if (kInLine && tile + 1 < end) {
        sums.template add<Q, Piece::kRowBytes, false>(tiles.second, tiles.second,
                                                      x + kTileRowBytes);
      }
      x += Tiles::kStep * kTileRowBytes;
    }
  }
}

/// act = gate(gates, ups) of a column of the item's pairs.
template <int kRowTiles, typename Gate>
__device__ void store_act(const ExpertsArguments& a, const ExpertItem& item, int column,
                          const ItemSums<kRowTiles>& sums, Gate gate) {
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int row = i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
    if (row >= item.count) continue;
    const float value = gate(sums.at[i / 2][i % 2], sums.at[i / 2][2 + i % 2]);
    static_cast<bf16*>(a.act)[static_cast<std::int64_t>(item.begin + row) * a.act_ld + column] =
        narrow<bf16>(value);
  }
}

/// 8 gates and their ups, and act of them. unit: of the warp
template <class Q, bool kFew, int kRowTiles>
__device__ void gate_and_up(const ExpertsArguments& a, const ExpertItem& item,
                            const DeviceMatrix& matrix, int ffn, int unit, std::uint32_t memory,
                            int& turn) {
  const int tiles_k = (a.dim + PackedLayout::kColumns - 1) / PackedLayout::kColumns;
  const int units = ffn / 8;
  const auto* const tiles = static_cast<const std::uint8_t*>(matrix.data);
  const auto row_of_tiles = [&](int row) {
    return tiles + std::int64_t{row} * tiles_k * Q::kTileBytes;
  };
  const int one = min(unit, units - 1);
  const WarpUnit work{{row_of_tiles(one), row_of_tiles(units + one)}, matrix.less, unit < units};
  const RowCopies<kFew, kRowTiles> copies(item.count, a.dim, tiles_k, [&](int row) {
    return static_cast<const bf16*>(a.x) +
           static_cast<std::int64_t>(a.pair_row[item.begin + row]) * a.x_ld;
  });
  ItemSums<kRowTiles> sums;
  multiply_item<Q, kFew, false, kRowTiles>(sums, work, copies, tiles_k, memory, turn);
  if (!work.is_there) return;
  const int column = unit * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  if (matrix.bias != nullptr) {
    const float of_gate = matrix.bias[column];
    const float of_up = matrix.bias[ffn + column];
#pragma unroll
    for (int i = 0; i < 4 * kRowTiles; ++i) {
      sums.at[i / 4][i % 4] += i % 4 < 2 ? of_gate : of_up;
    }
  }
  with_gate(a.activation, [&](auto gate) { store_act(a, item, column, sums, gate); });
}

/// Some outputs of `down` of the item's pairs; or of `act`, of what has no gates.
template <class Q, bool kFew, int kRowTiles>
__device__ void down(const ExpertsArguments& a, const ExpertItem& item, const DeviceMatrix& matrix,
                     int ffn, int unit, std::uint32_t memory, int& turn) {
  constexpr int kTiles = ExpertCut<kFew>::kDownTiles;
  const int inputs = a.ups ? a.dim : ffn;
  const int tiles_k = (inputs + PackedLayout::kColumns - 1) / PackedLayout::kColumns;
  const int outputs = a.ups ? ffn : a.dim;
  const int units = (outputs + 8 * kTiles - 1) / (8 * kTiles);
  const int one = min(unit, units - 1);
  const auto* const upper = static_cast<const std::uint8_t*>(matrix.data) +
                            std::int64_t{one} * kTiles * tiles_k * Q::kTileBytes;
  const WarpUnit work{{upper, upper + tiles_k * Q::kTileBytes}, matrix.less, unit < units};
  const RowCopies<kFew, kRowTiles> copies(item.count, inputs, tiles_k, [&](int row) {
    const std::int64_t pair = item.begin + row;
    return a.ups ? static_cast<const bf16*>(a.x) + std::int64_t{a.pair_row[pair]} * a.x_ld
                 : static_cast<const bf16*>(a.act) + pair * a.act_ld;
  });
  ItemSums<kRowTiles> sums;
  multiply_item<Q, kFew, kTiles == 1, kRowTiles>(sums, work, copies, tiles_k, memory, turn);
  if (!work.is_there) return;
#pragma unroll
  for (int half = 0; half < kTiles; ++half) {
    const int column = (unit * kTiles + half) * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int count = column < outputs ? item.count : 0;
    const bool has_bias = count > 0 && matrix.bias != nullptr;
    const float bias = has_bias ? matrix.bias[column] : 0.0f;
    const auto store = [&](auto to) {
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int row = i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        if (row >= count) continue;
        const float sum = sums.at[i / 2][half * 2 + i % 2];
        to(std::int64_t{item.begin} + row, has_bias ? sum + bias : sum);
      }
    };
    if (a.ups) {
      store([&](std::int64_t pair, float sum) {
        static_cast<bf16*>(a.act)[pair * a.act_ld + column] = narrow<bf16>(SquaredRelu{}(sum));
      });
    } else {
      store([&](std::int64_t pair, float sum) { a.down[pair * a.dim + column] = sum; });
    }
  }
}

/// Blocks go over items whose matrix is of this kind, and over the outputs of each. `parts`: of an
/// item.
template <class Q, bool kDown, bool kFew>
__global__ void __launch_bounds__(ExpertCut<kFew>::kThreads, ExpertCut<kFew>::kBlocks)
    packed_experts_kernel(const __grid_constant__ ExpertsArguments a, int kind, int parts) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) std::uint8_t pieces[];
  let_next_begin();
  wait_for_earlier();
  constexpr int kWarps = ExpertCut<kFew>::kWarps;
  constexpr int kOutputs = kDown ? 8 * ExpertCut<kFew>::kDownTiles : 8;  // of a warp
  const std::uint32_t memory = shared_address(pieces);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int works = *a.item_count * parts;
  int turn = 0;
  for (int work = static_cast<int>(blockIdx.x); work < works; work += static_cast<int>(gridDim.x)) {
    const ExpertItem item = a.items[work / parts];
    const DeviceExpert& expert = a.matrices[item.expert];
    const bool of_down = kDown && !a.ups;
    const DeviceMatrix matrix = of_down ? expert.down : expert.gate_up;
    const int ffn = expert.ffn;
    const int first = work % parts * kWarps;
    if (matrix.kind != kind || first * kOutputs >= (of_down ? a.dim : ffn)) continue;
    const auto work_on = [&]<int kRowTiles>() {
      if constexpr (kDown) {
        down<Q, kFew, kRowTiles>(a, item, matrix, ffn, first + warp, memory, turn);
      } else {
        gate_and_up<Q, kFew, kRowTiles>(a, item, matrix, ffn, first + warp, memory, turn);
      }
    };
    if constexpr (kFew) {
      work_on.template operator()<1>();
    } else if (item.count <= 8) {
      work_on.template operator()<1>();
    } else if (item.count <= 16) {
      work_on.template operator()<2>();
    } else if (item.count <= 32) {
      work_on.template operator()<4>();
    } else {
      work_on.template operator()<kItemRows / 8>();
    }
  }
#endif
}

template <class Q>
const ExpertKernels& expert_kernels_of() {
  static const ExpertKernels kernels{
      Q::kLayout,
      {packed_experts_kernel<Q, false, true>, packed_experts_kernel<Q, false, false>},
      {packed_experts_kernel<Q, true, true>, packed_experts_kernel<Q, true, false>}};
  return kernels;
}

}  // namespace dendrite::cuda::packed
