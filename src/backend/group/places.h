#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "dendrite/error.h"

namespace dendrite::group {

/// Where the other devices have what the first has at an address: a buffer is as long on each.
/// Any thread may ask, and free buffers.
class Places {
 public:
  /// bases: of a buffer, a device's each
  void add(std::vector<float*> bases, std::int64_t count) {
    if (count == 0) return;
    const std::scoped_lock lock(mutex_);
    const float* const first = bases.front();
    buffers_[first] = {count, std::move(bases)};
  }
  void remove(const float* first) {
    const std::scoped_lock lock(mutex_);
    buffers_.erase(first);
  }

  /// null stays null.
  float* on(std::size_t device, float* address) const {
    if (device == 0 || address == nullptr) return address;
    const std::scoped_lock lock(mutex_);
    auto found = buffers_.upper_bound(address);
    if (found == buffers_.begin() || address - (--found)->first >= found->second.count) {
      throw Error("an address is in no buffer of the group");
    }
    return found->second.bases[device] + (address - found->first);
  }
  const float* on(std::size_t device, const float* address) const {
    return on(device, const_cast<float*>(address));
  }

 private:
  struct Buffer {
    std::int64_t count = 0;
    std::vector<float*> bases;
  };
  mutable std::mutex mutex_;
  std::map<const float*, Buffer, std::less<>> buffers_;  // by where they begin on the first
};

}  // namespace dendrite::group
