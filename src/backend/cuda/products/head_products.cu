// A small product of each head, whose weights lie apart: one launch for all heads. Rows of x are
// rounded as they are read. Floor: the weights' bytes over bandwidth; with few rows the latency of
// a launch.
#include <algorithm>

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/products/head_products.h"
#include "backend/cuda/products/piece_sums.cuh"
#include "backend/cuda/products/weight.h"

namespace dendrite::cuda {
namespace {

constexpr int kWarps = 2;
constexpr int kThreads = kWarps * 32;
constexpr int kOutputs = kWarps * 2 * kPieceTile;  // of a block
constexpr int kMostHeads = 128;                    // of a launch
constexpr int kCopyThreads = 128;

struct Arguments {
  const bf16* weights[kMostHeads];
  int weight_rows;
  int weight_ld;
  int cols;
  int rows;
  const float* x;
  std::int64_t x_stride;
  std::int64_t x_step;
  float* out;
  std::int64_t out_stride;
  std::int64_t out_step;
};

/// grid (weight_rows / kOutputs, rows / (8 * kRowTiles), heads)
template <int kRowTiles>
__global__ void __launch_bounds__(kThreads)
    head_products_kernel(const __grid_constant__ Arguments args) {
  let_next_begin();
  wait_for_earlier();
  const int head = static_cast<int>(blockIdx.z);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column =
      (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * 2 * kPieceTile;
  if (column >= args.weight_rows) return;
  const int first_row = static_cast<int>(blockIdx.y) * 8 * kRowTiles;
  const bf16* weights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = min(column + lane / 4 + 8 * i, args.weight_rows - 1);
    weights[i] = args.weights[head] + static_cast<std::int64_t>(row) * args.weight_ld;
  }
  const float* rows[kRowTiles];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const int row = min(first_row + 8 * i + lane / 4, args.rows - 1);
    rows[i] = args.x + row * args.x_stride + head * args.x_step;
  }
  PieceSums<kRowTiles> sums;
  sums.multiply(weights, rows, args.cols);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = first_row + 8 * i + lane % 4 * 2 + j % 2;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int output = column + tile * kPieceTile + lane / 4 + j / 2 * 8;
        if (row >= args.rows || output >= args.weight_rows) continue;
        args.out[row * args.out_stride + head * args.out_step + output] = sums.at[tile][i][j];
      }
    }
  }
}

/// grid (rows)
__global__ void __launch_bounds__(kCopyThreads) copy_heads_kernel(HeadCopies args) {
  let_next_begin();
  wait_for_earlier();
  const float* x = args.x.data + blockIdx.x * args.x.stride;
  float* out = args.out.data + blockIdx.x * args.out.stride;
  for (std::int64_t i = threadIdx.x; i < args.heads * args.cols; i += kCopyThreads) {
    const std::int64_t head = i / args.cols;
    const std::int64_t column = i % args.cols;
    out[head * args.out_step + column] = x[head * args.x_step + column];
  }
}

template <int kRowTiles>
void launch(const Arguments& args, int heads, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.weight_rows + kOutputs - 1) / kOutputs),
                  static_cast<unsigned>((args.rows + 8 * kRowTiles - 1) / (8 * kRowTiles)),
                  static_cast<unsigned>(heads));
  launch_early(head_products_kernel<kRowTiles>, grid, kThreads, 0, stream, args);
}

const CudaWeight& own(const std::unique_ptr<Weight>& weight) {
  return static_cast<const CudaWeight&>(*weight);
}

}  // namespace

bool fits_head_products(const HeadProducts& args) {
  return std::ranges::all_of(args.weights,
                             [](const auto& weight) { return own(weight).is_bf16(); }) &&
         args.weights.front()->cols() % kPieceValues == 0 && args.x_step % 4 == 0 &&
         args.x.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x.data) % 16 == 0;
}

void launch_head_products(const HeadProducts& args, cudaStream_t stream) {
  Arguments to{};
  to.weight_rows = static_cast<int>(args.weights.front()->rows());
  to.weight_ld = static_cast<int>(own(args.weights.front()).ld());
  to.cols = static_cast<int>(args.weights.front()->cols());
  to.rows = static_cast<int>(args.x.rows);
  to.x_stride = args.x.stride;
  to.x_step = args.x_step;
  to.out_stride = args.out.stride;
  to.out_step = args.out_step;
  for (std::size_t first = 0; first < args.weights.size(); first += kMostHeads) {
    const auto heads =
        args.weights.subspan(first, std::min<std::size_t>(kMostHeads, args.weights.size() - first));
    std::ranges::transform(heads, to.weights, [](const auto& weight) {
      return reinterpret_cast<const bf16*>(own(weight).data());
    });
    const auto before = static_cast<std::int64_t>(first);
    to.x = args.x.data + before * args.x_step;
    to.out = args.out.data + before * args.out_step;
    const auto count = static_cast<int>(heads.size());
    if (to.rows <= 8) {
      launch<1>(to, count, stream);
    } else if (to.rows <= 16) {
      launch<2>(to, count, stream);
    } else if (to.rows <= 32) {
      launch<4>(to, count, stream);
    } else {
      launch<8>(to, count, stream);
    }
  }
}

void launch_copy_heads(const HeadCopies& args, cudaStream_t stream) {
  launch_early(copy_heads_kernel, dim3(static_cast<unsigned>(args.out.rows)), kCopyThreads, 0,
               stream, args);
}

}  // namespace dendrite::cuda
