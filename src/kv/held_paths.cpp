#include "kv/held_paths.h"

#include <algorithm>
#include <bit>

namespace dendrite {

HeldPaths::Entry* HeldPaths::entry(std::uint64_t path) {
  if (entries_.empty()) return nullptr;
  const std::size_t mask = entries_.size() - 1;
  std::size_t i = path & mask;
  while (entries_[i].strip != nullptr && entries_[i].path != path) i = (i + 1) & mask;
  return &entries_[i];
}

void HeldPaths::add(std::uint64_t path, std::int64_t position, Strip* strip) {
  if (used_ * 8 >= entries_.size() * 5) rebuild();  // which may enter this one, too
  Entry* found = entry(path);
  if (found->strip == strip) return;
  if (found->strip == nullptr) {
    ++used_;
  } else if (found->strip->holds(position, path)) {
    twins_[path].push_back(found->strip);
    ++used_;
  }
  *found = {path, strip};
}

Strip* HeldPaths::find(std::uint64_t path, std::int64_t position) {
  Entry* found = entry(path);
  if (found == nullptr || found->strip == nullptr) return nullptr;
  if (found->strip->holds(position, path)) return found->strip;
  const auto twins = twins_.find(path);
  if (twins == twins_.end()) return nullptr;
  std::vector<Strip*>& others = twins->second;
  while (!others.empty() && !others.back()->holds(position, path)) others.pop_back();
  if (others.empty()) {
    twins_.erase(twins);
    return nullptr;
  }
  found->strip = others.back();
  others.pop_back();
  return found->strip;
}

/// Anew, from what is held: in the order of memory, and without a look at what has ended.
void HeldPaths::rebuild() {
  std::int64_t held = 0;
  strips_.for_each(
      [&](const Strip& strip) { held += std::max<std::int64_t>(0, strip.held_end - strip.begin); });
  constexpr std::size_t kLeast = 1024;
  const std::size_t size = std::bit_ceil(std::max(kLeast, static_cast<std::size_t>(held) * 3));
  entries_.assign(size, {});
  twins_.clear();
  used_ = 0;
  strips_.for_each([&](Strip& strip) {
    for (std::int64_t p = strip.begin; p < strip.held_end; ++p) add(strip.hash(p), p, &strip);
  });
}

}  // namespace dendrite
