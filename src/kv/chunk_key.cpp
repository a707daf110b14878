#include "kv/chunk_key.h"

#include <array>
#include <cstdio>
#include <type_traits>

#include "core/hash.h"

namespace dendrite {
namespace {

std::string to_hex(std::uint64_t number) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return digits.data();
}

}  // namespace

Sha256Digest chunk_content(std::string_view text) {
  return sha256(text);
}

Sha256Digest chunk_content(std::span<const Token> ids) {
  using namespace std::string_view_literals;
  Sha256 hash;
  hash.add("ids\0"sv);
  for (const Token id : ids) {
    const auto bits = static_cast<std::uint32_t>(id);
    const std::array bytes{static_cast<std::byte>(bits), static_cast<std::byte>(bits >> 8),
                           static_cast<std::byte>(bits >> 16), static_cast<std::byte>(bits >> 24)};
    hash.add(bytes);
  }
  return hash.digest();
}

std::uint64_t left_context_hash(std::span<const Token> tokens) {
  return hash_bytes(std::as_bytes(tokens));
}

std::string to_text(const ChunkKey& key) {
  return dendrite::to_hex(key.content) + '-' + to_hex(key.left) + '-' + to_hex(key.variant);
}

std::size_t ChunkKeyHash::operator()(const ChunkKey& key) const {
  static_assert(std::has_unique_object_representations_v<ChunkKey>);  // no padding
  return hash_bytes(std::as_bytes(std::span(&key, 1)));
}

}  // namespace dendrite
