#pragma once

#include <cstdint>
#include <vector>

namespace dendrite {

/// What of a weight each device of a group has (Backend::ranks); a device alone has all of it.
struct Split {
  enum class Of : std::uint8_t {
    kNothing,  // all have all of it
    kOutputs,  // rows of the weight: each device goes on with its part of what a product gives
    kLogits,   // rows, too, but what a product gives is brought together on the first device
    kInputs,   // columns: what a product gives is the sum over the devices, in their order
  };
  Of of = Of::kNothing;
  /// kOutputs, kLogits: so many rows of one kind behind each other (queries, keys, values), of each
  /// of which every device has as many.
  std::vector<std::int64_t> runs{};
};

}  // namespace dendrite
