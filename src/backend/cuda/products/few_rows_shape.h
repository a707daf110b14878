#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/products/few_rows.h"
#include "backend/cuda/products/few_rows_arguments.cuh"
#include "backend/cuda/products/tensor_map.h"

// How the work of a product, and the shared memory of its blocks, is cut.
namespace dendrite::cuda::few_rows {

constexpr int kSharedBytes = 227 << 10;  // of a multiprocessor

/// Lets kernels have all of it.
template <class Kernel, std::size_t kCount>
void allow_memory(const Kernel (&kernels)[kCount]) {
  for (const Kernel kernel : kernels) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
          "matmul");
  }
}

/// Some kernels that differ in the outputs of a unit alone.
struct Kernels {
  std::span<const int> outputs;  // ascending
  // Up to so many rows two blocks share a multiprocessor, as measured on an H200,
  int sharing_rows = 0;
  int most_sharing = 0;                 // and a unit has so many outputs.
  std::int64_t band_rows = kGroupRows;  // that they multiply at once
  int units = 1;                        // that a block works on at once
  std::int64_t value_bytes = 2;         // of weights and x
  int scale_bytes = 0;                  // of each row of a tile of x
  int (*batch)(int outputs) = nullptr;  // tiles that they begin at once; null: one
  // Rows of a tile of x; null, or 0: those of the product up to whole eights.
  int (*tile_rows)(int outputs) = nullptr;
  // Bytes behind the rings; null, or 0: those of sums of sixteen rows, if there are no more.
  int (*reserved)(int outputs) = nullptr;
};

/// How work is cut for the best of the kernels.
struct Shape {
  Arguments args{};
  std::size_t variant = 0;  // of the kernels
  int outputs = 0;
  int blocks = 0;
  int shared_bytes = 0;

  Shape(const FewRowsProduct& product, const Kernels& kernels, int multiprocessors);

  /// Weights [rows, cols], rows of `ld` values.
  CUtensorMap describe_weight(const CudaWeight& weight, const Kernels& kernels) const;
  CUtensorMap describe_x(const FewRowsProduct& product, const Kernels& kernels) const;

 private:
  void choose_variant(int rows, const Kernels& kernels, bool sharing, int most_blocks);
  int cut_units(int of_outputs, int rows);
  void cut(int room, int stage_bytes, const Kernels& kernels, int batch);
};

}  // namespace dendrite::cuda::few_rows
