#pragma once

#include <optional>
#include <vector>

#include "dendrite/dendrite.h"
#include "fuzz/draws.h"
#include "fuzz/mirrors.h"

namespace dendrite::fuzz {

// What calls are asked for.

/// For a call on these branches: its own constraint goes only where none of them is under one.
DecodeParams draw_params(const Engine& engine, Draws& draws, const std::vector<Mirror*>& company);
/// A few continuations, some of which begin like others; of a branch under a constraint, some that
/// it takes.
std::vector<std::vector<Token>> draw_continuations(std::int64_t vocab, Draws& draws,
                                                   const Mirror& branch);
/// One of a few; nothing: free. Requires: the engine has a tokenizer.
std::optional<Constraint> draw_constraint(Draws& draws);
/// At most so many tokens that may follow, where the branch is under a constraint.
std::vector<Token> draw_allowed(const Mirror& branch, std::int64_t count, Draws& draws);

}  // namespace dendrite::fuzz
