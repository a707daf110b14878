#pragma once

#include <optional>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/block_scaled_products.h"
#include "backend/cuda/products/e4m3_products.h"
#include "backend/cuda/products/few_rows.h"
#include "backend/cuda/products/few_rows_check.h"
#include "backend/cuda/products/few_rows_wgmma.h"
#include "backend/cuda/products/gemm.h"
#include "backend/cuda/products/packed_products.h"
#include "backend/cuda/products/skinny.h"
#include "backend/cuda/stores/rope.h"
#include "backend/ops.h"

namespace dendrite::cuda {

/// Products in bf16, with packed weights too, and what is joined to them, in as few kernels as
/// there are. No memory of its own: what lies between kernels goes to the callers' scratch, so that
/// addresses stay the same.
class Products {
 public:
  /// deterministic: every row is summed over k in one order, whatever its company; else a few rows
  /// take a kernel with an order of its own, and split-K is allowed.
  Products(const Device& device, bool deterministic);

  /// See PackedProducts.
  void expect_packed(const CudaWeight& weight) { packed_.expect(weight); }

  /// Whether its norm runs in the kernel that rounds: 16-byte rows, not too wide.
  static bool takes_norm(const Product& product);

  /// Arrays of a product on the device.
  struct Staged {
    const std::int32_t* gather = nullptr;
    const RopeArguments* rope = nullptr;  // kRope
    E4m3Rows codes;                       // of weights in E4M3: memory for what goes in
    BlockScaledRows blocks;               // the same of block-scaled ones
  };
  /// Requires: bf16 rows as input, those of weight->input(), and so is `act`; takes_norm where
  /// there is a norm. The one place where a kernel is chosen.
  void run(const Product& product, const Staged& staged);

 private:
  /// Norms them, if there is a norm, and rounds those of weights in E4M3 and of block-scaled ones
  /// to that.
  void round_inputs(const Product& product, const Staged& staged);
  bool takes_skinny(const Product& product) const;
  /// Whether the kernel of few rows may have the product, but for the number of its rows.
  bool passes_check(const Product& product);

  const Device& device_;
  Gemm gemm_;
  WgmmaProducts wgmma_;
  FewRowsCheck wgmma_check_;
  PackedProducts packed_;
  E4m3Products e4m3_;
  std::optional<SkinnyProducts> skinny_;  // where sums may have an order of their own
};

}  // namespace dendrite::cuda
