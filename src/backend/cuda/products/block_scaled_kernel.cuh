#pragma once

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/products/block_scaled_mma.cuh"

// Products x W^T of block-scaled x and W, for any number of rows. A block has a band of rows and
// four warps, each with outputs of its own: rows come through shared memory, words of weights
// straight to the lanes that hand them in, a tile ahead.
namespace dendrite::cuda::block_scaled {

constexpr int kWarps = 4;
constexpr int kStages = 3;  // tiles of rows in shared memory

struct Arguments {
  const std::uint32_t* x;  // words of codes [rows, tiles][kTileWords]
  const std::uint32_t* x_scales;
  const std::uint32_t* weight;  // BlockWeightLayout
  std::int64_t weight_rows;
  std::int64_t cols;
  int rows;
  const float* factors;  // [rows of weight]: of NVFP4, the whole scale of each; or null
  float x_factor;        // of NVFP4, the whole scale of x
  const float* bias;
  float* out;
  std::int64_t out_stride;
  bool add;
};

/// kRowTiles: of 16 rows, that a block has. kColumnTiles: of 8 outputs, that a warp has. An
/// element's sum is the same chain whatever these are: sums of 128 columns are made by the tensor
/// cores from nothing and added in f32, tile after tile.
template <BlockFormat kFormat, int kRowTiles, int kColumnTiles>
class Block {
  using Traits = BlockTraits<kFormat>;
  using Layout = BlockWeightLayout<kFormat>;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kThreads = kWarps * 32;
  // Lanes (g, t) read word t of row g: with 4 words between rows, all from banks of their own.
  static constexpr int kPitch = Traits::kTileWords + 4;
  static constexpr int kLoads = Traits::kLaneWords / 4;

 public:
  static constexpr int kOutputs = kWarps * kColumnTiles * Traits::kTileRows;
  struct Stage {
    alignas(16) std::uint32_t words[kRows * kPitch];
    alignas(8) std::uint32_t scales[kRows * Traits::kScaleWords];
  };

  __device__ Block(const Arguments& args, Stage* stages)
      : args_(args),
        stages_(stages),
        layout_{args.weight_rows, args.cols},
        tiles_(static_cast<int>(layout_.tiles())),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_row_(static_cast<int>(blockIdx.x) * kRows),
        first_output_(static_cast<std::int64_t>(blockIdx.y) * kOutputs +
                      threadIdx.x / 32 * kColumnTiles * Traits::kTileRows) {}

  __device__ void run() {
    load_weights(next_, 0);  // which no earlier kernel writes
    let_next_begin();
    wait_for_earlier();
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) copy_rows(stage);
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait_copies<kStages - 2>();
      __syncthreads();  // the tile is there, and nobody reads the one before
      copy_rows(tile + kStages - 1);
      const Weights weights = next_;
      load_weights(next_, min(tile + 1, tiles_ - 1));
      add_tile(stages_[tile % kStages], weights);
    }
    store();
  }

 private:
  /// A lane's words of a tile, and the scales that it hands in.
  struct Weights {
    std::uint32_t words[kColumnTiles][Traits::kLaneWords];
    std::uint32_t scales[kColumnTiles][Traits::kScaleWords];
  };

  /// Of a column tile: its first row, or that of the last one, where there is none.
  __device__ std::int64_t weight_row(int column_tile) const {
    return min(first_output_ + column_tile * Traits::kTileRows,
               args_.weight_rows - Traits::kTileRows);
  }

  __device__ void load_weights(Weights& out, int tile) const {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      const std::int64_t row = weight_row(j);
      const std::uint32_t* const words = args_.weight + layout_.words_at(row, tile);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(words) + i * 32 + lane_);
        out.words[j][4 * i] = four.x;
        out.words[j][4 * i + 1] = four.y;
        out.words[j][4 * i + 2] = four.z;
        out.words[j][4 * i + 3] = four.w;
      }
      const std::uint32_t* const scales =
          args_.weight + layout_.scales_at(row + right_scale_row(lane_), tile);
