#pragma once

#include <cstdint>
#include <utility>

namespace dendrite {

/// A value that is mostly the default one, in eight bytes: copies share it until one is changed.
/// All copies of a value belong to one lock (who shares it is counted without atomics); a copy that
/// nobody changes meanwhile may be read without it.
template <typename T>
class CopyOnWrite {
 public:
  CopyOnWrite() = default;
  CopyOnWrite(const CopyOnWrite& other) : held_(other.held_) {
    if (held_ != nullptr) ++held_->owners;
  }
  CopyOnWrite(CopyOnWrite&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  CopyOnWrite& operator=(CopyOnWrite other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~CopyOnWrite() { reset(); }

  const T& operator*() const { return held_ == nullptr ? nothing() : held_->value; }
  const T* operator->() const { return &**this; }
  /// This copy's own, to be changed; from then on it is not the default one.
  T& edit() {
    if (held_ == nullptr) {
      held_ = new Held;
    } else if (held_->owners > 1) {
      Held* own = new Held{held_->value};
      --held_->owners;
      held_ = own;
    }
    return held_->value;
  }
  /// The default one again.
  void reset() {
    if (held_ != nullptr && --held_->owners == 0) delete held_;
    held_ = nullptr;
  }
  bool is_default() const { return held_ == nullptr; }

 private:
  struct Held {
    T value{};
    std::uint64_t owners = 1;
  };
  static const T& nothing() {
    static const T value{};
    return value;
  }
  Held* held_ = nullptr;
};

}  // namespace dendrite
