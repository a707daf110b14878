#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "engine/branches/session_core.h"

// Branches that are no fork of another: of prompts and of texts.
namespace dendrite {

/// Throws Error for so many tokens, if they can never be computed. `what`: who has them.
void check_length(const EngineCore& engine, std::int64_t tokens, const char* what);
/// Of that, whether the model has positions for them.
void check_positions(const EngineCore& engine, std::int64_t tokens, const char* what);

/// Of PrefillOptions::salt.
Salt salt_of(std::string_view text);
/// Of a branch, which is not empty.
Salt salt_of(const Branch& branch) DENDRITE_EXCLUDES(kTreeLock);

/// At the longest prefix that somebody holds, or that another prompt under way will hold in a
/// moment: the two share its tokens, which are computed once. Of texts of this salt alone.
Tip known_prefix(EngineCore& engine, std::span<const Token> tokens, Salt salt)
    DENDRITE_REQUIRES(kTreeLock);

/// The branch is at a prefix of `tokens` that was known, and gets the rest; returns how long that
/// prefix is.
std::int64_t append_rest(BranchState& branch, std::span<const Token> tokens)
    DENDRITE_REQUIRES(kTreeLock);

/// The branch of a prompt: at the longest prefix of it that is known, with the rest appended.
/// Throws Error for a prompt that can never be computed.
Branch begin_prompt(SessionCore& session, std::span<const Token> tokens,
                    std::optional<std::uint64_t> stream, Salt salt) DENDRITE_EXCLUDES(kTreeLock);

/// A branch of these tokens to compute: at the first `common` of another, or where `known` allows
/// it at a longer prefix that somebody holds, all but the last token at most.
Branch begin_text(SessionCore& session, std::span<const Token> tokens, const BranchState* other,
                  std::int64_t common, bool known) DENDRITE_EXCLUDES(kTreeLock);

}  // namespace dendrite
