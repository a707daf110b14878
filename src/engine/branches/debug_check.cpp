#include "engine/branches/session_core.h"

namespace dendrite {

/// Debug mode: the tree against all that refers to it.
void EngineCore::check_all() {
  std::vector<const Tip*> tips;
  for (const SessionCore* session : sessions) {
    for (const BranchState& branch : session->slab) {
      if (!branch.tip.empty()) tips.push_back(&branch.tip);
    }
  }
  for (const Tips* of_call : call_tips) {
    for (const Tip& tip : *of_call) tips.push_back(&tip);
  }
  memories().collect_tips(tips);
  kv_debug->check(*tree, tips);
}

}  // namespace dendrite
