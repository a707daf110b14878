#include "fuzz/draw_calls.h"

#include <algorithm>
#include <limits>

#include "engine/branches/internals.h"
#include "fuzz/slow_matcher.h"

namespace dendrite::fuzz {
namespace {

/// So few that branches meet under the same one. With the tokens of model.cpp.
const std::vector<Constraint>& constraints() {
  static const std::vector<Constraint> all{
      // Nearly everything may come, and the end anywhere.
      Constraint::regex("[ -~\\n]{0,60}"),
      Constraint::regex("(an|the|in)( (10|[0-9]{2}|er)){0,4}[.!]"),
      // Mostly there is no choice.
      Constraint::regex("The answer is [0-9]{1,2}, and that is all there is in the thing\\."),
      Constraint::json_schema(
          R"({"type":"object","properties":{"thing":{"type":"string","maxLength":4},)"
          R"("n":{"type":"integer","minimum":0,"maximum":210},"other":{"enum":["in","then",null]}},)"
          R"("required":["thing","n"],"additionalProperties":false})"),
      Constraint::lark("start: list\n"
                       "list: \"(\" (item (\" \" item)*)? \")\"\n"
                       "item: list | WORD\n"
                       "WORD: /(an|the|er|[0-9])+/\n"),
      Constraint::choice({"yes", "yes, sir", "no \"way\"\n", "the thing", "then", "10"}),
      // After a "?" it does not end soon.
      Constraint::lark("start: /[a-e]+/ (\"!\" | \"?\" more)\n"
                       "more: more /[?.]/ | \".\"\n"),
  };
  return all;
}

}  // namespace

DecodeParams draw_params(const Engine& engine, Draws& draws, const std::vector<Mirror*>& company) {
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
      const auto token = static_cast<Token>(draws.below(engine.info().vocab));
      const auto bias = static_cast<float>(draws.in(-4, 6));
      params.logit_bias.emplace_back(  // the least bans it
          token, bias > -4 ? bias : -std::numeric_limits<float>::infinity());
    }
  }
  if (engine.info().has_tokenizer && draws.one_in(4)) {
    const char* const kStops[] = {"e", "th", " ", "\n", "1", "10", "\xC3", "ing", "\xEF\xBF\xBD"};
    for (std::int64_t n = draws.in(1, 4); n > 0; --n) {
      params.stop.emplace_back(kStops[draws.below(std::ssize(kStops))]);
    }
  }
  if (draws.one_in(4)) params.stop_tokens = draws.tokens(draws.in(1, 12), engine.info().vocab);
  // One draw for all three: from 0 on as many as say nothing of constraints.
  const auto kinds = std::ssize(constraints());
  const std::int64_t place = draws.below(3 * 4 * kinds);
  params.ignore_eos = place % 3 == 2;
  if (const std::int64_t kind = place / 3 - 3 * kinds;
      kind >= 0 && engine.info().has_tokenizer && !any_constrained(company)) {
    params.constraint = constraints()[static_cast<std::size_t>(kind)];
  }
  if (place / 3 % 2 == 1) {  // which must change nothing
    constexpr Speculate kMethods[] = {Speculate::kSuffix, Speculate::kDraftModel,
                                      Speculate::kDFlash, Speculate::kDFlashTree,
                                      Speculate::kSuffixDFlash};
    const bool has_drafter = core_of(engine)->drafter != nullptr;
    params.speculate = kMethods[place / 6 % (has_drafter ? 5 : 2)];
    if (core_of(engine)->mtp != nullptr && place / 6 % 4 > 1) {
      params.speculate = place / 6 % 4 == 2 ? Speculate::kMtp : Speculate::kSuffixMtp;
    }
    params.speculate_budget = 1 + place % 20;
    params.slack = std::numeric_limits<double>::infinity();
  }
  if (draws.one_in(2)) params.top_logprobs = static_cast<int>(draws.in(0, 3));
  return params;
}

std::optional<Constraint> draw_constraint(Draws& draws) {
  if (draws.one_in(5)) return std::nullopt;
  const std::int64_t kind = draws.below(std::ssize(constraints()));
  return constraints()[static_cast<std::size_t>(kind)];
}

std::vector<Token> draw_allowed(const Mirror& branch, std::int64_t count, Draws& draws) {
  std::vector<Token> tokens;
  auto matcher = SlowMatcher::of(*branch.core().engine, branch.history());
  while (matcher && std::ssize(tokens) < count) {
    std::vector<Token> allowed = tokens_of(*matcher->quick_mask());
    if (allowed.empty()) break;
    tokens.push_back(draws.pick(allowed));
    if (!matcher->accept(tokens.back())) break;
  }
  return tokens;
}

std::vector<std::vector<Token>> draw_continuations(std::int64_t vocab, Draws& draws,
                                                   const Mirror& branch) {
  std::vector<std::vector<Token>> out;
  for (std::int64_t n = draws.in(1, 5); n > 0; --n) {
    std::vector<Token> tokens;
    if (!out.empty() && draws.one_in(2)) {
      tokens = draws.pick(out);
      tokens.resize(static_cast<std::size_t>(draws.below(std::ssize(tokens) + 1)));
    } else if (branch.spans.constraint() != nullptr && !draws.one_in(3)) {
      tokens = draw_allowed(branch, draws.in(1, 6), draws);
      if (!tokens.empty() && draws.one_in(2)) {
        out.push_back(std::move(tokens));
        continue;
      }
    }
    const std::vector<Token> more =
        draws.tokens(draws.in(1, draws.one_in(8) ? 40 : 5), draws.one_in(2) ? 3 : vocab);
    tokens.insert(tokens.end(), more.begin(), more.end());
    out.push_back(std::move(tokens));
  }
  return out;
}

}  // namespace dendrite::fuzz
