#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dendrite::cuda {

/// The host arrays of a recorded pass, declared by whoever stages them: each pass the same ones in
/// the same order.
class PassArrays {
 public:
  struct Array {
    const void* host = nullptr;
    std::int64_t size_bytes = 0;
    std::byte* target = nullptr;  // null: a place of the recording
  };

  void clear() { arrays_.clear(); }
  std::span<const Array> all() const { return arrays_; }

  /// An op will call Staging::stage with this. Returns null: it has no place yet, and what stages
  /// may be run with these instead of Staging to declare the same.
  template <typename T>
  const T* stage(std::span<const T> values) {
    arrays_.push_back({values.data(), static_cast<std::int64_t>(values.size_bytes())});
    return nullptr;
  }
  /// To be on the device, at `target`, before ops run.
  template <typename T>
  void upload(T* target, std::span<const T> values) {
    arrays_.push_back({values.data(), static_cast<std::int64_t>(values.size_bytes()),
                       reinterpret_cast<std::byte*>(target)});
  }

 private:
  std::vector<Array> arrays_;
};

}  // namespace dendrite::cuda
