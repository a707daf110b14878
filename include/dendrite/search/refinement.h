#pragma once

#include "dendrite/search/common.h"

namespace dendrite {

/// What a critic says of a draft.
struct Critique {
  double value = 0;        ///< larger is better
  bool good = false;       ///< a solution: it ends the search
  std::string feedback{};  ///< appended before the draft is revised; may be empty
  /// Tokens, prompt included, that the revision keeps: it is a fork from there, and nothing up to
  /// there is computed again but, without feedback, the last token's row where it lies inside the
  /// draft (for the distribution that follows it). 0: all.
  std::int64_t keep = 0;
};

/// Self-refinement (Madaan et al. 2023, arXiv:2303.17651): draft, criticise, revise on a fork, up
/// to `rounds` revisions, and keep the best draft of all. Several chains of drafts go side by side,
/// one batch a round.
///
/// A constraint on the root is of each draft. A revision begins such a text anew behind feedback,
/// and behind a draft that ended; else it goes on with that of its draft, from what is kept of it.
/// (DecodeParams::constraint is of what one call decodes, whatever is kept.)
///
/// In the record a draft is a thought whose parent is the draft that it revises; its text is what
/// decoding added after what was kept and the feedback.
struct SelfRefinement {
  int rounds = 4;  ///< revisions after the first draft
  int drafts = 1;  ///< chains side by side
  DecodeParams draft{};
  std::optional<DecodeParams> revision{};  ///< unset: as `draft`
  /// One critique for each draft, by rules or by the model (on forks, or by score). Required.
  std::function<std::vector<Critique>(Session&, std::span<Branch> drafts)> criticise{};
  /// Whether a draft is a solution, besides Critique::good. Default: none is.
  std::function<bool(const Branch& branch, const std::string& text)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const SelfRefinement& strategy);

}  // namespace dendrite
