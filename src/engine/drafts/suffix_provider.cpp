#include "engine/drafts/suffix_provider.h"

#include <algorithm>
#include <chrono>

#include "engine/branches/session_core.h"
#include "engine/calls/lane.h"

namespace dendrite {
namespace {

/// Tokens that a session remembers; then it begins again.
constexpr std::int64_t kRemembered = 1 << 20;
/// Of all time: what looking may cost where nothing comes of it; and turns of rest, at most.
constexpr double kShare = 0.01;
constexpr double kLongest = 31;

}  // namespace

bool SuffixProvider::rests() {
  if (resting_ == 0) return false;
  --resting_;
  return true;
}

void SuffixProvider::propose(std::span<LaneDraft* const> drafts, double /*slack*/) {
  any_picked_ = false;
  const auto begin = std::chrono::steady_clock::now();
  for (LaneDraft* draft : drafts) {
    draft->draft = drafter_.propose(place_of(*draft->lane->branch), draft->limits);
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  propose_ms_ = took.count();
}

void SuffixProvider::conclude(const LaneDraft& draft) {
  any_picked_ = any_picked_ || std::ranges::count(draft.picked, true) > 0;
}

void SuffixProvider::end_turn(double ms) {
  if (any_picked_) return;
  resting_ = static_cast<std::int64_t>(std::min(kLongest, propose_ms_ / (kShare * ms)));
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
    if (branch.rare->heard.epoch == history.epoch()) end = branch.rare->heard;
    const std::int64_t length = engine_.tree->length(branch.tip);
    tokens.resize(static_cast<std::size_t>(length - end.length));
    engine_.tree->copy_tokens(branch.tip, end.length, length, tokens.data());
  }
  for (const Token token : tokens) end.place = history.add(end.place, token);
  end.length += std::ssize(tokens);
  end.epoch = history.epoch();
  const TreeLock lock(engine_.tree_mutex);
  branch.rare.edit().heard = end;
  return end.place;
}

DraftProvider& suffixes_of(SessionCore& session) {
  if (session.suffixes == nullptr) {
    session.suffixes = std::make_unique<SuffixProvider>(*session.engine);
  }
  return *session.suffixes;
}

}  // namespace dendrite
