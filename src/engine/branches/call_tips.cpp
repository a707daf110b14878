#include "engine/branches/call_tips.h"

namespace dendrite {

CallTips::~CallTips() {
  const TreeLock lock(engine_.tree_mutex);
  drop();
}

Tip& CallTips::fork(const Tip& from) {
  if (tips_.empty()) engine_.call_tips.push_back(&tips_);
  tips_.push_back(std::make_unique<Tip>(engine_.tree->fork(from)));
  return *tips_.back();
}

void CallTips::drop() {
  std::erase(engine_.call_tips, &tips_);
  for (const std::unique_ptr<Tip>& tip : tips_) engine_.tree->drop(*tip);
  tips_.clear();
  engine_.debug_check();
}

std::vector<Tip*> CallTips::all() const {
  std::vector<Tip*> tips;
  for (const std::unique_ptr<Tip>& tip : tips_) tips.push_back(tip.get());
  return tips;
}

}  // namespace dendrite
