#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dendrite/error.h"
#include "grammar/grammar.h"
#include "grammar/mask.h"

namespace dendrite {

/// A grammar cannot be followed any further: its work for one token came to a limit.
class GrammarLimit : public Error {
 public:
  using Error::Error;
};

/// How far a text has come in its grammar: the state after some tokens. A value: a copy is a
/// reference and a length. Copies share one track of states for as long as they go the same way,
/// and masks with it; who leaves the track gets one of its own then.
///
/// Different objects may be used from different threads at a time, one object from one thread.
/// What computes waits for others of the same family.
class Matcher {
 public:
  Matcher() = default;  ///< of no grammar
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  bool valid() const { return track_ != nullptr; }
  const std::shared_ptr<const Grammar>& grammar() const;
  /// Tokens so far.
  std::int64_t length() const { return length_ + (ended_ ? 1 : 0); }
  /// The state in which it was after the first `length` of them. O(1).
  Matcher at(std::int64_t length) const;
  /// Those with the same one compute one after the other: for who spreads them over threads.
  const void* family() const;

  // --- these compute, in microseconds mostly; they throw GrammarLimit
  /// False: the token is refused, and nothing has changed. Where the text may end, the model's
  /// end-of-sequence tokens end it.
  bool accept(Token token);
  /// How many of these it would accept.
  std::size_t count_accepted(std::span<const Token> tokens) const;
  /// What may come next; where the text may end, the model's end-of-sequence tokens, too.
  MaskRef mask();
  /// The token that must come next, where only one can.
  std::optional<Token> forced();
  /// Nothing but the end can follow.
  bool is_complete();
  /// The end may follow.
  bool is_accepting();

 private:
  struct Track;

  bool is_at_end() const;
  bool follow(Token token);
  bool accept_here(Token token);
  void leave_track();
  void start_again();
  template <typename Ask>
  auto ask_here(Ask ask);
  template <typename Ask>
  auto compute(Ask ask);

  std::shared_ptr<Track> track_;
  std::int64_t length_ = 0;  // of the track's tokens
  bool ended_ = false;       // and then came an end-of-sequence token
};

}  // namespace dendrite
