#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/logit_change.h"
#include "sample/sampler.h"

namespace dendrite {

/// What settings change about logits after a text, kept as its tokens come: O(1) each.
class LogitChanges {
 public:
  /// After no tokens: logit_bias alone.
  explicit LogitChanges(const SamplerSettings& settings);

  /// The text goes on. `generated`: by a token that the presence and frequency penalties count.
  void add(Token token, bool generated);
  std::size_t tokens() const { return tokens_; }  // that were added
  std::span<const LogitChange> all() const { return changes_; }

 private:
  LogitChange& change_of(Token token);

  float repetition_;
  double presence_;
  double frequency_;
  std::size_t tokens_ = 0;
  std::vector<LogitChange> changes_;
  std::vector<std::int32_t> counts_;               // of generated ones, beside changes_
  std::unordered_map<Token, std::size_t> places_;  // in changes_
};

/// Appends the tokens that may not follow `text`: bans of logit_bias, and last tokens of bad words
/// whose tokens before that the text ends with.
void add_bans(const SamplerSettings& settings, std::span<const Token> text,
              std::vector<Token>& bans);
/// Whether the token is one of them.
bool is_banned(const SamplerSettings& settings, std::span<const Token> text, Token token);

}  // namespace dendrite
