// The token tree for people: who ends where, and who holds what.
#include <string>
#include <utility>
#include <vector>

#include "engine/branches/session_core.h"

namespace dendrite {
namespace {

std::string name_of_branch(KvTree& tree, const SessionCore& session, const BranchState& branch)
    DENDRITE_REQUIRES(kTreeLock) {
  const Tip* tips[] = {&branch.tip};
  std::string text = "session " + std::to_string(session.number);
  text += branch.is_ahead ? " (computed ahead)"
                          : " branch " + std::to_string(static_cast<std::uint64_t>(branch.id));
  text += ": " + std::to_string(tree.length(branch.tip)) + " tokens, ";
  text += std::to_string(tree.usage(tips).unique_pages) + " pages, ";
  return text + std::to_string(tree.own_pages(branch.tip)) + " its own,";
}

}  // namespace

std::string Engine::tree_text() const {
  const EngineCore& core = *core_;
  const TreeLock lock(core_->tree_mutex);
  if (core.tree == nullptr) return {};
  std::vector<std::pair<const Tip*, std::string>> ends;
  for (const SessionCore* session : core.sessions) {
    for (const BranchState& branch : session->slab) {
      if (branch.tip.empty()) continue;
      ends.emplace_back(&branch.tip, name_of_branch(*core.tree, *session, branch));
    }
  }
  return core.tree->dump(ends);
}

}  // namespace dendrite
