#include "backend/backend.h"

// A pass op by op, and the parts of a decoder layer as compositions of single ops.

namespace dendrite {

void Backend::run_pass(const PassInputs& inputs, const PassOps& ops) {
  upload(inputs.cos_sin_device, inputs.cos_sin);
  ops(inputs);
}

void Backend::attention_block(const AttentionBlock& block) {
  rms_norm(block.normed, block.hidden, block.norm, block.norm_eps);
  matmul(block.rope.qkv, block.normed, *block.qkv, block.qkv_bias, Store::kOverwrite);
  rope_and_store(block.rope);
  attention(block.attention);
  matmul(block.hidden, block.attention.out, *block.out, block.out_bias, Store::kAdd);
}

void Backend::mlp_block(const MlpBlock& block) {
  rms_norm(block.normed, block.hidden, block.norm, block.norm_eps);
  matmul(block.gate_up_out, block.normed, *block.gate_up, block.gate_up_bias, Store::kOverwrite);
  silu_mul(block.act, block.gate_up_out);
  matmul(block.hidden, block.act, *block.down, block.down_bias, Store::kAdd);
}

void Backend::norm_matmul(const NormMatmul& args) {
  gather_rows(args.gathered, args.x, args.rows);
  rms_norm(args.gathered, args.gathered, args.norm, args.norm_eps);
  matmul(args.out, args.gathered, *args.weight, nullptr, Store::kOverwrite);
}

}  // namespace dendrite