#pragma unroll
      for (int i = 0; i < Traits::kScaleWords; ++i) out.scales[j][i] = __ldg(scales + i);
    }
  }

  /// Begins copies of a tile of rows; a group of copies in any case.
  __device__ void copy_rows(int tile) {
    if (tile < tiles_) {
      Stage& stage = stages_[tile % kStages];
      constexpr int kPieces = Traits::kTileWords / 4;  // of 16 bytes
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces; i += kThreads) {
        const std::int64_t row = source_row(i / kPieces);
        const std::uint32_t* const from =
            args_.x + (row * tiles_ + tile) * Traits::kTileWords + i % kPieces * 4;
        copy_async(shared_address(stage.words + i / kPieces * kPitch + i % kPieces * 4), from,
                   true);
      }
      for (int i = static_cast<int>(threadIdx.x); i < kRows * Traits::kScaleWords; i += kThreads) {
        const std::int64_t row = source_row(i / Traits::kScaleWords);
        copy_async(stage.scales + i, args_.x_scales + (row * tiles_ + tile) * Traits::kScaleWords +
                                         i % Traits::kScaleWords);
      }
    }
    commit_copies();
  }
  /// Of the band's row number i: itself, or where there is none the last one.
  __device__ std::int64_t source_row(int i) const {
    return min(first_row_ + i, args_.rows - 1);
  }

  __device__ void add_tile(const Stage& stage, const Weights& weights) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      float of_tile[kColumnTiles][4] = {};
      add_steps<0>(of_tile, stage, weights, r);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[r][j][i] = __fadd_rn(sums_[r][j][i], of_tile[j][i]);
      }
    }
  }

  /// The steps of a tile from kStep on, one after the other.
  template <int kStep>
  __device__ void add_steps(float (&of_tile)[kColumnTiles][4], const Stage& stage,
                            const Weights& weights, int row_tile) const {
    constexpr bool kFourScales = Traits::kStepScales == 4;
    constexpr int kScaleWord = kFourScales ? kStep : 0;
    std::uint32_t a[4];
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int row = row_tile * 16 + left_row(lane_, reg);
      a[reg] = stage.words[row * kPitch + kStep * 8 + left_word(lane_, reg)];
    }
    const std::uint32_t a_scales =
        stage.scales[(row_tile * 16 + left_scale_row(lane_)) * Traits::kScaleWords + kScaleWord];
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      const std::uint32_t b[2] = {weights.words[j][2 * kStep], weights.words[j][2 * kStep + 1]};
      block_scaled_multiply_add<kFormat, kFourScales ? 0 : kStep>(of_tile[j], a, b, a_scales,
                                                                  weights.scales[j][kScaleWord]);
    }
    if constexpr (kStep + 1 < Traits::kSteps) {
      add_steps<kStep + 1>(of_tile, stage, weights, row_tile);
    }
  }

  __device__ void store() const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first_row_ + r * 16 + result_row(lane_, i);
          const std::int64_t column =
              first_output_ + j * Traits::kTileRows + result_column(lane_, i);
          if (row >= args_.rows || column >= args_.weight_rows) continue;
          float value = sums_[r][j][i];
          if (args_.factors != nullptr) {
            value = __fmul_rn(__fmul_rn(value, args_.x_factor), args_.factors[column]);
          }
          if (args_.bias != nullptr) value = __fadd_rn(value, args_.bias[column]);
          float* const to = args_.out + row * args_.out_stride + column;
          *to = args_.add ? __fadd_rn(value, __ldcg(to)) : value;
        }
      }
    }
  }

  const Arguments& args_;
  Stage* stages_;
  Layout layout_;
  int tiles_;
  int lane_;
  int first_row_;
  std::int64_t first_output_;
  Weights next_;
  float sums_[kRowTiles][kColumnTiles][4] = {};
};

template <BlockFormat kFormat, int kRowTiles, int kColumnTiles>
__global__ void __launch_bounds__(kWarps * 32)
    block_scaled_kernel(const __grid_constant__ Arguments args) {
  using OfBlock = Block<kFormat, kRowTiles, kColumnTiles>;
  __shared__ typename OfBlock::Stage stages[kStages];
  OfBlock(args, stages).run();
}

}  // namespace dendrite::cuda::block_scaled
