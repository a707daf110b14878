#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace dendrite {

/// Objects from blocks that are never given back one by one: taking one is a pop, and an object
/// that comes back keeps its vectors' memory, so that fork + append seldom allocates. Addresses are
/// stable.
template <typename T>
class Slab {
 public:
  T* take() {
    if (free_.empty()) grow();
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  /// The caller has put the object back into its fresh state.
  void give_back(T* object) { free_.push_back(object); }

  std::size_t taken() const { return blocks_.size() * kBlock - free_.size(); }

  /// Calls f(T&) for every object, taken or not.
  template <typename F>
  void for_each(F f) const {
    for (const auto& block : blocks_) {
      for (std::size_t i = 0; i < kBlock; ++i) f(block[i]);
    }
  }

 private:
  static constexpr std::size_t kBlock = 64;

  void grow() {
    blocks_.push_back(std::make_unique<T[]>(kBlock));
    free_.reserve(blocks_.size() * kBlock);  // give_back() never allocates
    for (std::size_t i = kBlock; i > 0; --i) free_.push_back(&blocks_.back()[i - 1]);
  }

  std::vector<std::unique_ptr<T[]>> blocks_;
  std::vector<T*> free_;
};

}  // namespace dendrite
