#include "backend/cuda/products/gemm.h"

#include <algorithm>
#include <string>

#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

/// Split-K pays up to here (H200, all products of a step of the 8B shape: 4.48 against 4.80 ms for
/// 32 rows, 4.83 against 4.79 for 64, 5.31 against 5.08 for 128, 41.4 against 40.2 for 2048).
constexpr std::int64_t kMostSplitRows = 32;

}  // namespace

/// Without split-K the heuristic is asked for this many rows at least. It answers a long k and few
/// rows with a handful of tiles: 330 us for 8 x 4096 x 14336 on an H200, where its answer for 128
/// rows takes 53 us. A single row, and rows that do not begin on 16 bytes, may get kernels with an
/// order of sums of their own; one answer for all keeps the bits.
std::int64_t Gemm::asked_rows(const Tensor& out, const CudaWeight& weight) {
  if (out.stride % 4 != 0 || weight.ld() > weight.rows()) return 128;
  return weight.ld() == weight.rows() ? 64 : 16;
}

Gemm::Gemm(const Device& device, bool deterministic)
    : device_(device), deterministic_(deterministic), workspace_(kWorkspaceBytes, "matmul") {}

Gemm::~Gemm() {
  for (auto& [key, plan] : plans_) {
    cublasLtMatmulDescDestroy(plan.product);
    cublasLtMatrixLayoutDestroy(plan.weight);
    cublasLtMatrixLayoutDestroy(plan.x);
    cublasLtMatrixLayoutDestroy(plan.out);
  }
}

/// cuBLASLt counts columns first: out^T [n, rows] = W^T^T [n, k] * x^T [k, rows].
Gemm::Plan& Gemm::plan_of(const Tensor& out, const CudaWeight& weight, bool bias, bool add) {
  const Key key{weight.rows(), weight.ld(), out.rows, out.stride, bias, add};
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;

  constexpr const char* kOp = "matmul";
  Plan plan;
  check(cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), kOp);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                       sizeof transpose),
        kOp);
  if (bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    check(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                         sizeof epilogue),
          kOp);
    const cudaDataType_t type = CUDA_R_32F;
    check(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                         sizeof type),
          kOp);
  }
  const auto k = static_cast<std::uint64_t>(weight.ld());
  const auto n = static_cast<std::uint64_t>(weight.rows());
  const auto rows = static_cast<std::uint64_t>(out.rows);
  check(cublasLtMatrixLayoutCreate(&plan.weight, CUDA_R_16BF, k, n, weight.ld()), kOp);
  check(cublasLtMatrixLayoutCreate(&plan.x, CUDA_R_16BF, k, rows, weight.ld()), kOp);
  check(cublasLtMatrixLayoutCreate(&plan.out, CUDA_R_32F, n, rows,
                                   std::max(out.stride, weight.rows())),
        kOp);

  const bool split = !deterministic_ && out.rows <= kMostSplitRows;
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), kOp);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), kOp);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::size_t>(kWorkspaceBytes));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(split ? CUBLASLT_REDUCTION_SCHEME_MASK
                                          : CUBLASLT_REDUCTION_SCHEME_NONE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{16});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{16});
  const std::uint32_t alignment = out.stride % 4 == 0 ? 16 : 4;
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int results = 0;
  const auto ask = [&](cublasLtMatrixLayout_t x, cublasLtMatrixLayout_t y) {
    return cublasLtMatmulAlgoGetHeuristic(device_.blas(), plan.product, plan.weight, x, y, y,
                                          preference, 1, &result, &results);
  };
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (const std::int64_t asked = asked_rows(out, weight); !split && out.rows < asked) {
    cublasLtMatrixLayout_t x = nullptr;
    cublasLtMatrixLayout_t y = nullptr;
    const auto many = static_cast<std::uint64_t>(asked);
    check(cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, k, many, weight.ld()), kOp);
    check(cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, n, many, std::max(out.stride, weight.rows())),
          kOp);
    status = ask(x, y);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(y);
    cublasLtMatmulHeuristicResult_t checked{};
    if (status == CUBLAS_STATUS_SUCCESS && results > 0) {
      status = cublasLtMatmulAlgoCheck(device_.blas(), plan.product, plan.weight, plan.x, plan.out,
                                       plan.out, &result.algo, &checked);
    }
  }
  if (status != CUBLAS_STATUS_SUCCESS || results == 0) status = ask(plan.x, plan.out);
  cublasLtMatmulPreferenceDestroy(preference);
  const std::string shape =
      std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k) + " bf16";
  check(status, "matmul " + shape);
  if (results == 0) throw Error("matmul " + shape + ": cuBLASLt has no algorithm without split-K");
  plan.algorithm = result.algo;
  return plans_.emplace(key, plan).first->second;
}

void Gemm::run(Tensor out, const void* x, const CudaWeight& weight, const float* bias, bool add) {
  Plan& plan = plan_of(out, weight, bias != nullptr, add);
  if (bias != nullptr) {
    check(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                         sizeof bias),
          "matmul");
  }
  const float alpha = 1;
  const float beta = add ? 1 : 0;
  check(cublasLtMatmul(device_.blas(), plan.product, &alpha, weight.data(), plan.weight, x, plan.x,
                       &beta, out.data, plan.out, out.data, plan.out, &plan.algorithm,
                       workspace_.data(), static_cast<std::size_t>(kWorkspaceBytes),
                       device_.stream()),
        "matmul");
}

}  // namespace dendrite::cuda
