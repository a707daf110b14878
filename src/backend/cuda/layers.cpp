#include "backend/cuda/layers.h"

#include <utility>

#include "backend/checks.h"

namespace dendrite::cuda {
namespace {

const CudaWeight& own(const Weight& weight) {
  return static_cast<const CudaWeight&>(weight);
}

bool aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}
bool aligned(const Tensor& tensor) {
  return aligned(tensor.data) && tensor.stride % 4 == 0;
}
/// Room for bf16 rows of `weight.ld()` in an f32 tensor of its columns.
bool holds_rounded(const Tensor& scratch, const Weight& weight) {
  return aligned(scratch.data) && own(weight).ld() <= 2 * scratch.cols;
}

}  // namespace

Layers::Layers(const Device& device, Staging& staging, bool deterministic, Rope rope,
               Attention attention)
    : device_(device),
      staging_(staging),
      gemm_(device, deterministic),
      wgmma_(device),
      wgmma_check_(device, wgmma_),
      rope_(std::move(rope)),
      attention_(std::move(attention)) {
  if (!deterministic) skinny_.emplace(device);
}

bool Layers::takes(const AttentionSublayer& sublayer) {
  return aligned(sublayer.hidden) && takes_norm_rows(sublayer.hidden) && aligned(sublayer.norm) &&
         holds_rounded(sublayer.normed, *sublayer.qkv) &&
         holds_rounded(sublayer.rope.qkv, *sublayer.out) &&
         holds_rounded(sublayer.attention.out, *sublayer.out);
}

bool Layers::takes(const MlpSublayer& sublayer) {
  return aligned(sublayer.hidden) && takes_norm_rows(sublayer.hidden) && aligned(sublayer.norm) &&
         holds_rounded(sublayer.normed, *sublayer.gate_up) &&
         holds_rounded(sublayer.act, *sublayer.down) && aligned(sublayer.gate_up_out) &&
         sublayer.act.cols % 4 == 0;
}

bool Layers::takes(const NormMatmul& args) {
  return aligned(args.x) && takes_norm_rows(args.x) && aligned(args.norm) &&
         holds_rounded(args.gathered, *args.weight);
}

void Layers::attention_sublayer(const AttentionSublayer& sublayer) {
  const std::int64_t tokens = sublayer.hidden.rows;
  check_matmul(sublayer.rope.qkv, sublayer.hidden, *sublayer.qkv);
  check_matmul(sublayer.hidden, sublayer.attention.out, *sublayer.out);
  if (tokens == 0) return;
  Product qkv;
  qkv.weight = &own(*sublayer.qkv);
  qkv.bias = sublayer.qkv_bias;
  qkv.rows = tokens;
  qkv.x = sublayer.normed.data;
  qkv.normed = sublayer.hidden;
  qkv.norm = sublayer.norm;
  qkv.norm_eps = sublayer.norm_eps;
  qkv.out = sublayer.rope.qkv;
  const RopeArguments rope = rope_(sublayer.rope);
  qkv.rope = &rope;
  run(qkv);

  Product out;
  out.weight = &own(*sublayer.out);
  out.bias = sublayer.out_bias;
  out.rows = tokens;
  out.x = attention_(sublayer.attention, own(*sublayer.out).ld());
  out.epilogue = Epilogue::kAdd;
  out.out = sublayer.hidden;
  run(out);
}

void Layers::mlp_sublayer(const MlpSublayer& sublayer) {
  check_matmul(sublayer.gate_up_out, sublayer.hidden, *sublayer.gate_up);
  check_matmul(sublayer.hidden, sublayer.act, *sublayer.down);
  check_shape("mlp_sublayer", "gate_up_out", sublayer.gate_up_out, sublayer.hidden.rows,
              2 * sublayer.act.cols);
  if (sublayer.hidden.rows == 0) return;
  Product gate_up;
  gate_up.weight = &own(*sublayer.gate_up);
  gate_up.bias = sublayer.gate_up_bias;
  gate_up.rows = sublayer.hidden.rows;
  gate_up.x = sublayer.normed.data;
  gate_up.normed = sublayer.hidden;
  gate_up.norm = sublayer.norm;
  gate_up.norm_eps = sublayer.norm_eps;
  gate_up.epilogue = Epilogue::kSiluMul;
  gate_up.out = sublayer.gate_up_out;
  gate_up.act = sublayer.act.data;
  gate_up.act_ld = own(*sublayer.down).ld();
  run(gate_up);

  Product down;
  down.weight = &own(*sublayer.down);
  down.bias = sublayer.down_bias;
  down.rows = sublayer.hidden.rows;
  down.x = sublayer.act.data;
  down.epilogue = Epilogue::kAdd;
  down.out = sublayer.hidden;
  run(down);
}

