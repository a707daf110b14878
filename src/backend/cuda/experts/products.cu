// The two products of each pair of a row and an expert, by tensor cores (mma.sync): weights are the
// first operand, sixteen of their rows a tile, and rows of the batch the second, eight a tile. A
// warp has two tiles of weights for up to 64 rows (piece_sums.cuh).
// Floor: the bytes of the experts that are taken, once for each 64 rows of one.
#include "backend/cuda/base/activations.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/few_products.h"
#include "backend/cuda/products/piece_sums.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kWarps = 2;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = kPieceTile;

/// What a warp works on.
struct Place {
  ExpertItem item;
  DeviceMatrix matrix;
  int ffn;  // of the expert, and values of a row of its `down`
  int down_ld;
  int column;  // first output of the warp
};

/// A row of a matrix, or one that is there where it is not.
__device__ inline const bf16* row_of(const void* matrix, int row, int rows, std::int64_t ld) {
  return static_cast<const bf16*>(matrix) + min(row, rows - 1) * ld;
}

/// act = gate(gates, ups) of 16 columns of the item's pairs, zeros behind ffn.
template <int kRowTiles, typename Gate>
__device__ void store_act(const ExpertsArguments& a, const Place& p,
                          const PieceSums<kRowTiles>& sums, Gate gate) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = i * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2;
      const int column = p.column + static_cast<int>(threadIdx.x) % 32 / 4 + j / 2 * 8;
      if (row >= p.item.count || column >= p.down_ld) continue;
      const float value = column < p.ffn ? gate(sums.at[0][i][j], sums.at[1][i][j]) : 0.0f;
      static_cast<bf16*>(a.act)[static_cast<std::int64_t>(p.item.begin + row) * a.act_ld + column] =
          narrow<bf16>(value);
    }
  }
}

/// Gates and ups of 16 columns, and act of them.
template <int kRowTiles>
__device__ void gate_and_up(const ExpertsArguments& a, const Place& p) {
  const int group = static_cast<int>(threadIdx.x) % 32 / 4;
  const int ffn = p.ffn;
  const bf16* weights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = p.column + group + (i % 2) * 8;
    const auto* matrix = static_cast<const bf16*>(p.matrix.data) +
                         (i < 2 ? 0 : static_cast<std::int64_t>(ffn) * a.x_ld);
    weights[i] = row_of(matrix, row, ffn, a.x_ld);
  }
  const bf16* rows[kRowTiles];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const int pair = p.item.begin + min(i * 8 + group, p.item.count - 1);
    rows[i] = static_cast<const bf16*>(a.x) + static_cast<std::int64_t>(a.pair_row[pair]) * a.x_ld;
  }
  PieceSums<kRowTiles> sums;
  sums.multiply(weights, rows, a.x_ld);
  if (const float* bias = p.matrix.bias) {
    sums.add_bias(0, bias, p.column + group, ffn);
    sums.add_bias(1, bias + ffn, p.column + group, ffn);
  }
  with_gate(a.activation, [&](auto gate) { store_act(a, p, sums, gate); });
}

