#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "dendrite/error.h"

namespace dendrite::group {

/// Where the other ranks have what rank 0 has at an address: a buffer is as long on each of them.
/// Any thread may ask, and free buffers.
class Places {
 public:
  /// bases: of a buffer, a rank's each
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
  float* on(std::size_t rank, float* address) const {
    if (rank == 0 || address == nullptr) return address;
    const std::scoped_lock lock(mutex_);
    auto found = buffers_.upper_bound(address);
    if (found == buffers_.begin() || address - (--found)->first >= found->second.count) {
      throw Error("an address is in no buffer of the group");
    }
    return found->second.bases[rank] + (address - found->first);
  }
  const float* on(std::size_t rank, const float* address) const {
    return on(rank, const_cast<float*>(address));
  }

 private:
  struct Buffer {
    std::int64_t count = 0;
    std::vector<float*> bases;
  };
  mutable std::mutex mutex_;
  std::map<const float*, Buffer, std::less<>> buffers_;  // by where they begin on rank 0
};

}  // namespace dendrite::group
