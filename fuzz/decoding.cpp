// Decoding. What it gives is compared with what the replay of a branch gives alone.
#include <algorithm>
#include <limits>

#include "engine/branches/internals.h"
#include "fuzz/draw_calls.h"
#include "fuzz/operations.h"
#include "fuzz/verify.h"

namespace dendrite::fuzz {
namespace {

/// One branch of a decode call: what it was before, and what on_token told of it.
struct Lane {
  Mirror* mirror = nullptr;
  History before;
  std::vector<Token> seen;
  std::string shown;
  std::vector<std::vector<Token>> forks;  // tokens of those that on_token made
};

std::string name_of_call(const Lane& lane) {
  return "decode of b" + std::to_string(lane.mirror->number);
}

/// ", under a regex": for people.
std::string under(const DecodeParams& params) {
  return params.constraint ? std::string(", under a ") + name_of(params.constraint->kind()) : "";
}

/// What a result must be, whatever the branch.
void check_result(World& world, const Lane& lane, const Generation& got, const DecodeParams& params,
                  const Cut& cut) {
  check_generation(got, lane.before, params, lane.seen, lane.shown);
  check_forks(lane.forks, lane.before, got);
  world.counts().dead_ends += got.finish == Finish::kDeadEnd ? 1 : 0;
  require(got.finish == lane.mirror->branch.finish(), "decode: branch.finish() is another");
  if (got.finish == Finish::kBudget && !cut.by_budget()) world.refused({lane.mirror});
  require(got.finish != Finish::kCancelled || cut.by_cancel(),
          "decode: cancelled, though nobody asked for it");
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
  for (Mirror* mirror : mirrors) lanes.push_back({mirror, mirror->history(), {}, {}, {}});
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
    CutCall call(*core_of(session), cut);
    params.cancel = call.token();
    params.on_token = [&](const TokenEvent& event) {
      Lane& lane = lanes[event.index];
      require(event.branch == batch[event.index].id(), "on_token: the event names another branch");
      lane.seen.push_back(event.token);
      lane.shown += event.text;
      call.on_token();
      if (draws.one_in(16) && !world.full()) {
        Branch child = batch[event.index].fork();
        check_fork(child, lane.before, params, lane.seen);
        std::vector<Token> tokens = child.tokens();
        lane.forks.push_back(tokens);
        const double logprob = child.logprob();
        const Mirror& fork =
            world.mirrors().add_fork(std::move(child), *lane.mirror, std::move(tokens), logprob);
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
  if (rule != nullptr && std::ranges::none_of(out, cut_short)) {
    std::vector<History> before;
    for (const Lane& lane : lanes) before.push_back(lane.before);
    verify_race(world.reference(), before, shown, params, *rule);
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
      for (const float logprob : verify_generation(world.reference(), name_of_call(lanes[i]),
                                                   lanes[i].before, out[i], params)) {
        mirror.logprob += logprob;
      }
      if (params.stop.empty() && draws.one_in(3)) {
        verify_step_by_step(world.reference(), lanes[i].before, out[i].ids, params);
      }
      if (is_constrained(lanes[i].before, params) && draws.one_in(3)) {
        verify_masks(world.reference(), name_of_call(lanes[i]), lanes[i].before, out[i], params);
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
  const DecodeParams params = draw_params(world.engine(), draws, mirrors);
  const Cut cut = draw_cut(draws);
  world.say("s", first->owner->number, ": decode ", names_of(mirrors), ", at most ",
            params.max_tokens, " tokens", under(params));
  decode_lanes(world, draws, mirrors, params, cut, draws.one_in(10));
}

void race(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr) return;
  const std::vector<Mirror*> mirrors = short_enough(world.company(draws, *first, 8));
  if (mirrors.empty()) return;
  const DecodeParams params = draw_params(world.engine(), draws, mirrors);
  const Rule rule{draws.in(1, 3), draws.in(1, 3)};
  const Cut cut = draw_cut(draws);
  world.say("s", first->owner->number, ": race of ", names_of(mirrors), " for ", rule.quorum,
            ", at most ", params.max_tokens, " tokens", under(params));
  decode_lanes(world, draws, mirrors, params, cut, false, &rule);
}

void ahead(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr) return;
  const std::vector<Mirror*> company = short_enough(world.company(draws, *first, 8));
  std::vector<Mirror*> likely = company;
  std::vector<Mirror*> now;
  for (std::int64_t n = draws.below(3); n > 0 && likely.size() > 1; --n) {
    now.push_back(likely.back());
    likely.pop_back();
  }
  Owner& owner = *first->owner;
  DecodeParams& params = owner.ahead;
  params = draw_params(world.engine(), draws, company);
  const double kSlacks[] = {std::numeric_limits<double>::infinity(), 1, 1.5};
  params.slack = kSlacks[draws.below(std::ssize(kSlacks))];
  const Cut cut = draw_cut(draws);
  world.say("s", owner.number, ": decode ", names_of(now), ", and ahead ", names_of(likely),
            ", at most ", params.max_tokens, " tokens", under(params));
  if (!now.empty()) {
    decode_lanes(world, draws, now, params, cut, false, nullptr, likely);
    return;
  }
  Batch batch(likely);
  CutCall call(*core_of(*owner.session), cut);
  DecodeParams cancellable = params;
  cancellable.cancel = call.token();
  require(owner.session->decode({}, cancellable, batch.branches()).empty(),
          "ahead: results for branches that were not decoded");
}

void take(World& world, Draws& draws) {
  std::vector<Mirror*> drawn_ahead;
  for (const auto& mirror : world.branches()) {
    const bool has = state_of(mirror->branch)->ahead != nullptr;
    if (has && mirror->owner->session) drawn_ahead.push_back(mirror.get());
  }
  if (drawn_ahead.empty()) return;
  Mirror* first = draws.pick(drawn_ahead);
  const std::vector<Mirror*> mirrors = short_enough(world.company(draws, *first, 6));
  if (mirrors.empty()) return;
  DecodeParams params = first->owner->ahead;
  params.max_tokens = draws.in(1, 8);
  if (any_constrained(mirrors)) params.constraint.reset();
  const Cut cut = draw_cut(draws);
  world.say("s", first->owner->number, ": decode ", names_of(mirrors), " as ahead, at most ",
            params.max_tokens, " tokens");
  decode_lanes(world, draws, mirrors, params, cut, draws.one_in(4));
}

void decode_step(World& world, Draws& draws) {
  Mirror* mirror = world.any_decodable(draws);
  if (mirror == nullptr || mirror->length() > World::kMostTokens - 100) return;
  DecodeParams params = draw_params(world.engine(), draws, {mirror});
  params.max_tokens = 1;
  params.top_logprobs = -1;
  const Cut cut = draw_cut(draws);
  Lane lane{mirror, mirror->history(), {}, {}, {}};
  Generation got;
  {
    CutCall call(*core_of(*mirror->owner->session), cut);
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
  params = for_replay(params);
  if (cut_short(got)) return;
  Replay replay = world.reference().replay(lane.before);
  params.top_logprobs = 0;
  const Generation expected = replay.session.decode(replay.branch, params);
  ++world.counts().comparisons;
  require(expected.ids == got.ids, "decode_step: the replay drew another token");
  require(expected.finish == got.finish, "decode_step: the replay finished otherwise");
  for (const float logprob : counted_logprobs(world.reference(), lane.before, expected, params)) {
    mirror->logprob += logprob;
  }
}

void compare(World& world, Draws& draws) {
  Mirror* mirror = world.any_branch(draws);
  if (mirror == nullptr) return;
  world.say("b", mirror->number, ": compare with its replay");
  world.compare_stream(*mirror);
  const bool whole = world.compare_whole(*mirror);
  world.compare_mask(*mirror);
  if (!whole || !mirror->owner->session || mirror->length() > World::kMostTokens - 100) return;
  Mirror& child =
      world.mirrors().add_fork(mirror->branch.fork(), *mirror, mirror->tokens, mirror->logprob);
  world.say("    a fork of it, b", child.number, ", decodes");
  const DecodeParams params = draw_params(world.engine(), draws, {&child});
  decode_lanes(world, draws, {&child}, params, {}, true);
  world.compare_bits(child);
  world.drop(child);
}

}  // namespace dendrite::fuzz
