#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dendrite/types.h"
#include "engine/branches/engine_core.h"
#include "fuzz/reference.h"
#include "grammar/matcher.h"

namespace dendrite::fuzz {

/// What a mask allows, in ascending order.
std::vector<Token> tokens_of(const TokenMask& mask);

/// How far a text has come in its constraint, found out the slow, sure way: by a grammar that was
/// compiled for it alone, goes forward only, and is asked about one token at a time.
class SlowMatcher {
 public:
  /// After these tokens. Throws a Violation where the constraint refuses one.
  SlowMatcher(const EngineCore& engine, const Constraint& constraint,
              std::span<const Token> tokens);
  /// Of a branch; nullopt: it is free. `of_call`: what constrains it in one call, from there on.
  static std::optional<SlowMatcher> of(const EngineCore& engine, const History& history,
                                       const std::optional<Constraint>& of_call = {});

  /// False: the token is refused, and nothing has changed.
  bool accept(Token token) { return matcher_.accept(token); }
  std::size_t count_accepted(std::span<const Token> tokens) const {
    return matcher_.count_accepted(tokens);
  }
  bool is_complete() { return matcher_.is_complete(); }
  bool is_accepting() { return matcher_.is_accepting(); }
  /// Tokens of one byte each that spell a text, if there are.
  std::optional<std::vector<Token>> spell(std::string_view text) const {
    return matcher_.grammar()->vocabulary().spell(text);
  }
  /// What may come next, every token asked for by itself. Only one where that is how a tokenizer
  /// writes what must come, though others might spell it, too.
  TokenMask allowed();
  /// Whether only one token may come next.
  bool leaves_one();
  /// The grammar's own word for what allowed() finds out: to choose what to try.
  MaskRef quick_mask() { return matcher_.mask(); }

 private:
  bool asks(Token token) const { return matcher_.count_accepted(std::span(&token, 1)) == 1; }
  Token vocab() const { return static_cast<Token>(matcher_.grammar()->vocabulary().size()); }

  Matcher matcher_;
};

}  // namespace dendrite::fuzz
