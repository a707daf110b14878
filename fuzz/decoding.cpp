// Decoding. What it gives is compared with what the replay of a branch gives alone.
#include <algorithm>
#include <limits>
#include <map>

#include "fuzz/operations.h"

namespace dendrite::fuzz {
namespace {

std::string text_of(const std::vector<Token>& ids) {
  std::string out;
  for (const Token id : ids) out.append(" ").append(std::to_string(id));
  return out;
}

// --- decode

DecodeParams draw_params(World& world, Draws& draws) {
  DecodeParams params;
  params.max_tokens = draws.one_in(24) ? 0 : draws.in(1, draws.one_in(8) ? 30 : 8);
  const double kTemperatures[] = {0, 1, 0.5, 3, 1e-3};
  if (!draws.one_in(8)) params.temperature = kTemperatures[draws.below(std::ssize(kTemperatures))];
  if (draws.one_in(3)) params.top_k = draws.in(1, 20);
  if (draws.one_in(3)) params.top_p = static_cast<double>(draws.in(1, 100)) / 100;
  if (draws.one_in(4)) params.min_p = static_cast<double>(draws.in(0, 50)) / 100;
  if (draws.one_in(3)) params.repetition_penalty = static_cast<double>(draws.in(5, 30)) / 10;
  if (draws.one_in(3)) {
    for (std::int64_t n = draws.in(1, 4); n > 0; --n) {
      params.logit_bias.emplace_back(static_cast<Token>(draws.below(world.vocab())),
                                     static_cast<float>(draws.in(-4, 6)));
    }
  }
  if (world.has_text() && draws.one_in(4)) {
    const char* const kStops[] = {"e", "th", " ", "\n", "1", "10", "\xC3", "ing", "\xEF\xBF\xBD"};
    for (std::int64_t n = draws.in(1, 4); n > 0; --n) {
      params.stop.emplace_back(kStops[draws.below(std::ssize(kStops))]);
    }
  }
  if (draws.one_in(4)) params.stop_tokens = draws.tokens(draws.in(1, 12), world.vocab());
  params.ignore_eos = draws.one_in(3);
  if (draws.one_in(2)) params.top_logprobs = static_cast<int>(draws.in(0, 3));
  return params;
}

/// One branch of a decode call: what it was before, and what on_token told of it.
struct Lane {
  Mirror* mirror = nullptr;
  History before;
  std::vector<Token> seen;
  std::string shown;
};

/// The results of a lane, against those of its replay with the same parameters.
void verify(World& world, const Lane& lane, const Generation& got, DecodeParams params) {
  Mirror& mirror = *lane.mirror;
  const std::string name = "decode of b" + std::to_string(mirror.number);
  const bool cut = got.finish == Finish::kBudget || got.finish == Finish::kCancelled;
  const int wanted = params.top_logprobs;
  params.on_token = {};
  params.enough = {};
  params.cancel = {};
  params.top_logprobs = std::max(0, wanted);
  if (cut) params.max_tokens = std::ssize(got.ids);
  Replay replay = world.reference().replay(lane.before);
  const Generation expected = replay.session.decode(replay.branch, params);
  world.counts().replayed_tokens += std::ssize(expected.ids);
  ++world.counts().comparisons;
  if (got.ids != expected.ids) {
    throw Violation(name + ": drew" + text_of(got.ids) + "; its replay drew" +
                    text_of(expected.ids));
  }
  if (!cut && got.finish != expected.finish) {
    throw Violation(name + ": finish is " + name_of(got.finish) + "; the replay's is " +
                    name_of(expected.finish));
  }
  if (got.text != expected.text) {
    throw Violation(name + ": the text is \"" + got.text + "\"; the replay's is \"" +
                    expected.text + "\"");
  }
  for (const ChosenToken& chosen : expected.logprobs) mirror.logprob += chosen.logprob;
  if (wanted < 0) return;
  require(got.logprobs.size() == expected.logprobs.size(), "decode: log-probs are missing");
  for (std::size_t i = 0; i < expected.logprobs.size(); ++i) {
    const ChosenToken& a = got.logprobs[i];
    const ChosenToken& b = expected.logprobs[i];
    bool same = a.id == b.id && same_bits(a.logprob, b.logprob) && a.top.size() == b.top.size();
    for (std::size_t t = 0; same && t < a.top.size(); ++t) {
      same = a.top[t].id == b.top[t].id && same_bits(a.top[t].logprob, b.top[t].logprob);
    }
    if (!same) {
      throw Violation(name + ": log-probs of token " + std::to_string(i) +
                      " differ from the replay's");
    }
    world.counts().compared_values += 1 + std::ssize(a.top);
  }
}

/// The same tokens come one call at a time: nothing about a draw depends on where its call began.
/// Requires: no stop strings, which are looked for in the text of one call.
void verify_step_by_step(World& world, const Lane& lane, const Generation& got,
                         DecodeParams params) {
  params.on_token = {};
  params.enough = {};
  params.cancel = {};
  params.max_tokens = 1;
  Replay replay = world.reference().replay(lane.before);
  for (std::size_t i = 0; i < got.ids.size(); ++i) {
    const Generation step = replay.session.decode(replay.branch, params);
    require(step.ids == std::vector<Token>{got.ids[i]},
            "decode: one call at a time, the replay drew another token");
    const bool last = i + 1 == got.ids.size();
    require(last || step.finish == Finish::kLength,
            "decode: one call at a time, the replay stopped earlier");
  }
  world.counts().replayed_tokens += std::ssize(got.ids);
  ++world.counts().comparisons;
}

/// What a result must be by itself, whatever the branch.
void check_result(World& world, const Lane& lane, const Generation& got, const DecodeParams& params,
                  const Cut& cut) {
  const auto count = std::ssize(got.ids);
  require(got.ids == lane.seen, "decode: on_token told other tokens than the result holds");
  require(count <= params.max_tokens, "decode: more tokens than max_tokens");
  require(got.finish == lane.mirror->branch.finish(), "decode: branch.finish() is another");
  require(std::ssize(got.logprobs) == (params.top_logprobs < 0 ? 0 : count),
          "decode: not one log-prob a token");
  switch (got.finish) {
    case Finish::kRunning:
      throw Violation("decode: a branch did not finish");
    case Finish::kBudget:
      if (!cut.by_budget()) world.refused({lane.mirror});
      break;
    case Finish::kCancelled:
      require(cut.by_cancel(), "decode: cancelled, though nobody asked for it");
      break;
    case Finish::kAbandoned:
      throw Violation("decode: a branch was abandoned and lives");
    case Finish::kLength:
      require(count == params.max_tokens, "decode: ended by length before max_tokens");
      break;
    case Finish::kStop:
    case Finish::kEos:
      require(count > 0, "decode: stopped without a token");
      break;
  }
  const bool by_token = got.finish != Finish::kBudget && got.finish != Finish::kCancelled;
  require(!by_token || count == 0 ? got.text.starts_with(lane.shown) : got.text == lane.shown,
          "decode: the streamed text is not the result's");
}

/// When a race is over: `quorum` branches whose tokens add up to a multiple of `modulus`.
struct Rule {
  std::int64_t quorum = 0;
  std::int64_t modulus = 1;

