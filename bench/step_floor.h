#pragma once

#include "dendrite/dendrite.h"

namespace dendrite::bench {

/// Weights that a step of so many rows reads. The embedding counts only where it is the output
/// matrix, too. Of a mixture those of the experts that rows are expected to take, by chance, where
/// all parameters take the same number of bytes.
double weight_bytes_read(const Engine& engine, std::int64_t rows);

/// Operations of one row of a step with its logits, on a text of so many tokens.
double flop_of_row(const Engine& engine, std::int64_t text);

}  // namespace dendrite::bench
