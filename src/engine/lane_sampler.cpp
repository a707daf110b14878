#include "engine/lane_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/rng.h"
#include "engine/lane_grammar.h"
#include "sample/distribution.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Below this many logits a step samples in the caller's thread.
constexpr std::int64_t kParallelLogits = 1 << 16;

/// (A bias that is infinite is -infinity.)
bool is_ban(const std::pair<Token, float>& bias) {
  return std::isinf(bias.second);
}

/// On the device: from distributions that segments keep, for lanes whose draw no step has made.
void draw_kept(EngineCore& engine, std::span<Lane* const> lanes) DENDRITE_COMPUTES {
  std::vector<Lane*> kept;
  std::vector<const LogitsRow*> rows;
  std::vector<Draw> draws;
  for (Lane* lane : lanes) {
    if (lane->draw.token >= 0 || lane->logits == nullptr) continue;
    kept.push_back(lane);
    rows.push_back(lane->logits.get());
    draws.push_back(lane->draw);
  }
  if (kept.empty()) return;
  engine.stepper->readout().draw_kept(rows, draws);
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i]->draw = draws[i];
}

}  // namespace

void sample_lanes(EngineCore& engine, std::span<Lane* const> lanes) {
  prepare_masks(engine, lanes);
  std::vector<Lane*> on_device;
  std::vector<Lane*> on_host;
  for (Lane* lane : lanes) {
    if (!lane->dead) (lane->sampler->on_device() ? on_device : on_host).push_back(lane);
  }
  draw_kept(engine, on_device);
  for (Lane* lane : on_device) {
    // (Where no logit can be drawn, a device may still name a token.)
    lane->token = lane->draw.logprob > kNever ? lane->draw.token : -1;
    if (lane->token >= 0) lane->sampler->choose(*lane, lane->draw.logprob, lane->draw.lse);
  }
  const std::int64_t count = std::ssize(on_host);
  const std::int64_t grain =
      count * engine.vocab() < kParallelLogits ? std::max<std::int64_t>(1, count) : 1;
  engine.workers->parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    SamplerScratch scratch;
    for (std::int64_t i = begin; i < end; ++i) {
      Lane& lane = *on_host[static_cast<std::size_t>(i)];
      lane.sampler->draw(lane, scratch);
    }
  });
  for (Lane* lane : lanes) lane->dead = lane->dead || lane->token < 0;
  if (engine.backend->sampler() != nullptr) {
    for (Lane* lane : on_host) {
      if (lane->dead) continue;
      const RowLogprobs read =
          engine.stepper->readout().log_probs(*lane->logits, std::span(&lane->token, 1));
      lane->sampler->choose(*lane, read.of_tokens.front(), read.lse);
    }
  }
  advance_matchers(engine, lanes, !engine.stepper->has_begun());
}

SamplerSettings resolve(const DecodeParams& params, const EngineCore& engine) {
  const GenerationDefaults& defaults = engine.config.generation;
  SamplerSettings settings;
  const double model_temperature =
      defaults.do_sample.value_or(false) ? defaults.temperature.value_or(1.0) : 0.0;
  settings.temperature = params.temperature.value_or(model_temperature);
  settings.top_k = params.top_k.value_or(defaults.top_k.value_or(0));
  settings.top_p = params.top_p.value_or(defaults.top_p.value_or(1.0));
  settings.min_p = params.min_p.value_or(defaults.min_p.value_or(0.0));
  settings.repetition_penalty =
      params.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0));
  settings.logit_bias = params.logit_bias;
  for (const Token banned : defaults.banned) settings.logit_bias.emplace_back(banned, kNever);
  check(settings, engine.vocab());
  return settings;
}

LaneSampler::LaneSampler(const SessionCore& session, const DecodeParams& params)
    : session_(session),
      engine_(*session.engine),
      params_(params),
      settings_(resolve(params, engine_)),
      on_device_(engine_.backend->sampler() != nullptr && !settings_.changes_logits()) {}

Draw* LaneSampler::prepare(Lane& lane) const {
  if (!on_device_) return nullptr;
  lane.draw = draw_of(lane, lane.length);
  // The likeliest tokens are told from the whole distribution, on the host.
  return draws_in_step() ? &lane.draw : nullptr;
}

const Draw* LaneSampler::prepare_next(Lane& lane) const {
  lane.next = draw_of(lane, lane.length + 1);
  return &lane.next;
}

double LaneSampler::uniform_of(const Lane& lane, std::int64_t length) const {
  return uniform_at(session_.options.seed, lane.branch->stream, static_cast<std::uint64_t>(length));
}

Draw LaneSampler::draw_of(const Lane& lane, std::int64_t length) const {
  Draw draw;
  draw.temperature = settings_.temperature;
  draw.top_k = settings_.top_k;
  draw.top_p = settings_.top_p;
  draw.min_p = settings_.min_p;
  draw.uniform = uniform_of(lane, length);
  return draw;
}

void LaneSampler::choose(Lane& lane, float logprob, double lse) const {
  lane.was_forced = lane.mask != nullptr && lane.mask->count() == 1;
  lane.chosen = {lane.token, logprob, {}};
  if (params_.top_logprobs <= 0) return;
  lane.chosen.top =
      top_logprobs(lane.logits->values, lse, static_cast<std::size_t>(params_.top_logprobs));
}

bool LaneSampler::bans_any() const {
  return std::ranges::any_of(settings_.logit_bias, is_ban);
}

bool LaneSampler::is_banned(Token token) const {
  return std::ranges::any_of(settings_.logit_bias,
                             [&](const auto& bias) { return bias.first == token && is_ban(bias); });
}

/// A pure function of the branch's logits, history, stream and length.
void LaneSampler::draw(Lane& lane, SamplerScratch& scratch) const {
  const std::span<const float> logits = lane.logits->values;
  const Mask mask = lane.mask != nullptr ? lane.mask->words() : Mask();
  lane.token = dendrite::sample(logits, lane.history, settings_, mask,
                                uniform_of(lane, lane.length), scratch);
  // Log-probs come from where all others do, so that they are the same to the bit.
  if (lane.token < 0 || engine_.backend->sampler() != nullptr) return;
  const double lse = log_sum_exp(logits);
  choose(lane, static_cast<float>(logits[static_cast<std::size_t>(lane.token)] - lse), lse);
}

}  // namespace dendrite
