#include "backend/cuda/base/staging.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

constexpr std::int64_t kFirstBytes = std::int64_t{4} << 20;
constexpr std::int64_t kAlignment = 256;

}  // namespace

void Staging::begin_pass() {
  device_.synchronize("begin_pass");  // usually long done: results were downloaded
  old_.clear();
  old_hosts_.clear();
  staged_.clear();
  used_ = 0;
  in_pass_ = true;
}

void Staging::end_pass() {
  in_pass_ = false;
  staged_.clear();
}

const std::byte* Staging::stage_bytes(const void* host, std::int64_t size_bytes) {
  for (const Bound& staged : staged_) {
    if (staged.host == host && staged.size_bytes == size_bytes) return staged.device;
  }
  if (bound_) {
    throw Error("an op stages an array of " + std::to_string(size_bytes) +
                " bytes that nobody declared for its pass");
  }
  const std::int64_t taken = (size_bytes + kAlignment) / kAlignment * kAlignment;
  if (used_ + taken > host_.size_bytes()) reserve(taken);
  const std::byte* target = (host_tables_ ? host_.data() : memory_.data()) + used_;
  if (size_bytes > 0) {
    std::memcpy(host_.data() + used_, host, static_cast<std::size_t>(size_bytes));
    if (!host_tables_) {
      check(cudaMemcpyAsync(memory_.data() + used_, host_.data() + used_,
                            static_cast<std::size_t>(size_bytes), cudaMemcpyHostToDevice,
                            device_.stream()),
            "upload");
    }
  }
  used_ += taken;
  if (in_pass_) staged_.push_back({host, size_bytes, target});
  return target;
}

void Staging::reserve(std::int64_t size_bytes) {
  device_.synchronize("upload");
  if (in_pass_) {
    old_.push_back(std::move(memory_));
    old_hosts_.push_back(std::move(host_));
  } else if (size_bytes <= host_.size_bytes()) {
    used_ = 0;  // nothing staged before is in use any more
    return;
  }
  const std::int64_t outgrown = old_hosts_.empty() ? 0 : old_hosts_.back().size_bytes();
  const std::int64_t wanted = std::max({kFirstBytes, 2 * size_bytes, 2 * outgrown});
  if (!host_tables_) memory_ = Memory(wanted, "upload");
  host_ = HostMemory(wanted, "upload");
  used_ = 0;
}

}  // namespace dendrite::cuda
