#pragma once

#include <cstdint>
#include <string>

namespace dendrite::server {

/// So many random bytes of the system, as hex digits: ids that nobody can guess.
std::string random_hex(int bytes);
std::uint64_t random_bits();

}  // namespace dendrite::server
