#include "engine/suffix_provider.h"

#include "engine/session_core.h"

namespace dendrite {
namespace {

/// Tokens that a session remembers; then it begins again.
constexpr std::int64_t kRemembered = 1 << 20;

}  // namespace

void SuffixProvider::propose(std::span<LaneDraft* const> drafts, double /*slack*/) {
  for (LaneDraft* draft : drafts) {
    draft->draft = drafter_.propose(place_of(*draft->lane->branch), draft->limits);
  }
}

void SuffixProvider::learn(const LaneDraft& draft, std::int32_t came) {
  drafter_.learn(draft.draft, draft.at, came >= 0);
}

/// Where the branch's text ends in what the session remembers, with all of it there.
History::Place SuffixProvider::place_of(BranchState& branch) {
  History& history = drafter_.history;
  if (history.size() > kRemembered) history.clear();
  HistoryEnd end;
  std::vector<Token> tokens;
  {
    const TreeLock lock(engine_.tree_mutex);
    if (branch.heard.epoch == history.epoch()) end = branch.heard;
    const std::int64_t length = engine_.tree->length(branch.tip);
    tokens.resize(static_cast<std::size_t>(length - end.length));
    engine_.tree->copy_tokens(branch.tip, end.length, length, tokens.data());
  }
  for (const Token token : tokens) end.place = history.add(end.place, token);
  end.length += std::ssize(tokens);
  end.epoch = history.epoch();
  const TreeLock lock(engine_.tree_mutex);
  branch.heard = end;
  return end.place;
}

DraftProvider& suffixes_of(SessionCore& session) {
  if (session.suffixes == nullptr) {
    session.suffixes = std::make_unique<SuffixProvider>(*session.engine);
  }
  return *session.suffixes;
}

}  // namespace dendrite
