#pragma once

#include <cublasLt.h>

#include <map>
#include <tuple>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/weight.h"
#include "backend/tensor.h"

namespace dendrite::cuda {

/// bf16 products with f32 sums by cuBLASLt. Deterministic: split-K and stream-K reductions are
/// forbidden, so that every output is summed over ascending k in one accumulator and its bits do
/// not depend on the number of rows (tested). Else split-K is allowed for few rows.
class Gemm {
 public:
  Gemm(const Device& device, bool deterministic);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// out = or += x W^T + bias.  x bf16 [rows, weight.ld()], dense; out f32. Requires a plain
  /// weight in bf16.
  void run(Tensor out, const void* x, const CudaWeight& weight, const float* bias, bool add);

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool>;
  struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t weight = nullptr;
    cublasLtMatrixLayout_t x = nullptr;
    cublasLtMatrixLayout_t out = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  static std::int64_t asked_rows(const Tensor& out, const CudaWeight& weight);
  Plan& plan_of(const Tensor& out, const CudaWeight& weight, bool bias, bool add);

  const Device& device_;
  bool deterministic_;
  Memory workspace_;
  std::map<Key, Plan> plans_;
};

}  // namespace dendrite::cuda
