#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

/// Which tokens may come next: bit t % 32 of word t / 32 is token t's.
class TokenMask {
 public:
  explicit TokenMask(std::vector<std::uint32_t> words);

  std::span<const std::uint32_t> words() const { return words_; }
  bool allows(Token token) const {
    const auto t = static_cast<std::size_t>(token);
    return (words_[t / 32] >> (t % 32) & 1) != 0;
  }
  std::int64_t count() const { return count_; }

 private:
  std::vector<std::uint32_t> words_;
  std::int64_t count_ = 0;
};

using MaskRef = std::shared_ptr<const TokenMask>;

}  // namespace dendrite
