// What all heads of a layer take part in, as single ops.
#include "backend/backend.h"
#include "backend/checks.h"

namespace dendrite {

void Backend::head_products(const HeadProducts& args) {
  check_head_products(args);
  std::int64_t head = 0;
  for (const auto& weight : args.weights) {
    matmul(args.out.columns(head * args.out_step, weight->rows()),
           args.x.columns(head * args.x_step, weight->cols()), *weight, nullptr, Store::kOverwrite);
    ++head;
  }
}

void Backend::copy_heads(const HeadCopies& args) {
  check_copy_heads(args);
  for (std::int64_t head = 0; head < args.heads; ++head) {
    copy(args.out.columns(head * args.out_step, args.cols),
         args.x.columns(head * args.x_step, args.cols));
  }
}

}  // namespace dendrite
