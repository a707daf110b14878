#include "engine/engine_core.h"

#include "dendrite/error.h"
#include "engine/draft_provider.h"
#include "engine/known_compositions.h"

namespace dendrite {

EngineCore::~EngineCore() {
  suffix_block_provider.reset();  // asks the other
  block_provider.reset();         // its tips are the tree's
  // (Their tips are the tree's.)
  if (prefix_index != nullptr) prefix_index->clear();
  if (compositions != nullptr) compositions->clear();
  if (chunks != nullptr) chunks->clear();
}

const Tokenizer& EngineCore::require_tokenizer() const {
  if (!tokenizer) {
    throw Error(info.model_path + ": has no tokenizer.json; expected one for text, or token ids");
  }
  return *tokenizer;
}

std::shared_ptr<const Grammar> EngineCore::compiled(const Constraint& constraint) const {
  require_tokenizer();
  return grammars->compiled(constraint);
}

void EngineCore::check_tokens(std::span<const Token> tokens) const {
  for (const Token token : tokens) {
    if (token < 0 || token >= vocab()) {
      throw Error("token id " + std::to_string(token) +
                  " is outside the vocabulary; expected 0 to " + std::to_string(vocab() - 1));
    }
  }
}

std::vector<Token> EngineCore::chunk_stub() const {
  constexpr std::size_t kTokens = 4;
  std::vector<Token> one;
  if (config.bos) {
    one = {static_cast<Token>(*config.bos)};
  } else if (tokenizer) {
    one = tokenizer->encode("\n", false);
  }
  std::vector<Token> stub;
  for (std::size_t i = 0; i < kTokens; ++i) stub.insert(stub.end(), one.begin(), one.end());
  return stub;
}

}  // namespace dendrite
