#pragma once

#include <cstdint>
#include <memory>
#include <span>

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
  /// For the grammar room only: the bridge's object.
  const dn_vocabulary* bridge() const { return handle_.get(); }

 private:
  std::shared_ptr<const dn_vocabulary> handle_;
  std::int64_t size_;
  std::vector<Token> eos_;
};

}  // namespace dendrite
