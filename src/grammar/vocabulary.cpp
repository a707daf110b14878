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
  bytes_.fill(-1);
  const dn_token_table table = dn_tokenizer_table(tokenizer.bridge());
  for (Token id = 0; id < std::min<std::int64_t>(table.size, size); ++id) {
    const bool is_text = (table.flags[id] & (DN_TOKEN_KNOWN | DN_TOKEN_SPECIAL)) == DN_TOKEN_KNOWN;
    if (!is_text || table.offsets[id + 1] - table.offsets[id] != 1) continue;
    Token& known = bytes_[table.bytes[table.offsets[id]]];
    if (known < 0) known = id;
  }
}

bool Vocabulary::is_end(Token token) const {
  return std::ranges::find(eos_, token) != eos_.end();
}

std::optional<std::vector<Token>> Vocabulary::spell(std::string_view text) const {
  std::vector<Token> tokens;
  for (const char byte : text) {
    tokens.push_back(bytes_[static_cast<unsigned char>(byte)]);
    if (tokens.back() < 0) return std::nullopt;
  }
  return tokens;
}

}  // namespace dendrite
