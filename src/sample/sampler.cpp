#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "dendrite/error.h"
#include "sample/distribution.h"

namespace dendrite {
namespace {

template <typename T>
[[noreturn]] void refuse(const char* name, const T& got, const char* expected) {
  std::ostringstream text;
  text << "sampling parameter " << name << " is " << got << "; expected " << expected;
  throw Error(text.str());
}

/// A copy of the logits with the edits.
std::span<const float> edit(std::span<const float> logits, const LogitEdits& edits,
                            SamplerScratch& scratch) {
  scratch.logits.assign(logits.begin(), logits.end());
  for (const LogitChange& change : edits.changes) {
    float& value = scratch.logits[static_cast<std::size_t>(change.token)];
    value = change.of(value);
  }
  for (const Token id : edits.bans) {
    scratch.logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  return scratch.logits;
}

/// A NaN or -inf logit is never drawn.
bool is_drawable(float logit) {
  return logit > -std::numeric_limits<float>::infinity();
}

/// What may be drawn, in vocabulary order.
void fill_candidates(std::span<const float> logits, Mask mask, SamplerScratch& scratch) {
  scratch.candidates.clear();
  const auto add = [&](Token token) {
    const float value = logits[static_cast<std::size_t>(token)];
    if (is_drawable(value)) scratch.candidates.emplace_back(value, token);
  };
  if (mask.empty()) {
    for (std::size_t i = 0; i < logits.size(); ++i) add(static_cast<Token>(i));
  } else {
    for_each_allowed(mask, logits.size(), add);
  }
}

bool likelier(const std::pair<float, Token>& a, const std::pair<float, Token>& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

/// Fills `weights` with exp((value - max) / temperature) of the candidates; returns their sum.
double fill_weights(SamplerScratch& scratch, double temperature) {
  float max = scratch.candidates.front().first;
  for (const auto& candidate : scratch.candidates) max = std::max(max, candidate.first);
  scratch.weights.resize(scratch.candidates.size());
  double sum = 0;
  for (std::size_t i = 0; i < scratch.weights.size(); ++i) {
    scratch.weights[i] =
        std::exp((static_cast<double>(scratch.candidates[i].first) - max) / temperature);
    sum += scratch.weights[i];
  }
  return sum;
}

/// Keeps the smallest set of likeliest candidates whose probability reaches top_p; at least one.
void keep_top_p(SamplerScratch& scratch, const SamplerSettings& settings) {
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), likelier);
  const double sum = fill_weights(scratch, settings.temperature);
  double mass = 0;
  std::size_t kept = 0;
  while (kept < scratch.weights.size() && (kept == 0 || mass < settings.top_p * sum)) {
    mass += scratch.weights[kept++];
  }
  scratch.candidates.resize(kept);
}

void keep_min_p(SamplerScratch& scratch, const SamplerSettings& settings) {
  fill_weights(scratch, settings.temperature);  // the likeliest has weight 1
  std::size_t kept = 0;
  for (std::size_t i = 0; i < scratch.candidates.size(); ++i) {
    if (scratch.weights[i] >= settings.min_p) scratch.candidates[kept++] = scratch.candidates[i];
  }
  scratch.candidates.resize(kept);
}

}  // namespace

void check(const SamplerSettings& settings, std::int64_t vocab) {
  const auto finite = [](double value) { return std::isfinite(value); };
  if (!finite(settings.temperature) || settings.temperature < 0) {
    refuse("temperature", settings.temperature, "a finite number >= 0");
  }
  if (settings.top_k < 0) refuse("top_k", settings.top_k, "a whole number >= 0 (0: keep all)");
  if (!(settings.top_p > 0 && settings.top_p <= 1)) {
    refuse("top_p", settings.top_p, "a number in (0, 1]");
  }
  if (!(settings.min_p >= 0 && settings.min_p <= 1)) {
    refuse("min_p", settings.min_p, "a number in [0, 1]");
  }
  if (!finite(settings.repetition_penalty) || settings.repetition_penalty <= 0) {
    refuse("repetition_penalty", settings.repetition_penalty, "a finite number > 0");
  }
  if (!finite(settings.presence_penalty)) {
    refuse("presence_penalty", settings.presence_penalty, "a finite number");
  }
  if (!finite(settings.frequency_penalty)) {
    refuse("frequency_penalty", settings.frequency_penalty, "a finite number");
  }
  if (settings.min_tokens < 0) {
    refuse("min_tokens", settings.min_tokens, "a whole number >= 0");
  }
  for (const std::vector<Token>& word : settings.bad_words) {
    if (word.empty()) refuse("bad_word_ids", "an empty list", "one token or more");
    for (const Token id : word) {
      if (id < 0 || id >= vocab) refuse("bad_word_ids id", id, "an id of the vocabulary");
    }
  }
  for (const auto& [id, bias] : settings.logit_bias) {
    if (id < 0 || id >= vocab) refuse("logit_bias id", id, "an id of the vocabulary");
    if (!(bias < std::numeric_limits<float>::infinity())) {
      refuse("logit_bias value", bias, "a finite number or -inf");
    }
  }
}

Token sample(std::span<const float> logits, const LogitEdits& edits,
             const SamplerSettings& settings, Mask mask, double uniform, SamplerScratch& scratch) {
  if (!edits.empty()) logits = edit(logits, edits, scratch);
  if (settings.temperature == 0) {
    const Token likeliest = mask.empty() ? argmax(logits) : argmax(logits, mask);
    return likeliest >= 0 && is_drawable(logits[static_cast<std::size_t>(likeliest)]) ? likeliest
                                                                                      : -1;
  }

  fill_candidates(logits, mask, scratch);
  if (scratch.candidates.empty()) return -1;
  const auto k = static_cast<std::size_t>(settings.top_k);
  const bool cut = k > 0 && k < scratch.candidates.size();
  if (cut) {
    const auto nth = scratch.candidates.begin() + static_cast<std::ptrdiff_t>(k);
    std::nth_element(scratch.candidates.begin(), nth, scratch.candidates.end(), likelier);
    scratch.candidates.resize(k);
  }
  if (settings.top_p < 1) keep_top_p(scratch, settings);
  if (settings.min_p > 0) keep_min_p(scratch, settings);
  if (cut || settings.top_p < 1) {  // they lie by likelihood
    std::sort(scratch.candidates.begin(), scratch.candidates.end(),
              [](const auto& a, const auto& b) { return a.second < b.second; });
  }

  const double target = uniform * fill_weights(scratch, settings.temperature);
  double cumulative = 0;
  for (std::size_t i = 0; i < scratch.weights.size(); ++i) {
    cumulative += scratch.weights[i];
    if (target < cumulative) return scratch.candidates[i].second;
  }
  return scratch.candidates.back().second;  // rounding left `target` at the very end
}

}  // namespace dendrite