  bool accepts(const Generation& generation) const {
    std::int64_t sum = 0;
    for (const Token id : generation.ids) sum += id;
    return sum % modulus == 0;
  }
};

/// Whom a race must show, in order: every branch decodes alone, then they are looked at by tokens
/// and place.
std::vector<std::size_t> expected_order(World& world, const std::vector<Lane>& lanes,
                                        DecodeParams params, const Rule& rule) {
  params.on_token = {};
  params.enough = {};
  params.cancel = {};
  std::map<std::pair<std::size_t, std::size_t>, bool> ends;  // (tokens, place): accepted
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Replay replay = world.reference().replay(lanes[i].before);
    const Generation alone = replay.session.decode(replay.branch, params);
    world.counts().replayed_tokens += std::ssize(alone.ids);
    ends[{alone.ids.size(), i}] = rule.accepts(alone);
  }
  std::vector<std::size_t> order;
  std::int64_t accepted = 0;
  for (const auto& [place, good] : ends) {
    order.push_back(place.second);
    if (good && ++accepted == rule.quorum) break;
  }
  ++world.counts().comparisons;
  return order;
}

/// Nothing is left of a branch that lost a race.
void check_abandoned(const Lane& lane, const Generation& got) {
  require(!lane.mirror->branch.valid(), "race: the handle of one that lost is not empty");
  require(got.ids.empty() && got.text.empty() && got.logprobs.empty(),
          "race: one that lost has tokens");
}

/// `rule`: of a race, else null. `likely`: those decoded ahead.
void decode_lanes(World& world, Draws& draws, const std::vector<Mirror*>& mirrors,
                  DecodeParams params, const Cut& cut, bool verify_all, const Rule* rule = nullptr,
                  const std::vector<Mirror*>& likely = {}) {
  Session& session = *mirrors.front()->owner->session;
  std::vector<Lane> lanes;
  for (Mirror* mirror : mirrors) lanes.push_back({mirror, mirror->history(), {}, {}});
  std::vector<Generation> out;
  std::vector<std::size_t> shown;
  std::int64_t accepted = 0;
  if (rule != nullptr) {
    params.enough = [&](std::size_t index, const Generation& generation) {
      shown.push_back(index);
      return rule->accepts(generation) && ++accepted == rule->quorum;
    };
  }
  {
    Batch batch(mirrors);
    Batch others(likely);
    CutCall call(*session.core(), cut);
    params.cancel = call.token();
    params.on_token = [&](const TokenEvent& event) {
      Lane& lane = lanes[event.index];
      require(event.branch == batch[event.index].id(), "on_token: the event names another branch");
      lane.seen.push_back(event.token);
      lane.shown += event.text;
      call.on_token();
      if (draws.one_in(16) && !world.full()) {
        std::vector<Token> tokens = lane.before.tokens;
        tokens.insert(tokens.end(), lane.seen.begin(), lane.seen.end());
        Branch child = batch[event.index].fork();
        const double logprob = child.logprob();
        const Mirror& fork =
            world.add_fork(std::move(child), *lane.mirror, std::move(tokens), logprob);
        world.say("    on_token: b", lane.mirror->number, " forks -> b", fork.number);
      }
      if (draws.one_in(40)) {
        Mirror* other = world.any_branch(draws);
        if (std::ranges::count(mirrors, other) + std::ranges::count(likely, other) > 0) return;
        world.say("    on_token: prune b", other->number);
        world.drop(*other);
      }
    };
    out = session.decode(batch.branches(), params, others.branches());
  }
  require(out.size() == lanes.size(), "decode: not one result a branch");
  const auto cut_short = [](const Generation& got) {
    return got.finish == Finish::kBudget || got.finish == Finish::kCancelled;
  };
  if (rule != nullptr && std::ranges::none_of(out, cut_short)) {
    require(shown == expected_order(world, lanes, params, *rule),
            "race: others were shown, or in another order, than by tokens and place");
  }
  const std::int64_t chosen = draws.below(std::ssize(lanes));
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Mirror& mirror = *lanes[i].mirror;
    if (rule != nullptr && out[i].finish == Finish::kAbandoned) {
      check_abandoned(lanes[i], out[i]);
      world.say("    b", mirror.number, " lost");
      world.drop(mirror);
      continue;
    }
    require(rule == nullptr || cut_short(out[i]) == (std::ranges::count(shown, i) == 0),
            "race: not those were shown that ended by themselves");
    check_result(world, lanes[i], out[i], params, cut);
    mirror.tokens.insert(mirror.tokens.end(), out[i].ids.begin(), out[i].ids.end());
    world.counts().tokens_generated += std::ssize(out[i].ids);
    world.counts().cut_calls += cut.kind != Cut::Kind::kNone && cut_short(out[i]) ? 1 : 0;
    world.say("    b", mirror.number, " ->", text_of(out[i].ids), ", ", name_of(out[i].finish));
    if (verify_all || static_cast<std::int64_t>(i) == chosen) {
      verify(world, lanes[i], out[i], params);
      if (params.stop.empty() && draws.one_in(3)) {
        verify_step_by_step(world, lanes[i], out[i], params);
      }
    } else {
      mirror.logprob = mirror.branch.logprob();
    }
  }
}

}  // namespace

