#pragma once

#include <functional>
#include <optional>

#include "backend/cuda/device.h"
#include "backend/cuda/few_rows.h"
#include "backend/cuda/few_rows_check.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/staging.h"
#include "backend/op_arguments.h"
#include "backend/tensor.h"

namespace dendrite::cuda {

/// The parts of a layer in bf16, in as few kernels as there are. No memory of its own: what lies
/// between kernels goes to the callers' scratch tensors, so that addresses stay the same.
class Layers {
 public:
  /// deterministic: every row is summed over k in one order, whatever its company; else a few rows
  /// take a kernel with an order of its own, and split-K is allowed.
  /// rope: an op's arguments, checked, on the device.
  /// attention: an op's result as bf16 rows of so many values, and where they are.
  using Rope = std::function<RopeArguments(const RopeStore&)>;
  using Attention = std::function<void*(const AttentionArgs&, std::int64_t ld)>;
  Layers(const Device& device, Staging& staging, bool deterministic, Rope rope,
         Attention attention);

  /// Whether the shapes fit the kernels: 16-byte rows, room for bf16 rows in the scratch.
  static bool takes(const AttentionSublayer& sublayer);
  static bool takes(const MlpSublayer& sublayer);
  static bool takes(const NormMatmul& args);

  // See Backend.
  void attention_sublayer(const AttentionSublayer& sublayer);
  void mlp_sublayer(const MlpSublayer& sublayer);
  void norm_matmul(const NormMatmul& args);
  /// x: bf16 rows of weight.ld() values.
  void matmul(Tensor out, const void* x, const CudaWeight& weight, const float* bias, bool add);

 private:
  /// A product and what is before and behind it.
  struct Product {
    const CudaWeight* weight = nullptr;
    const float* bias = nullptr;
    std::int64_t rows = 0;
    void* x = nullptr;                     // bf16 rows of weight->ld(); with norm: scratch for them
    Tensor normed;                         // with norm: f32 rows that are normed first
    const float* norm = nullptr;           // or null
    const std::int32_t* gather = nullptr;  // with norm: device, which rows; null: all
    float norm_eps = 0;
    Epilogue epilogue = Epilogue::kStore;
    Tensor out;           // kSiluMul: scratch [rows, rows of weight]
    void* act = nullptr;  // kSiluMul: the result, bf16
    std::int64_t act_ld = 0;
    const RopeArguments* rope = nullptr;  // of out, the heads of q, k and v; or null
  };
  void run(const Product& product);
  bool takes_skinny(const Product& product) const;
  bool takes_wgmma(const Product& product);

  const Device& device_;
  Staging& staging_;
  Gemm gemm_;
  WgmmaProducts wgmma_;
  FewRowsCheck wgmma_check_;
  std::optional<SkinnyProducts> skinny_;  // where sums may have an order of their own
  Rope rope_;
  Attention attention_;
};

}  // namespace dendrite::cuda
