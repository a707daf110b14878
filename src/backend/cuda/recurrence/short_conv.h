#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/recurrence/run_places.h"

namespace dendrite::cuda {

/// What a launch of short_conv needs. Sizes, layouts and the order of sums are those of ShortConv
/// and Backend::short_conv, or of Mamba's convolution where it is not gated.
struct ShortConvArguments : RunPlaces {
  std::int32_t channels = 0, taps = 0;
  const float* in = nullptr;
  std::int64_t in_stride = 0;
  const float* conv = nullptr;
  const float* bias = nullptr;
  void* out = nullptr;
  std::int64_t out_ld = 0;
  bool out_bf16 = false;
  /// False: what comes in is what is convolved, and silu of the sum is what goes out. What goes out
  /// of channels [kept_begin, kept_end) goes to journals, too: `kept`, of slot 0.
  bool gated = true;
  float* kept = nullptr;
  std::int32_t kept_begin = 0, kept_end = 0;
  std::int32_t most_rows = 0;  // of a run
};

/// Of the runs of one level.
void launch_short_conv(const ShortConvArguments& args, std::int32_t level, cudaStream_t stream);

}  // namespace dendrite::cuda
