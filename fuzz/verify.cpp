#include "fuzz/verify.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/branches/internals.h"
#include "fuzz/slow_matcher.h"

namespace dendrite::fuzz {
namespace {

bool same_logprobs(const ChosenToken& a, const ChosenToken& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.id == y.id && same_bits(x.logprob, y.logprob);
  };
  return a.id == b.id && same_bits(a.logprob, b.logprob) && std::ranges::equal(a.top, b.top, same);
}

}  // namespace

DecodeParams for_replay(DecodeParams params) {
  params.on_token = {};
  params.enough = {};
  params.cancel = {};
  params.speculate = Speculate::kOff;
  return params;
}

bool cut_short(const Generation& generation) {
  return generation.finish == Finish::kBudget || generation.finish == Finish::kCancelled;
}

std::string text_of(const std::vector<Token>& ids) {
  std::string out;
  for (const Token id : ids) out.append(" ").append(std::to_string(id));
  return out;
}

std::vector<float> verify_generation(Reference& reference, const std::string& name,
                                     const History& before, const Generation& got,
                                     DecodeParams params) {
  const int wanted = params.top_logprobs;
  params = for_replay(std::move(params));
  params.top_logprobs = std::max(0, wanted);
  if (cut_short(got)) params.max_tokens = std::ssize(got.ids);
  Replay replay = reference.replay(before);
  const Generation expected = replay.session.decode(replay.branch, params);
  reference.counts.replayed_tokens += std::ssize(expected.ids);
  ++reference.counts.comparisons;
  if (got.ids != expected.ids) {
    throw Violation(name + ": drew" + text_of(got.ids) + "; its replay drew" +
                    text_of(expected.ids));
  }
  if (!cut_short(got) && got.finish != expected.finish) {
    throw Violation(name + ": finish is " + name_of(got.finish) + "; the replay's is " +
                    name_of(expected.finish));
  }
  if (got.text != expected.text) {
    throw Violation(name + ": the text is \"" + got.text + "\"; the replay's is \"" +
                    expected.text + "\"");
  }
  std::vector<float> logprobs = counted_logprobs(reference, before, expected, params);
  if (wanted < 0) return logprobs;
  require(got.logprobs.size() == expected.logprobs.size(), "decode: log-probs are missing");
  for (std::size_t i = 0; i < expected.logprobs.size(); ++i) {
    if (!same_logprobs(got.logprobs[i], expected.logprobs[i])) {
      throw Violation(name + ": log-probs of token " + std::to_string(i) +
                      " differ from the replay's");
    }
    reference.counts.compared_values += 1 + std::ssize(got.logprobs[i].top);
  }
  return logprobs;
}

std::vector<float> counted_logprobs(Reference& reference, const History& before,
                                    const Generation& replayed, const DecodeParams& params) {
  auto matcher = SlowMatcher::of(*core_of(reference.engine()), before, params.constraint);
  std::vector<float> out;
  for (const ChosenToken& chosen : replayed.logprobs) {
    const bool forced = matcher && matcher->leaves_one();
    out.push_back(forced ? 0 : chosen.logprob);
    reference.counts.forced_tokens += forced ? 1 : 0;
    require(!matcher || matcher->accept(chosen.id), "decode: its constraint refuses a token");
  }
  return out;
}

void verify_tokens(Reference& reference, const std::string& name, const History& before,
                   const std::vector<Token>& ids, DecodeParams params) {
  params = for_replay(std::move(params));
  params.max_tokens = std::ssize(ids);
  Replay replay = reference.replay(before);
  const std::vector<Token> expected = replay.session.decode(replay.branch, params).ids;
  reference.counts.replayed_tokens += std::ssize(expected);
  ++reference.counts.comparisons;
  if (ids == expected) return;
  throw Violation(name + ": drew" + text_of(ids) + "; its replay drew" + text_of(expected));
}

void verify_step_by_step(Reference& reference, const History& before, const std::vector<Token>& ids,
                         DecodeParams params) {
  params = for_replay(std::move(params));
  params.max_tokens = 1;
  Replay replay = reference.replay(before);
  if (params.constraint) replay.branch.constrain(*params.constraint);  // for more than one call
  params.constraint.reset();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Generation step = replay.session.decode(replay.branch, params);
    require(step.ids == std::vector<Token>{ids[i]},
            "decode: one call at a time, the replay drew another token");
    const bool last = i + 1 == ids.size();
    require(last || step.finish == Finish::kLength,
            "decode: one call at a time, the replay stopped earlier");
  }
  reference.counts.replayed_tokens += std::ssize(ids);
  ++reference.counts.comparisons;
}

bool is_constrained(const History& before, const DecodeParams& params) {
  return params.constraint || before.spans.constraint() != nullptr;
}

