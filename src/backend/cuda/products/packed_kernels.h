#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/products/packed_layouts.h"

// What there is for each layout of packed weights. A file of one statement, packed_*.cu, makes it.
namespace dendrite::cuda::packed {

struct Arguments;

/// As launch_embed(), of a packed table.
struct Embed {
  const std::uint8_t* weight = nullptr;
  std::int64_t cols = 0;
  std::uint32_t less = 0;  // 128 - the least nibble as a bf16, twice
  const std::int32_t* tokens = nullptr;
  const std::int32_t* drawn = nullptr;
  float* out = nullptr;
  std::int64_t rows = 0;
  std::int64_t stride = 0;
};

struct Kernels {
  PackedLayout layout{};
  /// Of up to 8, 16 and 32 rows.
  void (*few[3])(CUtensorMap, Arguments) = {};
  /// Of up to 8 rows, two tiles of k at a time.
  void (*two_tiles)(CUtensorMap, Arguments) = nullptr;
  /// Of more, on compute capability 9.0: bands of 64, 128.
  void (*wide[2])(CUtensorMap, Arguments) = {};
  void (*embed)(const Embed&, cudaStream_t) = nullptr;
};

template <class Q>
const Kernels& kernels_of();

/// Those of a layout; null: there are none.
const Kernels* find_kernels(const PackedLayout& layout);

}  // namespace dendrite::cuda::packed
