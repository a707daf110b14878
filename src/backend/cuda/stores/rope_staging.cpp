#include "backend/cuda/stores/rope_staging.h"

#include "backend/checks.h"

namespace dendrite::cuda {

template <typename Stage>
RopeArguments RopeStaging::stage(Stage& to, std::span<const std::int64_t> slots,
                                 std::span<const ExtraStore> extra_stores) {
  extra_count_ = static_cast<std::int32_t>(extra_stores.size());
  RopeArguments rope;
  rope.slots = to.stage(slots);
  rope.extra_stores = to.stage(extra_stores);
  rope.extra_count = to.stage(std::span<const std::int32_t>(&extra_count_, 1));
  return rope;
}

RopeArguments RopeStaging::arguments(const RopeStore& args) {
  check_rope(args);
  RopeArguments rope = stage(staging_, args.slots, args.extra_stores);
  static_cast<Rope&>(rope) = args;
  rope.qkv = args.qkv;
  rope.kv = static_cast<const CudaKvStore&>(*args.kv).view(args.layer);
  return rope;
}

void RopeStaging::declare(const PassInputs& inputs, PassArrays& arrays) {
  stage(arrays, inputs.slots, inputs.extra_stores);
}

}  // namespace dendrite::cuda
