#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/logits_sampler.h"
#include "engine/branches/branch_state.h"
#include "engine/calls/text_watch.h"
#include "sample/logit_changes.h"
#include "step/turns.h"

namespace dendrite {

class LaneSampler;
struct LogitsRow;

/// One branch on its way through a decode call.
struct Lane {
  Lane(BranchState* state, const LaneSampler& draws, std::size_t place, TextWatch text)
      : branch(state), sampler(&draws), index(place), watch(std::move(text)) {}

  BranchState* branch;  // where the tokens go: if they are drawn ahead, Ahead::state
  const LaneSampler* sampler;
  std::size_t index;       // in the caller's span
  Ahead* ahead = nullptr;  // of a lane that draws ahead
  TextWatch watch;
  Generation out;
  Draw draw;           // of this step, where the device samples
  Draw next;           // ... and of the one after
  Token token = 0;     // drawn in this step
  ChosenToken chosen;  // ... and its log-probs, when asked for
  std::shared_ptr<const LogitsRow> logits;
  std::span<float> shown;      // what DecodeParams::on_logits made of them; empty: it is not asked
  std::vector<Token> history;  // all tokens so far, when what may be drawn depends on them
  std::optional<LogitChanges> changes{};  // by `history`
  std::vector<Token> bans;                // of the token to come
  std::int64_t length = 0;                // tokens so far
  Turn turn;
  bool fresh = true;     // it has had no row in this call
  bool stopped = false;  // by a stop string
  /// Before a token that ends a constrained text: it is no part of it, even where the tokenizer
  /// gives it a text.
  std::optional<DetokState> before_end{};
  bool taken = false;     // its token of this step needs no step: drawn ahead, or forced
  bool in_tree = false;   // and the branch has it already
  std::int64_t rows = 0;  // computed since the last token
  // Under a constraint:
  Matcher matcher;            // after all tokens so far; not valid: there is none
  MaskRef mask;               // of the token to come, once it was made
  std::vector<Token> forced;  // that must follow, the last one first; the matcher is after these
  bool skips_forced = false;  // such tokens take no step
  bool was_forced = false;    // the last token was one
  bool complete = false;      // nothing but the end can follow the matcher
  bool dead = false;          // nothing can be drawn, or there is no telling
  std::vector<std::size_t> text_ends;  // of the call's text after each token, to look for stops
};

}  // namespace dendrite
