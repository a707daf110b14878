#pragma once

#include <cstdint>
#include <utility>
#include <vector>

// Which copies of pages may be done at once: no device code.
namespace dendrite::cuda {

/// A page's first tokens, to another page.
struct SlotCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t tokens = 0;

  bool operator==(const SlotCopy&) const = default;
};

/// Copies that wait. None of them reads or writes what another writes, so they may be done in any
/// order; what they do is what they would have done one after the other.
class CopyQueue {
 public:
  /// Returns what has to be done before this one, which waits then: all that waited, or nothing. A
  /// copy of a page that waits for a copy, of no more tokens, is one of that copy's source: forks
  /// of forks, as a chain of drafts has them, wait together.
  std::vector<SlotCopy> add(SlotCopy copy) {
    for (const SlotCopy& other : waiting_) {
      if (other.to == copy.from && other.tokens >= copy.tokens) {
        copy.from = other.from;
        break;  // what a copy reads none of the others writes
      }
    }
    std::vector<SlotCopy> before;
    for (const SlotCopy& other : waiting_) {
      if (other.to != copy.from && other.from != copy.to && other.to != copy.to) continue;
      before = take();
      break;
    }
    waiting_.push_back(copy);
    return before;
  }
  std::vector<SlotCopy> take() { return std::exchange(waiting_, {}); }

 private:
  std::vector<SlotCopy> waiting_;
};

}  // namespace dendrite::cuda
