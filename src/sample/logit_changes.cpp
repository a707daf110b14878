#include "sample/logit_changes.h"

#include <algorithm>
#include <cmath>

namespace dendrite {

LogitChanges::LogitChanges(const SamplerSettings& settings)
    : repetition_(static_cast<float>(settings.repetition_penalty)),
      presence_(settings.presence_penalty),
      frequency_(settings.frequency_penalty) {
  for (const auto& [token, bias] : settings.logit_bias) {
    if (!std::isinf(bias)) change_of(token).bias += bias;
  }
}

LogitChange& LogitChanges::change_of(Token token) {
  const auto [place, is_new] = places_.try_emplace(token, changes_.size());
  if (is_new) {
    changes_.push_back({.token = token});
    counts_.push_back(0);
  }
  return changes_[place->second];
}

void LogitChanges::add(Token token, bool generated) {
  ++tokens_;
  const bool counts = generated && (presence_ != 0 || frequency_ != 0);
  if (repetition_ == 1 && !counts) return;
  LogitChange& change = change_of(token);
  change.repetition = repetition_;
  if (!counts) return;
  const std::int32_t count = ++counts_[static_cast<std::size_t>(&change - changes_.data())];
  change.minus = static_cast<float>(presence_ + frequency_ * count);
}

namespace {

bool ends_with(std::span<const Token> text, std::span<const Token> tokens) {
  return tokens.size() <= text.size() && std::ranges::equal(text.last(tokens.size()), tokens);
}

/// Calls use(token) for each that may not follow.
template <typename Use>
void for_each_ban(const SamplerSettings& settings, std::span<const Token> text, Use use) {
  for (const auto& [token, bias] : settings.logit_bias) {
    if (std::isinf(bias)) use(token);
  }
  for (const std::vector<Token>& word : settings.bad_words) {
    if (ends_with(text, std::span(word).first(word.size() - 1))) use(word.back());
  }
}

}  // namespace

void add_bans(const SamplerSettings& settings, std::span<const Token> text,
              std::vector<Token>& bans) {
  for_each_ban(settings, text, [&](Token token) { bans.push_back(token); });
}

bool is_banned(const SamplerSettings& settings, std::span<const Token> text, Token token) {
  bool banned = false;
  for_each_ban(settings, text, [&](Token other) { banned = banned || other == token; });
  return banned;
}

}  // namespace dendrite
