#include "fuzz/slow_matcher.h"

#include <memory>

namespace dendrite::fuzz {
namespace {

std::shared_ptr<const Grammar> compile_alone(const EngineCore& engine,
                                             const Constraint& constraint) {
  const std::shared_ptr<const Grammar> shared = engine.compiled(constraint);
  std::shared_ptr<const Vocabulary> vocabulary(shared, &shared->vocabulary());
  return std::make_shared<const Grammar>(std::move(vocabulary), constraint, 1);
}

}  // namespace

std::vector<Token> tokens_of(const TokenMask& mask) {
  std::vector<Token> tokens;
  for (Token token = 0; std::ssize(tokens) < mask.count(); ++token) {
    if (mask.allows(token)) tokens.push_back(token);
  }
  return tokens;
}

SlowMatcher::SlowMatcher(const EngineCore& engine, const Constraint& constraint,
                         std::span<const Token> tokens)
    : matcher_(compile_alone(engine, constraint)) {
  for (const Token token : tokens) {
    require(accept(token), "a branch has a token that its constraint refuses");
  }
}

std::optional<SlowMatcher> SlowMatcher::of(const EngineCore& engine, const History& history,
                                           const std::optional<Constraint>& of_call) {
  if (of_call) return SlowMatcher(engine, *of_call, {});
  const Constraint* constraint = history.spans.constraint();
  if (constraint == nullptr) return std::nullopt;
  const auto from = static_cast<std::size_t>(history.spans.all().back().from);
  return SlowMatcher(engine, *constraint, std::span(history.tokens).subspan(from));
}

TokenMask SlowMatcher::allowed() {
  std::vector<std::uint32_t> words(static_cast<std::size_t>((vocab() + 31) / 32));
  const auto add = [&words](Token token) {
    words[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
  };
  if (const std::optional<Token> forced = matcher_.forced()) {
    require(asks(*forced), "the only token that may come is refused");
    add(*forced);
  } else {
    for (Token token = 0; token < vocab(); ++token) {
      if (asks(token)) add(token);
    }
  }
  return TokenMask(std::move(words));
}

bool SlowMatcher::leaves_one() {
  if (matcher_.forced()) return true;
  int found = 0;
  for (Token token = 0; token < vocab() && found < 2; ++token) found += asks(token) ? 1 : 0;
  return found == 1;
}

}  // namespace dendrite::fuzz
