#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "io/gguf_metadata.h"

namespace dendrite {

/// The tokens of a GGUF file, checked: each text stands once, ids of named ones are below their
/// number.
struct GgufVocabulary {
  enum class Kind : std::uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  std::vector<std::string_view> texts;  // by id
  std::vector<Kind> kinds;

  /// Throws Error naming the key: missing, of another length, a kind that there is not, a text that
  /// two tokens have.
  static GgufVocabulary read(const GgufMetadata& metadata);

  /// The token whose id is under `key`; none where there is no such key.
  std::optional<std::string_view> named(const GgufMetadata& metadata, std::string_view key) const;
};

/// Whether a byte of UTF-8 is the first of a character.
inline bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
}

/// What SentencePiece's BPE merges: all pairs of tokens that make one, the highest score first, of
/// equal scores those of lower ids. Throws Error where scores are missing or a token is too long.
std::vector<std::pair<std::string_view, std::string_view>> merges_by_score(
    const GgufMetadata& metadata, const GgufVocabulary& vocabulary);

}  // namespace dendrite