void Layers::norm_matmul(const NormMatmul& args) {
  check_gather(args.gathered, args.x, args.rows);
  check_matmul(args.out, args.gathered, *args.weight);
  if (args.rows.empty()) return;
  Product last;
  last.weight = &own(*args.weight);
  last.rows = args.out.rows;
  last.x = args.gathered.data;
  last.normed = args.x;
  last.norm = args.norm;
  last.norm_eps = args.norm_eps;
  last.gather = staging_.stage(args.rows);
  last.out = args.out;
  run(last);
}

void Layers::matmul(Tensor out, const void* x, const CudaWeight& weight, const float* bias,
                    bool add) {
  Product product;
  product.weight = &weight;
  product.bias = bias;
  product.rows = out.rows;
  product.x = const_cast<void*>(x);  // only read without a norm
  product.epilogue = add ? Epilogue::kAdd : Epilogue::kStore;
  product.out = out;
  run(product);
}

bool Layers::takes_skinny(const Product& product) const {
  return skinny_ && product.rows <= SkinnyProducts::kMostRows && skinny_->takes(*product.weight);
}

bool Layers::takes_wgmma(const Product& product) {
  const CudaWeight& weight = *product.weight;
  if (product.rows > WgmmaProducts::kMostRows) return false;
  if (product.epilogue == Epilogue::kSiluMul) {
    // cuBLASLt's way also writes zeros behind the ends of rows
    if (2 * product.act_ld != weight.rows()) return false;
  } else if (!aligned(product.out)) {
    return false;  // cuBLASLt then adds a bias in another order
  }
  return wgmma_check_.passes(weight, product.bias != nullptr, product.epilogue == Epilogue::kAdd);
}

/// The one place where a kernel is chosen for a product and what is joined to it.
void Layers::run(const Product& product) {
  const CudaWeight& weight = *product.weight;
  const bool silu = product.epilogue == Epilogue::kSiluMul;
  if (product.norm != nullptr) {
    Tensor x = product.normed;
    x.rows = product.rows;
    launch_norm_rows(product.x, weight.ld(), x, product.gather, product.norm, product.norm_eps,
                     device_.stream());
  }
  FewRowsProduct few;
  few.weight = product.weight;
  few.bias = product.bias;
  few.rows = product.rows;
  few.x = product.x;
  few.x_stride = weight.ld();
  few.epilogue = product.epilogue;
  few.out = silu ? product.act : product.out.data;
  few.out_stride = silu ? product.act_ld : product.out.stride;
  const RopeArguments* rope = product.rope;
  const auto join_rope = [&] {
    few.epilogue = Epilogue::kRope;
    few.rope = std::exchange(rope, nullptr);
  };
  if (takes_skinny(product)) {
    if (rope != nullptr && SkinnyProducts::rotates(*rope)) join_rope();
    skinny_->launch(few);
  } else if (takes_wgmma(product)) {
    if (rope != nullptr && WgmmaProducts::rotates(*rope)) join_rope();
    wgmma_.launch(few);
  } else {
    gemm_.run(product.out, product.x, weight, product.bias, product.epilogue == Epilogue::kAdd);
    if (silu) launch_silu_rows(product.act, product.act_ld, product.out, device_.stream());
  }
  check_launch("matmul", {{"rows", product.rows}, {"n", weight.rows()}, {"k", weight.cols()}});
  if (rope == nullptr) return;
  launch_rope_and_store(*rope, device_.stream());
  check_rope_launch(*rope);
}

}  // namespace dendrite::cuda
