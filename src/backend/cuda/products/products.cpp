#include "backend/cuda/products/products.h"
#include "backend/cuda/products/block_scaled_rows.h"
#include "backend/cuda/products/rounded.h"

#include <algorithm>
#include <utility>

namespace dendrite::cuda {
namespace {

const CudaWeight& own(const Weight* weight) {
  return static_cast<const CudaWeight&>(*weight);
}

bool aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}
bool aligned(const Tensor& tensor) {
  return aligned(tensor.data) && tensor.stride % 4 == 0;
}

/// Whether a kernel of few rows may store silu(gate) * up itself: launch_silu_rows() also writes
/// zeros behind the ends of rows.
bool joins_silu(const Product& product) {
  return 2 * product.act.ld == product.weight->rows();
}

}  // namespace

Products::Products(const Device& device, bool deterministic)
    : device_(device),
      gemm_(device, deterministic),
      wgmma_(device),
      wgmma_check_(device, wgmma_),
      packed_(device),
      e4m3_(device) {
  if (!deterministic) skinny_.emplace(device);
}

bool Products::takes_norm(const Product& product) {
  return aligned(product.x) && takes_norm_rows(product.x) && aligned(product.norm);
}

bool Products::takes_skinny(const Product& product) const {
  return skinny_ && product.out.rows <= SkinnyProducts::kMostRows &&
         skinny_->takes(own(product.weight));
}

bool Products::passes_check(const Product& product) {
  const CudaWeight& weight = own(product.weight);
  if (product.epilogue == Epilogue::kSiluMul) {
    if (!joins_silu(product)) return false;
  } else if (!aligned(product.out)) {
    return false;  // cuBLASLt then adds a bias in another order
  }
  return wgmma_check_.passes(weight, product.bias != nullptr, product.epilogue == Epilogue::kAdd);
}

void Products::round_inputs(const Product& product, const Staged& staged) {
  const CudaWeight& weight = own(product.weight);
  Tensor x = product.x;
  x.rows = product.out.rows;
  if (const BlockScales* const scales = weight.block_scales()) {
    if (product.norm != nullptr) {
      launch_block_scaled_norm_rows(staged.blocks, scales->input_factor, x, staged.gather,
                                    product.norm, product.norm_eps, device_.stream());
    } else {
      launch_block_scaled_rows(staged.blocks, scales->input_factor, product.in.data, weight.ld(),
                               device_.stream());
    }
  } else if (weight.scales() == nullptr) {
    if (product.norm == nullptr) return;
    launch_norm_rows(product.in.data, weight.ld(), x, staged.gather, product.norm, product.norm_eps,
                     device_.stream());
  } else if (product.norm != nullptr) {
    launch_e4m3_norm_rows(staged.codes, x, staged.gather, product.norm, product.norm_eps,
                          device_.stream());
  } else {
    launch_e4m3_rows(staged.codes, product.in.data, weight.ld(), device_.stream());
  }
}

void Products::run(const Product& product, const Staged& staged) {
  const CudaWeight& weight = own(product.weight);
  const std::int64_t rows = product.out.rows;
  const bool silu = product.epilogue == Epilogue::kSiluMul;
  round_inputs(product, staged);
  const RopeArguments* rope = staged.rope;
  FewRowsProduct few;
  few.weight = &weight;
  few.bias = product.bias;
  few.rows = rows;
  few.x = product.in.data;
  few.x_stride = weight.ld();
  few.epilogue = rope != nullptr ? Epilogue::kStore : product.epilogue;
  few.out = silu ? product.act.data : product.out.data;
  few.out_stride = silu ? product.act.ld : product.out.stride;
  const auto join_rope = [&] {
    few.epilogue = Epilogue::kRope;
    few.rope = std::exchange(rope, nullptr);
  };
  bool silu_apart = false;
  const auto part_silu = [&] {
    silu_apart = true;
    few.epilogue = Epilogue::kStore;
    few.out = product.out.data;
    few.out_stride = product.out.stride;
  };
  if (weight.block_scales() != nullptr) {
    if (silu) part_silu();
    launch_block_scaled(few, staged.blocks, device_.stream());
  } else if (weight.scales() != nullptr) {
    if (silu && !joins_silu(product)) part_silu();
    if (rope != nullptr && E4m3Products::rotates(weight, *rope, rows)) join_rope();
    e4m3_.launch(few, staged.codes);
  } else if (weight.packed() != nullptr) {
    if (silu && !joins_silu(product)) part_silu();
    if (rope != nullptr && PackedProducts::rotates(*rope, rows)) join_rope();
    packed_.launch(few);
  } else if (takes_skinny(product)) {
    if (rope != nullptr && SkinnyProducts::rotates(*rope)) join_rope();
    skinny_->launch(few);
  } else if (rows <= WgmmaProducts::kMostRows && passes_check(product)) {
    if (rope != nullptr && WgmmaProducts::rotates(*rope)) join_rope();
    wgmma_.launch(few);
  } else {
    gemm_.run(product.out, product.in.data, weight, product.bias,
              product.epilogue == Epilogue::kAdd);
    silu_apart = silu;
  }
  if (silu_apart) {
    launch_silu_rows(product.act.data, product.act.ld, product.out, device_.stream());
  }
  check_launch("product", {{"rows", rows}, {"n", weight.rows()}, {"k", weight.cols()}});
  if (rope == nullptr) return;
  launch_rope_and_store(*rope, device_.stream());
  check_rope_launch(*rope);
}

}  // namespace dendrite::cuda