void check_fork(const Branch& fork, const History& before, const DecodeParams& params,
                const std::vector<Token>& told) {
  std::vector<Token> expected = before.tokens;
  expected.insert(expected.end(), told.begin(), told.end());
  std::vector<Token> tokens = fork.tokens();
  require(tokens.size() >= expected.size(), "on_token: a fork lacks tokens that were told");
  // (A step may give several: forced ones, and those that were drafted.)
  const bool several = is_constrained(before, params) || params.speculate != Speculate::kOff;
  require(tokens.size() == expected.size() || several,
          "on_token: a fork has tokens that were not told");
  tokens.resize(expected.size());
  require(tokens == expected, "on_token: a fork has other tokens than were told");
}

void check_forks(std::span<const std::vector<Token>> forks, const History& before,
                 const Generation& got) {
  for (const std::vector<Token>& fork : forks) {
    const auto [in_fork, in_got] =
        std::ranges::mismatch(std::span(fork).subspan(before.tokens.size()), got.ids);
    require(in_fork == std::span(fork).end(), "decode: a fork had tokens that its parent has not");
  }
}

void check_generation(const Generation& got, const History& before, const DecodeParams& params,
                      const std::vector<Token>& told, const std::string& shown) {
  const auto count = std::ssize(got.ids);
  require(got.ids == told, "decode: on_token told other tokens than the result holds");
  require(count <= params.max_tokens, "decode: more tokens than max_tokens");
  require(std::ssize(got.logprobs) == (params.top_logprobs < 0 ? 0 : count),
          "decode: not one log-prob a token");
  require(got.finish != Finish::kRunning, "decode: a branch did not finish");
  require(got.finish != Finish::kAbandoned, "decode: a branch was abandoned and lives");
  require(got.finish != Finish::kLength || count == params.max_tokens,
          "decode: ended by length before max_tokens");
  const bool constrained = is_constrained(before, params);
  const bool dead_end = got.finish == Finish::kDeadEnd;
  require(!dead_end || constrained, "decode: a dead end without a constraint");
  require(!constrained || got.finish != Finish::kEos, "decode: the end of a constraint is no stop");
  require(constrained || got.finish != Finish::kStopInside, "decode: inside of no constraint");
  const bool stopped = got.finish == Finish::kStop || got.finish == Finish::kEos;
  require(!stopped || count > 0 || constrained, "decode: stopped without a token");
  const bool told_end = !cut_short(got) && !dead_end && count > 0;
  require(told_end ? got.text == shown : got.text.starts_with(shown),
          "decode: the streamed text is not the result's");
}

void verify_race(Reference& reference, std::span<const History> before,
                 std::span<const std::size_t> shown, DecodeParams params, const Rule& rule) {
  params = for_replay(std::move(params));
  std::map<std::pair<std::size_t, std::size_t>, bool> ends;  // (tokens, place): accepted
  for (std::size_t i = 0; i < before.size(); ++i) {
    Replay replay = reference.replay(before[i]);
    const Generation got = replay.session.decode(replay.branch, params);
    reference.counts.replayed_tokens += std::ssize(got.ids);
    ends[{got.ids.size(), i}] = rule.accepts(got);
  }
  std::vector<std::size_t> order;
  std::int64_t accepted = 0;
  for (const auto& [place, good] : ends) {
    order.push_back(place.second);
    if (good && ++accepted == rule.quorum) break;
  }
  ++reference.counts.comparisons;
  require(std::ranges::equal(shown, order),
          "race: others were shown, or in another order, than by tokens and place");
}

void verify_scores(Reference& reference, const std::string& name, const History& before,
                   std::span<const std::vector<Token>> asked, std::span<const Score> got) {
  Replay replay = reference.replay(before);
  const auto matcher = SlowMatcher::of(*core_of(reference.engine()), before);
  ++reference.counts.comparisons;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Score expected = replay.branch.score_tokens({asked[i]}).front();
    require_same_bits(got[i].tokens, expected.tokens, name);
    if (matcher) {
      const std::size_t accepted = matcher->count_accepted(asked[i]);
      const auto refused =
          std::ranges::find_if(got[i].tokens, [](float v) { return std::isinf(v); });
      require(refused == got[i].tokens.begin() + static_cast<std::ptrdiff_t>(accepted),
              "score: not from the first refused token on -infinity");
    }
    if (!same_bits(got[i].logprob, expected.logprob)) throw Violation(name + ": other sums");
    reference.counts.compared_values += std::ssize(got[i].tokens);
    reference.counts.replayed_tokens += std::ssize(asked[i]);
  }
}

bool scored(std::span<const std::vector<Token>> asked, std::span<const Score> got) {
  require(got.size() == asked.size(), "score: not one result a continuation");
  std::size_t missing = 0;
  for (const Score& score : got) missing += score.tokens.empty() ? 1 : 0;
  if (missing == 0) return true;
  require(missing == got.size(), "score: some continuations of a branch are missing");
  require(std::isnan(got.front().logprob), "score: a missing one is not NaN");
  return false;
}

}  // namespace dendrite::fuzz
