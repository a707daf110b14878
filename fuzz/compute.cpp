// Operations that compute and do not decode. What they give is compared with what the replay of a
// branch gives alone.
#include <algorithm>

#include "engine/branches/internals.h"
#include "fuzz/draw_calls.h"
#include "fuzz/operations.h"
#include "fuzz/slow_matcher.h"
#include "fuzz/verify.h"

namespace dendrite::fuzz {
namespace {

// --- score

/// Whether the scores were computed. Those that were not must say so, and have a reason.
bool check_scored(World& world, const std::vector<Mirror*>& mirrors,
                  const std::vector<std::vector<Token>>& asked, const std::vector<Score>& got,
                  const Cut& cut) {
  if (scored(asked, got)) return true;
  if (cut.kind == Cut::Kind::kNone) {
    std::int64_t longest = 0;
    for (const std::vector<Token>& each : asked) longest = std::max(longest, std::ssize(each));
    world.refused(mirrors, longest, std::ssize(asked));
  }
  world.counts().cut_calls += cut.kind == Cut::Kind::kNone ? 0 : 1;
  return false;
}

/// Whether the branch's constraint, if it has one, takes one of the texts.
bool any_accepted(World& world, const History& before,
                  const std::vector<std::vector<Token>>& options) {
  const auto matcher = SlowMatcher::of(*core_of(world.reference().engine()), before);
  return std::ranges::any_of(options, [&](const std::vector<Token>& tokens) {
    return !matcher || matcher->count_accepted(tokens) == tokens.size();
  });
}

}  // namespace

std::vector<Mirror*> short_enough(std::vector<Mirror*> mirrors) {
  std::erase_if(mirrors,
                [](const Mirror* mirror) { return mirror->length() > World::kMostTokens - 100; });
  return mirrors;
}

void score(World& world, Draws& draws) {
  Mirror* first = world.any_branch(draws);
  if (first == nullptr) return;
  std::vector<Mirror*> mirrors{first};
  if (first->owner->session) mirrors = world.company(draws, *first, draws.one_in(6) ? 30 : 3);
  const std::vector<std::vector<Token>> asked = draw_continuations(world.vocab(), draws, *first);
  const Cut cut = draw_cut(draws);
  world.say("score ", asked.size(), " continuations of ", names_of(mirrors));
  std::vector<std::vector<Score>> got;
  {
    CutCall call(first->core(), cut);
    if (first->owner->session) {
      Batch batch(mirrors);
      got = first->owner->session->score_tokens(batch.branches(), asked, {.cancel = call.token()});
    } else {
      got.push_back(first->branch.score_tokens(asked));
    }
  }
  require(got.size() == mirrors.size(), "score: not one result a branch");
  const std::int64_t chosen = draws.below(std::ssize(mirrors));
  for (std::size_t i = 0; i < mirrors.size(); ++i) {
    if (!check_scored(world, mirrors, asked, got[i], cut)) continue;
    if (static_cast<std::int64_t>(i) == chosen) {
      verify_scores(world.reference(), "score of b" + std::to_string(mirrors[i]->number),
                    mirrors[i]->history(), asked, got[i]);
    }
  }
}

void select(World& world, Draws& draws) {
  Mirror* mirror = world.any_branch(draws);
  if (mirror == nullptr || !world.has_text()) return;
  if (mirror->length() > World::kMostTokens - 100) return;
  const char* const kTexts[] = {" yes", " no", "the", "10",   "\xC3\xA4", " maybe later",
                                "yes",  "an",  "(",   "aa?!", "then",     "\"}"};
  std::vector<std::string> options;
  for (std::int64_t n = draws.in(1, 4); n > 0; --n) {
    options.emplace_back(kTexts[draws.below(std::ssize(kTexts))]);
  }
  // Behind an apostrophe "the" is other tokens than alone.
  std::vector<std::vector<Token>> tokens;
  for (const std::string& option : options) tokens.push_back(mirror->branch.encode(option));
  const Cut cut = draw_cut(draws);
  const History before = mirror->history();
  std::optional<std::size_t> got;
  {
    CutCall call(mirror->core(), cut);
    got = mirror->branch.select(options);
  }
  world.say("b", mirror->number, ": select of ", options.size());
  const bool possible = any_accepted(world, before, tokens);
  if (!got && possible) {
    if (!cut.by_budget()) world.refused({mirror}, 64, std::ssize(options));
    return;
  }
  Replay replay = world.reference().replay(before);
  const std::optional<std::size_t> expected = replay.branch.select(options);
  ++world.counts().comparisons;
  require(expected.has_value() == possible, "select: the reference engine has no room");
  require(got == expected, "select: the replay chose another option");
  if (!got) {
    require(replay.branch.finish() == Finish::kDeadEnd, "select: all are refused, and no dead end");
    ++world.counts().dead_ends;
    return;
  }
  const std::vector<Token>& chosen = tokens[*got];
  mirror->tokens.insert(mirror->tokens.end(), chosen.begin(), chosen.end());
  mirror->logprob += replay.branch.logprob();
}

void expand(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr || world.full()) return;
  const std::vector<Mirror*> mirrors = short_enough(world.company(draws, *first, 3));
  if (mirrors.empty()) return;
  ExpandParams params;
  params.top = static_cast<int>(draws.in(1, 4));
  if (draws.one_in(3)) params.min_prob = static_cast<double>(draws.in(1, 20)) / 1000;
  Cut cut = draw_cut(draws);
  if (cut.kind == Cut::Kind::kInside) cut.kind = Cut::Kind::kBefore;
  world.say("expand ", names_of(mirrors), " into ", params.top);
  std::vector<std::vector<Branch>> got;
  {
    Batch batch(mirrors);
    CutCall call(*core_of(*first->owner->session), cut);
    params.cancel = call.token();
    got = first->owner->session->expand(batch.branches(), params);
  }
  params.cancel = {};
  require(got.size() == mirrors.size(), "expand: not one result a branch");
  for (std::size_t i = 0; i < mirrors.size(); ++i) {
    Mirror& parent = *mirrors[i];
    Replay replay = world.reference().replay(parent.history());
    const auto expected = replay.session.expand(std::span(&replay.branch, 1), params);
    const Finish finish = parent.branch.finish();
    if (got[i].empty() && !expected.front().empty()) {
      require(finish == Finish::kBudget || finish == Finish::kCancelled,
              "expand: no children, and no reason for it");
      if (cut.kind == Cut::Kind::kNone) world.refused({&parent});
      continue;
    }
    ++world.counts().comparisons;
    require(got[i].size() == expected.front().size(), "expand: other children than the replay's");
    const Finish replayed = replay.branch.finish();
    require(replayed == Finish::kRunning || finish == replayed || finish == Finish::kBudget ||
                finish == Finish::kCancelled,
            "expand: the constraint leaves no child, and finish() does not say so");
    for (std::size_t c = 0; c < got[i].size(); ++c) {
      const Branch& replayed = expected.front()[c];
      world.mirrors().add_child(std::move(got[i][c]), parent,
                                {replayed.last_token(), static_cast<float>(replayed.logprob())});
    }
  }
}

}  // namespace dendrite::fuzz
