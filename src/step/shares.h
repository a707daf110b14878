#pragma once

#include <cstdint>
#include <span>

namespace dendrite {

/// One of those who share the rows of a step.
struct Share {
  double weight = 1;
  std::int64_t wanted = 0;
  /// In: what earlier steps owe it, in rows. Out: what this one leaves owing. Less than one either
  /// way, so who has weight w of all weights W gets a row in every ceil(W / (w * rows)) steps, and
  /// over any number of steps no row less than rows * w / W of each.
  double credit = 0;
  std::int64_t rows = 0;  // out: what it gets
};

/// Splits `rows` by weight; what one does not want goes to the others, by weight as well (weighted
/// max-min fairness). Never more than is wanted.
void share_rows(std::span<Share> shares, std::int64_t rows);

}  // namespace dendrite
