#include "engine/branches/call_tips.h"

namespace dendrite {

CallTips::~CallTips() {
  const TreeLock lock(engine_.tree_mutex);
  drop();
}

Tip& CallTips::fork(const Tip& from) {
  if (tips_.empty()) engine_.call_tips.push_back(&tips_);
  return tips_.emplace_back(engine_.tree->fork(from));
}

void CallTips::drop() {
  std::erase(engine_.call_tips, &tips_);
  for (Tip& tip : tips_) engine_.tree->drop(tip);
  tips_.clear();
  engine_.debug_check();
}

std::vector<Tip*> CallTips::all() {
  std::vector<Tip*> tips;
  for (Tip& tip : tips_) tips.push_back(&tip);
  return tips;
}

}  // namespace dendrite
