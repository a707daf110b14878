#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "server/recent_branches.h"

// Prompts that are a former conversation changed somewhere: `dendrite.reuse` is "composed".
namespace dendrite::server {

/// What a request allows.
struct ReuseComposed {
  /// Where the estimated error is above it, all that is not exact is computed.
  double max_error = std::numeric_limits<double>::infinity();
};

/// Of a branch of which nothing else is known: one part.
Composedness composedness_of(const Branch& branch);

/// What came of it.
struct ComposedPrompt {
  Branch branch{};  ///< empty: the prompt is to be computed as though nobody had asked
  Composedness how{};
  std::int64_t cached = 0;  ///< of its tokens: K and V were there, here or elsewhere
  std::string note{};       ///< for people: why nothing was moved; may be empty
};

/// A branch of these tokens, in random stream 0, with K and V of the recent branch that has the
/// most of them: kept as far as both begin alike, moved behind that, where this computes less than
/// going on from what is exact. Waits for calls of the session. Throws Error where the engine can't
/// move K and V of the model.
ComposedPrompt compose_prompt(Session& session, RecentBranches& recent, const BranchOwner& owner,
                              std::span<const Token> tokens, const ReuseComposed& wish,
                              const std::stop_token& cancel);

}  // namespace dendrite::server