/// 32 columns of `down` of the item's pairs; or of `act`, zeros behind ffn, of what has no gates.
template <int kRowTiles>
__device__ void down(const ExpertsArguments& a, const Place& p) {
  const int group = static_cast<int>(threadIdx.x) % 32 / 4;
  const int outputs = a.ups ? p.ffn : a.dim;
  const int ld = a.ups ? a.x_ld : p.down_ld;
  const bf16* weights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    weights[i] = row_of(p.matrix.data, p.column + group + i * 8, outputs, ld);
  }
  const bf16* rows[kRowTiles];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const std::int64_t pair = p.item.begin + min(i * 8 + group, p.item.count - 1);
    rows[i] = a.ups ? static_cast<const bf16*>(a.x) + std::int64_t{a.pair_row[pair]} * a.x_ld
                    : static_cast<const bf16*>(a.act) + pair * a.act_ld;
  }
  PieceSums<kRowTiles> sums;
  sums.multiply(weights, rows, ld);
  if (const float* bias = p.matrix.bias) {
    sums.add_bias(0, bias, p.column + group, outputs);
    sums.add_bias(1, bias, p.column + kTile + group, outputs);
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = i * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2;
        const int column = p.column + tile * kTile + group + j / 2 * 8;
        if (row >= p.item.count || column >= (a.ups ? p.down_ld : a.dim)) continue;
        const std::int64_t pair = p.item.begin + row;
        const float sum = sums.at[tile][i][j];
        if (a.ups) {
          const float value = column < outputs ? SquaredRelu{}(sum) : 0.0f;
          static_cast<bf16*>(a.act)[pair * a.act_ld + column] = narrow<bf16>(value);
        } else {
          a.down[pair * a.dim + column] = sum;
        }
      }
    }
  }
}

template <bool kDown, int kRowTiles>
__device__ void work_on(const ExpertsArguments& a, const Place& place) {
  if constexpr (kDown) {
    down<kRowTiles>(a, place);
  } else {
    gate_and_up<kRowTiles>(a, place);
  }
}

/// Blocks go over items whose matrix is of this kind, and over the outputs of each. `parts`: of an
/// item.
template <bool kDown>
__global__ void __launch_bounds__(kThreads)
    products_kernel(const __grid_constant__ ExpertsArguments a, int kind, int parts) {
  let_next_begin();
  wait_for_earlier();
  constexpr int kColumns = kDown ? 2 * kTile : kTile;  // of a warp
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int works = *a.item_count * parts;
  for (int work = static_cast<int>(blockIdx.x); work < works; work += static_cast<int>(gridDim.x)) {
    Place place;
    place.item = a.items[work / parts];
    const DeviceExpert& expert = a.matrices[place.item.expert];
    const bool of_down = kDown && !a.ups;
    place.matrix = of_down ? expert.down : expert.gate_up;
    if (place.matrix.kind != kind) continue;
    place.ffn = expert.ffn;
    place.down_ld = expert.down_ld;
    place.column = (work % parts * kWarps + warp) * kColumns;
    if (place.column >= (of_down ? a.dim : place.ffn)) continue;
    if (place.item.count <= 8) {
      work_on<kDown, 1>(a, place);
    } else if (place.item.count <= 16) {
      work_on<kDown, 2>(a, place);
    } else if (place.item.count <= 32) {
      work_on<kDown, 4>(a, place);
    } else {
      work_on<kDown, kItemRows / 8>(a, place);
    }
  }
}

template <bool kDown>
void launch(const ExpertsArguments& args, int kind, const Device& device, int outputs) {
  constexpr int kBlocks = 8;  // of a multiprocessor, in turns where they do not fit at once
  constexpr int kOutputs = kWarps * (kDown ? 2 * kTile : kTile);
  const int parts = (outputs + kOutputs - 1) / kOutputs;
  launch_early(products_kernel<kDown>,
               dim3(static_cast<unsigned>(kBlocks * device.multiprocessors())), kThreads, 0,
               device.stream(), args, kind, parts);
}

}  // namespace

void launch_gate_ups(const ExpertsArguments& args, int kind, const Device& device) {
  if (args.rows <= kFewRows) return launch_few_gate_ups(args, kind, device);
  launch<false>(args, kind, device, args.widest);
}

void launch_ups(const ExpertsArguments& args, int kind, const Device& device) {
  ExpertsArguments of_ups = args;
  of_ups.ups = true;
  if (args.rows <= kFewRows) return launch_few_outputs(of_ups, kind, device);
  launch<true>(of_ups, kind, device, args.widest);
}

void launch_downs(const ExpertsArguments& args, int kind, const Device& device) {
  if (args.rows <= kFewRows) return launch_few_outputs(args, kind, device);
  launch<true>(args, kind, device, args.dim);
}

}  // namespace dendrite::cuda
