#include "engine/calls/lane_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "core/rng.h"
#include "dendrite/error.h"
#include "engine/calls/lane_grammar.h"
#include "sample/distribution.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Below this many logits a step samples in the caller's thread.
constexpr std::int64_t kParallelLogits = 1 << 16;

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

/// To the function of each call that has one. Lanes of one that threw are not drawn for.
void show_all_logits(std::span<Lane* const> lanes) DENDRITE_COMPUTES {
  std::vector<Lane*> shown;
  for (Lane* lane : lanes) {
    lane->shown = {};
    if (!lane->dead && lane->sampler->has_hook()) shown.push_back(lane);
  }
  std::ranges::stable_sort(shown, {}, [](const Lane* lane) {
    return std::pair(reinterpret_cast<std::uintptr_t>(lane->sampler), lane->index);
  });
  for (auto first = shown.begin(); first != shown.end();) {
    const LaneSampler* const sampler = (*first)->sampler;
    const auto end = std::find_if(first, shown.end(),
                                  [&](const Lane* lane) { return lane->sampler != sampler; });
    if (!sampler->show_logits(std::span(first, end))) {
      std::for_each(first, end, [](Lane* lane) { lane->dead = true; });
    }
    first = end;
  }
}

}  // namespace

void sample_lanes(EngineCore& engine, std::span<Lane* const> lanes) {
  prepare_masks(engine, lanes);
  show_all_logits(lanes);
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

namespace {

/// As it stands inside a text, behind a space, and at a beginning.
void add_bad_word(const std::string& text, const EngineCore& engine,
                  std::vector<std::vector<Token>>& words) {
  const Tokenizer& tokenizer = engine.require_tokenizer();
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  const std::string bare = begin == text.size() ? text : text.substr(begin);
  if (bare.empty()) throw Error("decode: a bad word is empty; expected some text");
  // (What is before it is text of its own to every tokenizer: nothing merges with it.)
  const std::vector<Token> line = tokenizer.encode("\n", false);
  const auto add = [&](std::vector<Token> ids) {
    if (ids.empty() || std::ranges::find(words, ids) != words.end()) return;
    words.push_back(std::move(ids));
  };
  add(tokenizer.encode_after(line, bare));
  add(tokenizer.encode_after(line, " " + bare));
  add(tokenizer.encode(bare, false));
}

}  // namespace

SamplerSettings resolve(const DecodeParams& params, const EngineCore& engine) {
  const GenerationDefaults& defaults = engine.model_info.generation;
  SamplerSettings settings;
  const double model_temperature =
      defaults.do_sample.value_or(false) ? defaults.temperature.value_or(1.0) : 0.0;
  settings.temperature = params.temperature.value_or(model_temperature);
  settings.top_k = params.top_k.value_or(defaults.top_k.value_or(0));
  settings.top_p = params.top_p.value_or(defaults.top_p.value_or(1.0));
  settings.min_p = params.min_p.value_or(defaults.min_p.value_or(0.0));
  settings.repetition_penalty =
      params.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0));
  settings.presence_penalty =
      params.presence_penalty.value_or(defaults.presence_penalty.value_or(0.0));
  settings.frequency_penalty =
      params.frequency_penalty.value_or(defaults.frequency_penalty.value_or(0.0));
  settings.logit_bias = params.logit_bias;
  for (const Token banned : defaults.banned) settings.logit_bias.emplace_back(banned, kNever);
  settings.bad_words = params.bad_word_ids;
  settings.bad_words.insert(settings.bad_words.end(), defaults.bad_words.begin(),
                            defaults.bad_words.end());
  for (const std::string& word : params.bad_words) add_bad_word(word, engine, settings.bad_words);
  settings.min_tokens = params.min_tokens.value_or(defaults.min_new_tokens.value_or(0));
  if (settings.min_tokens > 0) {
    settings.no_ends = params.stop_tokens;
    settings.no_eos = !params.ignore_eos;
  }
  settings.seed = params.seed;
  check(settings, engine.vocab());
  return settings;
}

LaneSampler::LaneSampler(const SessionCore& session, const DecodeParams& params)
    : session_(session),
      engine_(*session.engine),
      params_(params),
      settings_(resolve(params, engine_)),
      eos_(engine_.model_info.eos),
      on_device_(engine_.backend->sampler() != nullptr && !params.on_logits),
      hook_(params.on_logits ? std::make_unique<Hook>() : nullptr) {}

void LaneSampler::read_history(Lane& lane) const {
  const KvTree& tree = *engine_.tree;
  const std::int64_t length = tree.length(lane.branch->tip);
  const std::int64_t known = std::min(std::ssize(lane.history), length);
  lane.history.resize(static_cast<std::size_t>(length));
  tree.copy_tokens(lane.branch->tip, known, length, lane.history.data() + known);
}

LogitEdits LaneSampler::edits_of(Lane& lane) const {
  if (!settings_.changes_logits()) return {};
  if (!lane.changes) lane.changes.emplace(settings_);
  for (std::size_t i = lane.changes->tokens(); i < lane.history.size(); ++i) {
    lane.changes->add(lane.history[i], static_cast<std::int64_t>(i) >= lane.branch->prompt_length);
  }
  lane.bans.clear();
  add_bans_of(lane, lane.history, lane.out.ids.size(), lane.bans);
  return {lane.changes->all(), lane.bans};
}

