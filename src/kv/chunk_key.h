#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/sha256.h"
#include "dendrite/types.h"

namespace dendrite {

/// What a chunk's K and V depend on: what it says, what stands left of it, and who computes it.
/// Equal keys name the same chunk, but for a collision of `left`, or of a text that looks like ids
/// (chunk_content): who looks one up compares the tokens, too.
struct ChunkKey {
  Sha256Digest content{};     // of the text or ids, chunk_content
  std::uint64_t left = 0;     // of the tokens before it, left_context_hash
  std::uint64_t variant = 0;  // of the model, the type of K and V, and what else changes their bits

  bool operator==(const ChunkKey&) const = default;
};

/// The content of a chunk given as text, normalised (normalise_chunk): SHA-256 of its bytes.
Sha256Digest chunk_content(std::string_view text);
/// ... as ids: SHA-256 of "ids", a zero byte, and each id as 32 bits, the lowest byte first.
Sha256Digest chunk_content(std::span<const Token> ids);

/// Of the tokens that a chunk is computed behind. Not the same on machines of other byte order.
std::uint64_t left_context_hash(std::span<const Token> tokens);

/// For people: content, left and variant in hexadecimal digits, with '-' between.
std::string to_text(const ChunkKey& key);

/// For tables.
struct ChunkKeyHash {
  std::size_t operator()(const ChunkKey& key) const;
};

}  // namespace dendrite
