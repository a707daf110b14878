#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dendrite/types.h"
#include "text/tokenizer.h"

struct dn_vocabulary;

namespace dendrite {

/// The tokens of a model as grammars see them: a trie of their bytes. Immutable; any threads.
class Vocabulary {
 public:
  /// Takes up to 2 s at 150,000 tokens. `size`: of the model's logits. `eos`: what may end a text.
  /// Error: the tokenizer's tokens do not join to text byte by byte.
  Vocabulary(const Tokenizer& tokenizer, std::int64_t size, std::span<const Token> eos);

  std::int64_t size() const { return size_; }
  bool is_end(Token token) const;
  /// Tokens of one byte each that spell a text: for a grammar as good as any others. nullopt: there
  /// are none for one of its bytes.
  std::optional<std::vector<Token>> spell(std::string_view text) const;
  /// For the grammar room only: the bridge's object.
  const dn_vocabulary* bridge() const { return handle_.get(); }

 private:
  std::shared_ptr<const dn_vocabulary> handle_;
  std::int64_t size_;
  std::vector<Token> eos_;
  std::array<Token, 256> bytes_;  // -1: there is none
};

}  // namespace dendrite
