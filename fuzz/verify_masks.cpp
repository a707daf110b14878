// What constraints let through, against what their grammars say when they are asked about every
// token by itself.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "core/rng.h"
#include "engine/branches/internals.h"
#include "engine/calls/lane_sampler.h"
#include "fuzz/slow_matcher.h"
#include "fuzz/verify.h"
#include "sample/logit_changes.h"

namespace dendrite::fuzz {
namespace {

/// What a decode call draws next, from the raw logits of a replay and a mask that was made slowly.
class SlowDraws {
 public:
  SlowDraws(Reference& reference, const History& before, const DecodeParams& params)
      : reference_(reference),
        history_(before),
        settings_(resolve(params, *core_of(reference.engine()))),
        replay_(reference.replay(before)) {
    replay_.branch.unconstrain();
  }

  Token next(const TokenMask& mask) {
    const std::vector<float> logits = reference_.logits(replay_);
    const auto length = static_cast<std::uint64_t>(history_.tokens.size());
    LogitChanges changes(settings_);
    std::vector<Token> bans;
    for (std::size_t i = 0; i < history_.tokens.size(); ++i) {
      changes.add(history_.tokens[i],
                  static_cast<std::int64_t>(i) >= replay_.branch.prompt_length());
    }
    add_bans(settings_, history_.tokens, bans);
    return sample(logits, {changes.all(), bans}, settings_, mask.words(),
                  uniform_at(history_.seed, history_.stream, length), scratch_);
  }
  void go_on(Token token) {
    replay_.branch.append(std::span(&token, 1));
    history_.tokens.push_back(token);
  }

 private:
  Reference& reference_;
  History history_;
  SamplerSettings settings_;
  Replay replay_;
  SamplerScratch scratch_;
};

/// Whether what a stop string left of a text may end there; nullopt: characters of several bytes
/// may begin before the call, and are not looked at.
std::optional<bool> may_end(const EngineCore& core, const History& before, const std::string& text,
                            const DecodeParams& params) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (!std::ranges::all_of(text, is_ascii)) return std::nullopt;
  std::optional<SlowMatcher> matcher = SlowMatcher::of(core, before, params.constraint);
  const auto spelled = matcher->spell(text);
  require(spelled.has_value(), "a text has no tokens of one byte");
  return matcher->count_accepted(*spelled) == spelled->size() &&
         std::ranges::all_of(*spelled, [&](Token id) { return matcher->accept(id); }) &&
         matcher->is_accepting();
}

/// Whether logit_bias forbids all that the mask allows.
bool bans_all(const TokenMask& mask, const DecodeParams& params) {
  return std::ranges::all_of(tokens_of(mask), [&](Token id) {
    return std::ranges::any_of(params.logit_bias, [&](const auto& bias) {
      return bias.first == id && std::isinf(bias.second);
    });
  });
}

/// What must have ended it, or not.
void verify_end(const EngineCore& core, const History& before, SlowMatcher& matcher,
                const Generation& got, const DecodeParams& params) {
  if (cut_short(got) || params.max_tokens == 0) return;
  const bool complete = matcher.is_complete();
  const bool by_string = !got.ids.empty() && !params.stop.empty();
  const bool may_stop = by_string || (!got.ids.empty() && !params.stop_tokens.empty());
  const bool is_inside = got.finish == Finish::kStopInside;
  require(!complete || got.finish == Finish::kStop || (is_inside && by_string),
          "decode: its text was complete, and no stop");
  require(!is_inside || may_stop, "decode: stopped inside, and there was no stop");
  const bool is_accepting = matcher.is_accepting();
  if (got.finish == Finish::kStop) {
    require(complete || may_stop, "decode: stopped, and its text was not complete");
    require(is_accepting, "decode: a stop, and its text may not end there");
  }
  if (by_string && (is_inside || got.finish == Finish::kStop)) {
    const std::optional<bool> kept = may_end(core, before, got.text, params);
    require(!kept || is_inside != (is_accepting && *kept),
            "decode: stopped by a string, and what is left is not what its finish says");
  }
  require(got.finish != Finish::kDeadEnd || bans_all(matcher.allowed(), params),
          "decode: a dead end, and there was a way on");
}

}  // namespace

void verify_masks(Reference& reference, const std::string& name, const History& before,
                  const Generation& got, const DecodeParams& params) {
  const EngineCore& core = *core_of(reference.engine());
  std::optional<SlowMatcher> matcher = SlowMatcher::of(core, before, params.constraint);
  SlowDraws draws(reference, before, params);
  // Elsewhere draws are the device's, which may differ from the host's in the last place.
  const bool draws_on_host = core.backend->sampler() == nullptr;
  for (const Token id : got.ids) {
    require(!matcher->is_complete(), "decode: it went on when its text was complete");
    const TokenMask mask = matcher->allowed();
    ++reference.counts.masks_asked;
    if (!mask.allows(id)) {
      throw Violation(name + ": token " + std::to_string(id) +
                      " is none of those that the constraint allows:" + text_of(tokens_of(mask)));
    }
    if (const Token drawn = draws_on_host ? draws.next(mask) : id; drawn != id) {
      throw Violation(name + ": drew " + std::to_string(id) +
                      "; under a mask that was made slowly " + std::to_string(drawn) + " is drawn");
    }
    require(matcher->accept(id), "a token that is allowed is refused");
    draws.go_on(id);
  }
  verify_end(core, before, *matcher, got, params);
}

}  // namespace dendrite::fuzz
