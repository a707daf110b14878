#pragma once

#include <vector>

#include "dendrite/dendrite.h"
#include "fuzz/draws.h"

namespace dendrite::fuzz {

// What calls are asked for.

DecodeParams draw_params(const Engine& engine, Draws& draws);
/// A few continuations, some of which begin like others.
std::vector<std::vector<Token>> draw_continuations(std::int64_t vocab, Draws& draws);

}  // namespace dendrite::fuzz
