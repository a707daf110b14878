#include "grammar/vocabulary.h"

#include <algorithm>

#include "dendrite/error.h"
#include "dendrite_bridge.h"

namespace dendrite {

Vocabulary::Vocabulary(const Tokenizer& tokenizer, std::int64_t size, std::span<const Token> eos)
    : size_(size), eos_(eos.begin(), eos.end()) {
  dn_vocabulary* handle = nullptr;
  if (dn_vocabulary_open(tokenizer.bridge(), static_cast<std::int32_t>(size), eos_.data(),
                         eos_.size(), &handle) < DN_OK) {
    throw ConstraintError(std::string("constraint: ") + dn_last_error());
  }
  handle_ = {handle, dn_vocabulary_free};
}

bool Vocabulary::is_end(Token token) const {
  return std::ranges::find(eos_, token) != eos_.end();
}

}  // namespace dendrite
