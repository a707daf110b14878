#include "kv/strip.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace dendrite {

namespace {

constexpr std::int64_t kLeast = 16;
constexpr std::int64_t kKept = 1024;  // enough for a thought, not a prompt

}  // namespace

void Strip::open(std::int64_t from, std::int64_t to) {
  assert(refs == 0 && held_end == 0);
  begin = from;
  first_ = from;
  if (to - from > capacity_) move_to(from, std::max(to - from, kLeast), from);
}

void Strip::extend(std::int64_t from, std::int64_t to, std::int64_t end) {
  const std::int64_t low = std::min(from, begin);
  const std::int64_t high = std::max(to, end);
  if (first_ <= low && high <= first_ + capacity_) return;
  const std::int64_t capacity = std::max(2 * (high - low), kLeast);
  // The room that is left over is where it grows.
  move_to(from < begin ? std::max<std::int64_t>(0, high - capacity) : low, capacity, end);
}

void Strip::trim(std::int64_t end) {
  if (capacity_ > kKept && capacity_ > 4 * (end - begin)) move_to(begin, 2 * (end - begin), end);
}

void Strip::close() {
  refs = 0;
  last = nullptr;
  held_end = 0;
  if (capacity_ > kKept) {
    block_.reset();
    capacity_ = 0;
  }
}

/// The values of [begin, end) move to memory for [first, first + capacity).
void Strip::move_to(std::int64_t first, std::int64_t capacity, std::int64_t end) {
  const std::int64_t page_ids = (capacity >> page_shift) + 2;
  const std::int64_t bytes =
      capacity * static_cast<std::int64_t>(sizeof(std::uint64_t) + sizeof(Token)) +
      page_ids * static_cast<std::int64_t>(sizeof(PageId));
  Strip old;
  old.page_shift = page_shift;
  old.block_ = std::exchange(
      block_, std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes)));
  old.first_ = std::exchange(first_, first);
  old.capacity_ = std::exchange(capacity_, capacity);
  if (begin >= end) return;
  std::copy_n(&old.hash(begin), end - begin, &hash(begin));
  std::copy_n(&old.token(begin), end - begin, &token(begin));
  const std::int64_t page = begin >> page_shift;
  std::copy_n(&old.page(page), ((end - 1) >> page_shift) - page + 1, &this->page(page));
}

}  // namespace dendrite
