#pragma once

#include <span>
#include <string>
#include <vector>

#include "fuzz/reference.h"

namespace dendrite::fuzz {

// What calls give, against what the replay of a branch gives alone. All throw a Violation where it
// is not the same. `before`: the branch as the call found it.

/// Without what only the call itself had.
DecodeParams for_replay(DecodeParams params);
/// Whether it was ended from outside, not by itself.
bool cut_short(const Generation& generation);
/// " 3 5 7": for people.
std::string text_of(const std::vector<Token>& ids);

/// The tokens, text, end and log-probs of one branch of a decode call; of one that was cut short,
/// as far as it came. Returns what each token adds to the branch's log-prob.
std::vector<float> verify_generation(Reference& reference, const std::string& name,
                                     const History& before, const Generation& got,
                                     DecodeParams params);
/// What each token of a decode call adds to the branch's log-prob: nothing where its constraint
/// left no choice. Requires: log-probs.
std::vector<float> counted_logprobs(Reference& reference, const History& before,
                                    const Generation& replayed, const DecodeParams& params);
/// The tokens alone: all that is known of a call that did not return.
void verify_tokens(Reference& reference, const std::string& name, const History& before,
                   const std::vector<Token>& ids, DecodeParams params);
/// The same tokens come one call at a time: nothing about a draw depends on where its call began.
/// Requires: no stop strings, which are looked for in the text of one call.
void verify_step_by_step(Reference& reference, const History& before, const std::vector<Token>& ids,
                         DecodeParams params);
/// Each token of a decode call under a constraint is one that it allows, and the one that is drawn
/// from those; and the call ended where it had to. By a mask that was made token by token.
void verify_masks(Reference& reference, const std::string& name, const History& before,
                  const Generation& got, const DecodeParams& params);
/// Whether a constraint holds in such a call.
bool is_constrained(const History& before, const DecodeParams& params);
/// A fork of a branch, made when `told` had been told of the call that it is in, has these tokens,
/// and perhaps more where a constraint left no choice about them.
void check_fork(const Branch& fork, const History& before, const DecodeParams& params,
                const std::vector<Token>& told);
/// Forks that were made meanwhile have tokens of the result.
void check_forks(std::span<const std::vector<Token>> forks, const History& before,
                 const Generation& got);
/// What a result must be by itself. `told`, `shown`: by on_token.
void check_generation(const Generation& got, const History& before, const DecodeParams& params,
                      const std::vector<Token>& told, const std::string& shown);

/// When a race is over: `quorum` branches whose tokens add up to a multiple of `modulus`.
struct Rule {
  std::int64_t quorum = 0;
  std::int64_t modulus = 1;

  bool accepts(const Generation& generation) const {
    std::int64_t sum = 0;
    for (const Token id : generation.ids) sum += id;
    return sum % modulus == 0;
  }
};

/// Whom a race showed, in order: every branch decodes alone, then they are looked at by tokens and
/// place.
void verify_race(Reference& reference, std::span<const History> before,
                 std::span<const std::size_t> shown, DecodeParams params, const Rule& rule);

/// Each score, against the one that a replay gives for that continuation alone.
void verify_scores(Reference& reference, const std::string& name, const History& before,
                   std::span<const std::vector<Token>> asked, std::span<const Score> got);
/// Whether the scores were computed: all of a branch or none.
bool scored(std::span<const std::vector<Token>> asked, std::span<const Score> got);

}  // namespace dendrite::fuzz
