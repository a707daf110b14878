#pragma once

#include "dendrite/search/common.h"

namespace dendrite {

/// Forks and joins that the model itself asks for (adaptive parallel decoding: Liu et al. 2024,
/// arXiv:2401.06761; Pan et al. 2025, arXiv:2504.15466; Yang et al. 2025, arXiv:2506.09991). Where
/// its text opens a fork, children go on from there, side by side; each ends where it says so or at
/// a limit; then they are joined (Session::join) and the text goes on behind all of them. Rounds:
/// all that can decode does so in one batch, until each has opened a fork or ended.
///
/// In the record a thought is what was decoded at one go: by the text up to a fork, by a child, by
/// the text behind a join. That one's parent is the first child, whose path it continues, and
/// `joined` has all of them. A child that ended is kept.
///
/// The joined context is the first child's, then what each other child added to the fork's, in the
/// order of the children. A constraint on the root is of that text: a child goes on from the fork
/// under it, and behind a join it is matched over what the others said as well. So its grammar has
/// to allow one child after the other, with what `join` puts between and after them. Where it
/// refuses, the search ends with kDeadEnd.
struct ForkJoin {
  /// What opens a fork and what ends a child: a text, or one of these tokens (those that the
  /// tokenizer calls special have no text). At least one way to open is required.
  std::string open{};
  std::vector<Token> open_tokens{};
  std::string close{};
  std::vector<Token> close_tokens{};

  int children = 4;  ///< a fork; they differ by what they draw, so not at temperature 0
  /// What each child begins with, one text a child, from the branch that opens the fork and the
  /// text that it decoded last, such as a plan. None: the text goes on without children. Default:
  /// `children` empty texts.
  std::function<std::vector<std::string>(const Branch& branch, const std::string& text)> begin{};
  int max_forks = 8;  ///< in all; what opens more is text like any other
  int nesting = 1;    ///< forks inside of each other; 1: a child opens none

  /// max_tokens: of the text that forks, without its children. Stops and constraint are those of
  /// each text that is decoded at one go; a stop of its own ends it.
  DecodeParams trunk{};
  DecodeParams child{};  ///< max_tokens: of one child, without its own children
  /// How children are joined. A child that did not end by `close` (or the first of close_tokens)
  /// gets it appended, without its end-of-sequence token. Of every child but the first, the first
  /// `repair.first` tokens are computed again behind the others: by default all of those with up to
  /// 32, of which nothing is moved. With short children a smaller repair is faster, and less exact.
  JoinParams join{};
  /// Asked of the whole text's branch at its end, with what was decoded last. Default: it is none.
  std::function<bool(const Branch& branch, const std::string& text)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
/// The branch at the end of the text; `joins` has what each join was composed of. Cut short: the
/// text that forks, up to the last fork that was not joined; the same at a dead end. Throws Error
/// for parameters out of range, and what Session::join throws.
SearchResult run(Session& session, Branch root, const ForkJoin& strategy);

}  // namespace dendrite
