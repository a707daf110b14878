#pragma once

#include <cstdint>
#include <string>

namespace dendrite {

/// How a model's weights bear a product that rounds what it multiplies. A CPU multiplies packed
/// weights as whole numbers and rounds the rows in front of them to 8 bits, 32 neighbours sharing a
/// scale: one large norm weight takes the bits of 31 others, and large weights of the norms of
/// queries and keys make more of every error. Told by the weights alone.
struct Compatibility {
  enum class Verdict : std::uint8_t {
    kCompatible,    ///< the score is above 0.8, and `largest` below 10
    kWarn,          ///< neither
    kIncompatible,  ///< the score is below 0.5
  };

  Verdict verdict = Verdict::kCompatible;  ///< the worst product's
  /// The worst product's: by how much its rounding errors are larger than with even norm weights,
  /// as its inverse. 1: no larger; 0.5: twice as large.
  double score = 1;
  double largest = 1;         ///< norm weight, as a multiple of its norm's typical (median) one
  std::string product{};      ///< the one of that score, by its first tensor; empty: all have 1
  std::int64_t products = 0;  ///< behind a norm; the others are not looked at
  std::int64_t warned = 0, incompatible = 0;
  /// Of the incompatible ones: which are therefore multiplied as if their weights were not packed.
  std::int64_t unrounded = 0;
};

/// "compatible", "warn", "incompatible"
const char* name_of(Compatibility::Verdict verdict);

}  // namespace dendrite