void decode(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr) return;
  const std::vector<Mirror*> mirrors =
      short_enough(world.company(draws, *first, draws.one_in(5) ? 30 : 6));
  if (mirrors.empty()) return;
  const DecodeParams params = draw_params(world, draws);
  const Cut cut = draw_cut(draws);
  world.say("s", first->owner->number, ": decode ", names_of(mirrors), ", at most ",
            params.max_tokens, " tokens");
  decode_lanes(world, draws, mirrors, params, cut, draws.one_in(10));
}

void race(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr) return;
  const std::vector<Mirror*> mirrors = short_enough(world.company(draws, *first, 8));
  if (mirrors.empty()) return;
  const DecodeParams params = draw_params(world, draws);
  const Rule rule{draws.in(1, 3), draws.in(1, 3)};
  const Cut cut = draw_cut(draws);
  world.say("s", first->owner->number, ": race of ", names_of(mirrors), " for ", rule.quorum,
            ", at most ", params.max_tokens, " tokens");
  decode_lanes(world, draws, mirrors, params, cut, false, &rule);
}

void ahead(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr) return;
  std::vector<Mirror*> likely = short_enough(world.company(draws, *first, 8));
  std::vector<Mirror*> now;
  for (std::int64_t n = draws.below(3); n > 0 && likely.size() > 1; --n) {
    now.push_back(likely.back());
    likely.pop_back();
  }
  Owner& owner = *first->owner;
  DecodeParams& params = owner.ahead;
  params = draw_params(world, draws);
  const double kSlacks[] = {std::numeric_limits<double>::infinity(), 1, 1.5};
  params.slack = kSlacks[draws.below(std::ssize(kSlacks))];
  const Cut cut = draw_cut(draws);
  world.say("s", owner.number, ": decode ", names_of(now), ", and ahead ", names_of(likely),
            ", at most ", params.max_tokens, " tokens");
  if (!now.empty()) {
    decode_lanes(world, draws, now, params, cut, false, nullptr, likely);
    return;
  }
  Batch batch(likely);
  CutCall call(*owner.session->core(), cut);
  DecodeParams cancellable = params;
  cancellable.cancel = call.token();
  require(owner.session->decode({}, cancellable, batch.branches()).empty(),
          "ahead: results for branches that were not decoded");
}