void LaneSampler::edits_after(Lane& lane, std::span<const Token> path, OwnEdits& to) const {
  edits_of(lane);
  LogitChanges changes = *lane.changes;
  for (const Token token : path) changes.add(token, true);
  to.changes.assign(changes.all().begin(), changes.all().end());
  std::vector<Token> text;
  if (wants_history()) text = lane.history;
  text.insert(text.end(), path.begin(), path.end());
  add_bans_of(lane, text, lane.out.ids.size() + path.size(), to.bans);
}

/// Whether the token would end the lane too early, after so many of the call.
bool LaneSampler::may_not_end(const Lane& lane, std::size_t generated, Token token) const {
  if (static_cast<std::int64_t>(generated) >= settings_.min_tokens) return false;
  const auto is_one_of = [&](const std::vector<Token>& tokens) {
    return std::ranges::find(tokens, token) != tokens.end();
  };
  // (An end-of-sequence token ends a constrained text in any case.)
  return is_one_of(settings_.no_ends) ||
         ((settings_.no_eos || lane.matcher.valid()) && is_one_of(eos_));
}

void LaneSampler::add_bans_of(const Lane& lane, std::span<const Token> text, std::size_t generated,
                              std::vector<Token>& bans) const {
  add_bans(settings_, text, bans);
  if (settings_.min_tokens == 0) return;
  for (const auto* tokens : {&settings_.no_ends, &eos_}) {
    std::ranges::copy_if(*tokens, std::back_inserter(bans),
                         [&](Token token) { return may_not_end(lane, generated, token); });
  }
}

Draw* LaneSampler::prepare(Lane& lane) const {
  if (!on_device_) return nullptr;
  lane.draw = draw_of(lane, lane.length);
  lane.draw.edits = edits_of(lane);
  return &lane.draw;
}

const Draw* LaneSampler::prepare_next(Lane& lane) const {
  lane.next = draw_of(lane, lane.length + 1);
  return &lane.next;
}

double LaneSampler::uniform_of(const Lane& lane, std::int64_t length) const {
  return uniform_at(settings_.seed.value_or(session_.options.seed), lane.branch->stream,
                    static_cast<std::uint64_t>(length));
}

Draw LaneSampler::draw_of(const Lane& lane, std::int64_t length) const {
  Draw draw;
  draw.temperature = settings_.temperature;
  draw.top_k = settings_.top_k;
  draw.top_p = settings_.top_p;
  draw.min_p = settings_.min_p;
  draw.wants_row = wants_rows();
  draw.uniform = uniform_of(lane, length);
  return draw;
}

std::optional<ChosenToken> LaneSampler::foresee(const Lane& lane, std::int64_t ahead,
                                                std::span<const float> logits,
                                                std::size_t top) const {
  SamplerScratch scratch;
  const double uniform = uniform_of(lane, lane.length + ahead);
  const Token token = sample(logits, {}, settings_, {}, uniform, scratch);
  if (token < 0) return std::nullopt;
  const double lse = log_sum_exp(logits);
  const double logit = logits[static_cast<std::size_t>(token)];
  return ChosenToken{token, static_cast<float>(logit - lse), top_logprobs(logits, lse, top)};
}

void LaneSampler::choose(Lane& lane, float logprob, double lse) const {
  lane.was_forced = lane.mask != nullptr && lane.mask->count() == 1;
  lane.chosen = {lane.token, logprob, {}};
  if (params_.top_logprobs <= 0) return;
  lane.chosen.top =
      top_logprobs(lane.logits->values, lse, static_cast<std::size_t>(params_.top_logprobs));
}

bool LaneSampler::bans_any() const {
  const auto is_ban = [](const auto& bias) { return std::isinf(bias.second); };
  return has_hook() || settings_.min_tokens > 0 || !settings_.bad_words.empty() ||
         std::ranges::any_of(settings_.logit_bias, is_ban);
}

bool LaneSampler::is_banned(const Lane& lane, std::span<const Token> path, Token token) const {
  if (!bans_any()) return false;
  std::vector<Token> text;
  if (!settings_.bad_words.empty()) text = lane.history;
  text.insert(text.end(), path.begin(), path.end());
  return dendrite::is_banned(settings_, text, token) ||
         may_not_end(lane, lane.out.ids.size() + path.size(), token);
}

bool LaneSampler::show_logits(std::span<Lane* const> lanes) const {
  const auto vocab = static_cast<std::size_t>(engine_.vocab());
  hook_->logits.resize(lanes.size() * vocab);
  std::vector<LogitsBatch::Row> rows;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Lane& lane = *lanes[i];
    const std::span<float> row = std::span(hook_->logits).subspan(i * vocab, vocab);
    std::ranges::copy(lane.logits->values, row.begin());
    lane.shown = row;
    rows.push_back({lane.branch->id, lane.index, lane.out.ids, row});
  }
  try {
    params_.on_logits({rows, hook_->logits});
  } catch (...) {
    hook_->error = std::current_exception();
  }
  return hook_->error == nullptr;
}

/// A pure function of the branch's logits, history, stream and length, and of what on_logits did.
void LaneSampler::draw(Lane& lane, SamplerScratch& scratch) const {
  const std::span<const float> logits = lane.logits->values;
  const Mask mask = lane.mask != nullptr ? lane.mask->words() : Mask();
  lane.token = dendrite::sample(lane.shown.empty() ? logits : lane.shown, edits_of(lane), settings_,
                                mask, uniform_of(lane, lane.length), scratch);
  // Log-probs come from where all others do, so that they are the same to the bit.
  if (lane.token < 0 || engine_.backend->sampler() != nullptr) return;
  const double lse = log_sum_exp(logits);
  choose(lane, static_cast<float>(logits[static_cast<std::size_t>(lane.token)] - lse), lse);
}

}  // namespace dendrite
