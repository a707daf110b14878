#pragma once

#include <cstdint>
#include <span>

namespace dendrite {

/// One of those who share the rows of a step.
struct Share {
  double weight = 1;
  std::int64_t wanted = 0;
  /// In: what earlier steps owe it, in rows. Out: what this one leaves owing. Hardly more than one
  /// either way: who always wants rows, and has weight w of all weights W, never waits for more
  /// than 2 * ceil(W / (w * rows)) steps.
  double credit = 0;
  std::int64_t rows = 0;  // out: what it gets
};

/// Splits `rows` by weight; what one does not want goes to the others, by weight as well (weighted
/// max-min fairness). Never more than is wanted.
void share_rows(std::span<Share> shares, std::int64_t rows);

}  // namespace dendrite
