#include "backend/backend.h"
#include "backend/checks.h"

// A pass op by op, and a product with what is joined to it as a composition of single ops.

namespace dendrite {

void Backend::run_pass(const PassInputs& inputs, const PassOps& ops) {
  ++pass_counts_.passes;
  for (const PassTable& table : inputs.tables) upload(table.device, table.values);
  ops(inputs);
}

PassKind Backend::pass_kind(const KvShape&) const {
  return {info().kernels, "", ""};
}

void Backend::norm_before(const Product& args, Tensor normed) {
  if (!args.gather.empty()) gather_rows(normed, args.x, args.gather);
  rms_norm(normed, args.gather.empty() ? args.x : normed, args.norm, args.norm_eps);
}

void Backend::product(const Product& args) {
  check_product(args);
  const Tensor in = args.in.tensor();
  if (args.norm != nullptr) norm_before(args, in);
  matmul(args.out, in, *args.weight, args.bias,
         args.epilogue == Epilogue::kAdd ? Store::kAdd : Store::kOverwrite);
  if (args.epilogue == Epilogue::kSiluMul) silu_mul(args.act.tensor(), args.out);
  if (args.epilogue == Epilogue::kRope) rope_and_store(*args.rope);
}

}  // namespace dendrite