void take(World& world, Draws& draws) {
  std::vector<Mirror*> drawn_ahead;
  for (const auto& mirror : world.branches()) {
    const bool has = mirror->branch.state()->ahead != nullptr;
    if (has && mirror->owner->session) drawn_ahead.push_back(mirror.get());
  }
  if (drawn_ahead.empty()) return;
  Mirror* first = draws.pick(drawn_ahead);
  const std::vector<Mirror*> mirrors = short_enough(world.company(draws, *first, 6));
  if (mirrors.empty()) return;
  DecodeParams params = first->owner->ahead;
  params.max_tokens = draws.in(1, 8);
  const Cut cut = draw_cut(draws);
  world.say("s", first->owner->number, ": decode ", names_of(mirrors), " as ahead, at most ",
            params.max_tokens, " tokens");
  decode_lanes(world, draws, mirrors, params, cut, draws.one_in(4));
}

void decode_step(World& world, Draws& draws) {
  Mirror* mirror = world.any_decodable(draws);
  if (mirror == nullptr || mirror->length() > World::kMostTokens - 100) return;
  DecodeParams params = draw_params(world, draws);
  params.max_tokens = 1;
  params.top_logprobs = -1;
  const Cut cut = draw_cut(draws);
  Lane lane{mirror, mirror->history(), {}, {}};
  Generation got;
  {
    CutCall call(*mirror->owner->session->core(), cut);
    params.cancel = call.token();
    const std::optional<Token> token = mirror->owner->session->decode_step(mirror->branch, params);
    if (token) got.ids.push_back(*token);
  }
  lane.seen = got.ids;
  got.finish = mirror->branch.finish();
  got.text = lane.shown;
  world.say("b", mirror->number, ": decode_step ->", text_of(got.ids), ", ", name_of(got.finish));
  check_result(world, lane, got, params, cut);
  mirror->tokens.insert(mirror->tokens.end(), got.ids.begin(), got.ids.end());
  world.counts().tokens_generated += std::ssize(got.ids);
  params.cancel = {};
  params.max_tokens = std::ssize(got.ids);
  if (got.ids.empty()) return;
  Replay replay = world.reference().replay(lane.before);
  params.top_logprobs = 0;
  const Generation expected = replay.session.decode(replay.branch, params);
  ++world.counts().comparisons;
  require(expected.ids == got.ids, "decode_step: the replay drew another token");
  require(expected.finish == got.finish, "decode_step: the replay finished otherwise");
  mirror->logprob += expected.logprobs.front().logprob;
}

void compare(World& world, Draws& draws) {
  Mirror* mirror = world.any_branch(draws);
  if (mirror == nullptr) return;
  world.say("b", mirror->number, ": compare with its replay");
  world.compare_stream(*mirror);
  const bool whole = world.compare_whole(*mirror);
  if (!whole || !mirror->owner->session || mirror->length() > World::kMostTokens - 100) return;
  Mirror& child = world.add_fork(mirror->branch.fork(), *mirror, mirror->tokens, mirror->logprob);
  world.say("    a fork of it, b", child.number, ", decodes");
  decode_lanes(world, draws, {&child}, draw_params(world, draws), {}, true);
  world.compare_bits(child);
  world.drop(child);
}

}  // namespace dendrite::fuzz
