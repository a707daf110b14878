#include "kv/composed_index.h"

#include <utility>

namespace dendrite {

std::uint64_t ComposedIndex::insert(std::uint64_t path, const Tip& tip) {
  if (const auto known = by_path_.find(path); known != by_path_.end()) {
    Entry& entry = *known->second;
    if (tree_.segment(entry.tip) == tree_.segment(tip)) {
      recent_.splice(recent_.begin(), recent_, known->second);
      return entry.number;
    }
    forget(known->second);  // computed twice, or another path by chance
  }
  recent_.push_front({path, ++numbers_, tree_.fork(tip)});
  by_path_[path] = recent_.begin();
  if (recent_.size() > kMost) forget(std::prev(recent_.end()));
  return recent_.front().number;
}

const Tip* ComposedIndex::find(std::uint64_t path, std::uint64_t number) const {
  const auto known = by_path_.find(path);
  if (known == by_path_.end() || known->second->number != number) return nullptr;
  return &known->second->tip;
}

bool ComposedIndex::evict_one() {
  for (auto entry = recent_.end(); entry != recent_.begin();) {
    --entry;
    if (tree_.segment(entry->tip)->refs > 1) continue;
    forget(entry);
    ++evictions_;
    return true;
  }
  return false;
}

void ComposedIndex::forget(Recency::iterator entry) {
  tree_.drop(entry->tip);
  by_path_.erase(entry->path);
  recent_.erase(entry);
}

void ComposedIndex::clear() {
  while (!recent_.empty()) forget(recent_.begin());
}

void ComposedIndex::collect_tips(std::vector<const Tip*>& out) const {
  for (const Entry& entry : recent_) out.push_back(&entry.tip);
}

}  // namespace dendrite
