#pragma once

#include "dendrite/dendrite.h"

namespace dendrite::bench {

/// Weights that one step reads. The embedding counts only where it is the output matrix, too.
std::int64_t weight_bytes_read(const Engine& engine);

/// Operations of one row of a step with its logits, on a text of so many tokens.
double flop_of_row(const Engine& engine, std::int64_t text);

}  // namespace dendrite::bench
