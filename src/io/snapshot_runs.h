#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "io/snapshot_format.h"

namespace dendrite {

/// Bytes a read or write: large enough that a disk gives all it has.
constexpr std::int64_t kRunBytes = std::int64_t{8} << 20;

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

inline Buffer make_buffer(std::int64_t size_bytes) {
  const std::int64_t rounded = (size_bytes + kSnapshotAlign - 1) / kSnapshotAlign * kSnapshotAlign;
  Buffer buffer(static_cast<std::byte*>(
      std::aligned_alloc(kSnapshotAlign, static_cast<std::size_t>(rounded))));
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}

/// The pages of a file cut into runs of kRunBytes, of which kSlots are in memory at a time: some on
/// their way to or from the disk, while one is filled or taken.
class SnapshotRuns {
 public:
  static constexpr std::int64_t kSlots = 3;

  struct Slot {
    Buffer buffer;
    std::future<void> done{};  // waits when it is destroyed, before the buffer is
  };

  SnapshotRuns(std::int64_t page_bytes, std::int64_t all_pages)
      : page_bytes_(page_bytes),
        all_pages_(all_pages),
        pages_(std::clamp<std::int64_t>(kRunBytes / page_bytes, 1,
                                        std::max<std::int64_t>(all_pages, 1))) {
    for (std::int64_t i = 0; i < std::min(kSlots, count()); ++i) {
      slots_.push_back({make_buffer(pages_ * page_bytes)});
    }
  }

  std::int64_t count() const { return (all_pages_ + pages_ - 1) / pages_; }
  std::int64_t pages() const { return pages_; }  // of a run
  std::int64_t pages_of(std::int64_t run) const {
    return std::min(pages_, all_pages_ - run * pages_);
  }
  Slot& slot(std::int64_t run) { return slots_[static_cast<std::size_t>(run % kSlots)]; }
  std::span<std::byte> bytes(std::int64_t run) {
    return {slot(run).buffer.get(), static_cast<std::size_t>(pages_of(run) * page_bytes_)};
  }
  std::span<std::byte> page(std::int64_t run, std::int64_t index) {
    return bytes(run).subspan(static_cast<std::size_t>(index * page_bytes_),
                              static_cast<std::size_t>(page_bytes_));
  }
  void wait() {
    for (Slot& slot : slots_) {
      if (slot.done.valid()) slot.done.get();
    }
  }

 private:
  std::int64_t page_bytes_;
  std::int64_t all_pages_;
  std::int64_t pages_;
  std::vector<Slot> slots_;
};

}  // namespace dendrite
