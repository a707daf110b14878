#include "backend/backend.h"

// A pass op by op, and the parts of a decoder layer as compositions of single ops.

namespace dendrite {

void Backend::run_pass(const PassInputs& inputs, const PassOps& ops) {
  ++pass_counts_.passes;
  upload(inputs.cos_sin_device, inputs.cos_sin);
  ops(inputs);
}

PassKind Backend::pass_kind(std::int64_t, const KvShape&) const {
  return {info().kernels, "", ""};
}

void Backend::attention_sublayer(const AttentionSublayer& sublayer) {
  rms_norm(sublayer.normed, sublayer.hidden, sublayer.norm, sublayer.norm_eps);
  matmul(sublayer.rope.qkv, sublayer.normed, *sublayer.qkv, sublayer.qkv_bias, Store::kOverwrite);
  rope_and_store(sublayer.rope);
  attention(sublayer.attention);
  matmul(sublayer.hidden, sublayer.attention.out, *sublayer.out, sublayer.out_bias, Store::kAdd);
}

void Backend::mlp_sublayer(const MlpSublayer& sublayer) {
  rms_norm(sublayer.normed, sublayer.hidden, sublayer.norm, sublayer.norm_eps);
  matmul(sublayer.gate_up_out, sublayer.normed, *sublayer.gate_up, sublayer.gate_up_bias,
         Store::kOverwrite);
  silu_mul(sublayer.act, sublayer.gate_up_out);
  matmul(sublayer.hidden, sublayer.act, *sublayer.down, sublayer.down_bias, Store::kAdd);
}

void Backend::norm_matmul(const NormMatmul& args) {
  gather_rows(args.gathered, args.x, args.rows);
  rms_norm(args.gathered, args.gathered, args.norm, args.norm_eps);
  matmul(args.out, args.gathered, *args.weight, nullptr, Store::kOverwrite);
}

}  // namespace dendrite
