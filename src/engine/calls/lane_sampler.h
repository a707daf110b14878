#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/branches/session_core.h"
#include "engine/calls/lane.h"

namespace dendrite {

/// How the lanes of one call draw: where the backend samples, on the device and within the step;
/// else on the host, from the distributions that the segments keep.
class LaneSampler {
 public:
  /// Throws Error for parameters out of range.
  LaneSampler(const SessionCore& session, const DecodeParams& params);

  const SamplerSettings& settings() const { return settings_; }
  /// Whether what is drawn depends on the lanes' `history`, ...
  bool wants_history() const { return settings_.looks_at_text(); }
  /// ... which is now as the tree has it.
  void read_history(Lane& lane) const DENDRITE_REQUIRES(kTreeLock);
  /// Before a step: what the step is to draw for the lane; null: nothing.
  Draw* prepare(Lane& lane) const;
  /// What the step after is to draw for a lane that the step draws for.
  const Draw* prepare_next(Lane& lane) const;
  bool on_device() const { return on_device_; }
  /// Where the likeliest tokens are wanted, too, they are told from whole rows.
  bool wants_rows() const { return params_.top_logprobs > 0; }
  /// What is drawn for the lane when it has so many tokens.
  Draw draw_of(const Lane& lane, std::int64_t length) const;
  /// The token that would be drawn for the lane behind so many more, if these were its logits and
  /// nothing changed them, with the `top` likeliest; none: nothing can be drawn. On the host.
  std::optional<ChosenToken> foresee(const Lane& lane, std::int64_t ahead,
                                     std::span<const float> logits, std::size_t top) const;
  /// Whether a draw waits for the token before it, beside its distribution.
  bool draws_wait() const { return settings_.changes_logits(); }
  /// What is changed about the lane's logits for the token after those of its history; the lane
  /// keeps it.
  LogitEdits edits_of(Lane& lane) const;
  /// The same for the token that comes after `path` as well, kept in `to`.
  struct OwnEdits {
    std::vector<LogitChange> changes;
    std::vector<Token> bans;
    LogitEdits view() const { return {changes, bans}; }
  };
  void edits_after(Lane& lane, std::span<const Token> path, OwnEdits& to) const;
  /// Whether tokens may be forbidden that the distribution would allow.
  bool bans_any() const;
  /// Whether the token is forbidden after the lane's history and `path`.
  bool is_banned(const Lane& lane, std::span<const Token> path, Token token) const;
  /// Shows the distributions of lanes, all of this call, to DecodeParams::on_logits: they are drawn
  /// from what that leaves. False: it threw, see error().
  bool show_logits(std::span<Lane* const> lanes) const DENDRITE_COMPUTES;
  bool has_hook() const { return params_.on_logits != nullptr; }
  /// What on_logits threw; null: nothing.
  std::exception_ptr error() const { return hook_ == nullptr ? nullptr : hook_->error; }
  /// On the host: the lane's token, from its logits; -1: there is none.
  void draw(Lane& lane, SamplerScratch& scratch) const;
  /// The lane's token is known: its log-prob and, when asked for, the likeliest ones, under the
  /// `lse` of its logits.
  void choose(Lane& lane, float logprob, double lse) const;

 private:
  /// What on_logits is shown, and what it said.
  struct Hook {
    std::vector<float> logits;  // [lanes, vocab]
    std::exception_ptr error;
  };

  double uniform_of(const Lane& lane, std::int64_t length) const;
  void add_bans_of(const Lane& lane, std::span<const Token> text, std::size_t generated,
                   std::vector<Token>& bans) const;
  bool may_not_end(const Lane& lane, std::size_t generated, Token token) const;

  const SessionCore& session_;
  EngineCore& engine_;
  const DecodeParams& params_;  // the call's
  SamplerSettings settings_;
  const std::vector<Token> eos_;  // of the model
  bool on_device_;                // the device draws
  std::unique_ptr<Hook> hook_;    // null: there is no on_logits
};

/// After a step, for lanes of any calls that have their `draw` or `logits`: sets `token` and
/// `chosen`.
void sample_lanes(EngineCore& engine, std::span<Lane* const> lanes) DENDRITE_COMPUTES;

/// Sampling parameters with the model's defaults filled in; checked.
SamplerSettings resolve(const DecodeParams& params, const EngineCore& engine);

}  // namespace dendrite
