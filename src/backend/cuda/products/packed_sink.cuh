#pragma once

#include "backend/cuda/products/few_rows_epilogue.cuh"
#include "backend/cuda/products/packed_stream.cuh"

namespace dendrite::cuda::packed {

/// What becomes of a warp's sums of a unit and a band of kRows rows: sums[4 j + i] is that of row
/// 8 j + 2t + i % 2, for i < 2 of the unit's upper tile and output g, else of its lower one. What
/// an epilogue reads is read for several eights of rows before anything is stored: reads behind
/// stores would wait for each other.
template <int kRows>
class Sink {
 public:
  __device__ Sink(const Arguments& args, int lane)
      : args_(args), lane_(lane), first_row_(static_cast<int>(blockIdx.y) * kRows) {}

  __device__ void put(int unit, float (&sums)[kRows / 2]) const {
#pragma unroll
    for (int eight = 0; eight < kRows / 8; eight += kAtOnce) {
      if (args_.epilogue == Epilogue::kSiluMul) {
        put_silus(unit, eight, sums + 4 * eight);
      } else {
        put_sums(unit, eight, sums + 4 * eight);
      }
    }
  }

  /// kRope: the tiles are halves of heads.
  __device__ void put_heads(int unit, float (&sums)[kRows / 2]) const {
    const few_rows::FirstPair first(args_, unit);
    const HeadPair pair{first.head, first.pair + lane_ / 4};
#pragma unroll
    for (int eight = 0; eight < kRows / 8; ++eight) {
      const int row = row_of(eight);
      float* const four = sums + 4 * eight;
      const few_rows::HeadSink sink(args_, row, row + 1);
      const float2 angles[] = {sink.load_angle(pair, 0), sink.load_angle(pair, 1)};
#pragma unroll
      for (int r = 0; r < 2; ++r) sink.put(pair, r, angles[r], four[r], four[2 + r]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sink.each_extra(
            unit, r, [&](std::int64_t slot) { sink.put_again(pair, slot, four[r], four[2 + r]); });
      }
    }
  }

 private:
  static constexpr int kAtOnce = kRows < 64 ? kRows / 8 : 8;

  __device__ int row_of(int eight) const {
    return first_row_ + eight * 8 + lane_ % 4 * 2;
  }

  __device__ void put_silus(int unit, int eight, const float* sums) const {
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i) {
      const float* const four = sums + i / 2 * 4 + i % 2;
      few_rows::store_silu(args_, row_of(eight + i / 2) + i % 2, unit * 8 + lane_ / 4, four[0],
                           four[2]);
    }
  }

  __device__ void put_sums(int unit, int eight, const float* sums) const {
    const auto column_of = [&](int i) { return unit * 16 + i % 4 / 2 * 8 + lane_ / 4; };
    const auto exists = [&](int i) {
      return row_of(eight + i / 4) + i % 2 < args_.rows && column_of(i) < args_.outputs;
    };
    const auto target = [&](int i) {
      return few_rows::target_of(args_, row_of(eight + i / 4) + i % 2, column_of(i));
    };
    float old[4 * kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < 4 * kAtOnce; ++i) {
      if (args_.epilogue == Epilogue::kAdd && exists(i)) old[i] = __ldcg(target(i));
    }
#pragma unroll
    for (int i = 0; i < 4 * kAtOnce; ++i) {
      if (!exists(i)) continue;
      float sum = sums[i];
      if (args_.bias != nullptr) sum += args_.bias[column_of(i)];
      *target(i) = args_.epilogue == Epilogue::kAdd ? sum + old[i] : sum;
    }
  }

  const Arguments& args_;
  int lane_;
  int first_row_;
};

}  // namespace dendrite::cuda::packed
