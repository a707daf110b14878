#include "backend/cuda/stores/rope_staging.h"

#include <numeric>

#include "backend/checks.h"

namespace dendrite::cuda {

template <typename Stage>
RopeArguments RopeStaging::stage(Stage& to, std::span<const std::int64_t> slots,
                                 std::span<const ExtraStore> extra_stores) {
  extra_begins_.assign(slots.size() + 1, 0);
  for (const ExtraStore& extra : extra_stores) {
    ++extra_begins_[static_cast<std::size_t>(extra.row) + 1];
  }
  std::partial_sum(extra_begins_.begin(), extra_begins_.end(), extra_begins_.begin());
  RopeArguments rope;
  rope.slots = to.stage(slots);
  rope.extra_stores = to.stage(extra_stores);
  rope.extra_begins = to.stage(std::span<const std::int32_t>(extra_begins_));
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
