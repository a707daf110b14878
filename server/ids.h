#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dendrite::server {

/// So many random bytes of the system, as hex digits: ids that nobody can guess.
std::string random_hex(int bytes);
std::uint64_t random_bits();

/// 64-bit FNV-1a, for what is compared and not guessed; and its 16 hex digits.
std::uint64_t hash_of(std::string_view text);
std::string hash_hex(std::string_view text);

}  // namespace dendrite::server
