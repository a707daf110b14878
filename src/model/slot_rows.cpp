#include "model/slot_rows.h"

#include <cassert>

namespace dendrite {

std::int64_t SlotRows::take(std::int64_t count) {
  assert(count <= rows_);
  const std::int64_t left = rows_ - taken_ % rows_;
  if (count > left) taken_ += left;
  const std::int64_t first = taken_ % rows_;
  taken_ += count;
  return first;
}

void SlotRows::set(std::int64_t slot, std::int64_t row) {
  const auto at = static_cast<std::size_t>(slot);
  if (at >= number_.size()) number_.resize(at + 1, kNone);
  const std::int64_t last = (taken_ - 1) % rows_;
  number_[at] = taken_ - 1 - (last - row);
}

std::int64_t SlotRows::find(std::int64_t slot) const {
  if (slot < 0 || slot >= std::ssize(number_)) return kNone;
  const std::int64_t number = number_[static_cast<std::size_t>(slot)];
  return number < 0 || number < taken_ - rows_ ? kNone : number % rows_;
}

void SlotRows::copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) {
  const std::int64_t source = from * page_tokens_;
  const std::int64_t target = to * page_tokens_;
  const auto end = static_cast<std::size_t>(target + tokens);
  if (end > number_.size()) number_.resize(end, kNone);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t slot = source + i;
    number_[static_cast<std::size_t>(target + i)] =
        slot < std::ssize(number_) ? number_[static_cast<std::size_t>(slot)] : kNone;
  }
}

}  // namespace dendrite
