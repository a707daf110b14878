#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace dendrite {

/// What a text in the making still holds back. Copying it forks the text; it allocates nothing
/// unless the tokenizer has byte fallback and more than 15 bytes in a row came as single bytes.
struct DetokState {
  std::string held;       // bytes (or, without incremental_ok(), ids) not given out yet
  std::uint32_t cut = 0;  // leading characters cut so far
  bool at_start = true;   // nothing was given out yet
  bool known = true;  // false: nothing of this is so, and Detokenizer::after is still to find it
};

/// Decodes one token at a time. For every list of ids:
///   push(s, ids[0]) + … + push(s, ids[n - 1]) + finish(s) == tokenizer.decode(ids, skip_special)
/// and what was given out never changes later. It is valid UTF-8 at any time.
///
/// Text is held back only where a later token can still change it: up to 3 bytes of a character
/// that is not finished; with byte fallback (Llama 2, Gemma) a whole run of byte tokens, since one
/// bad byte turns the run into U+FFFD. Costs O(bytes of the token). Immutable, safe to use from
/// several threads (each with its own state), cheap to copy.
class Detokenizer {
 public:
  explicit Detokenizer(Tokenizer tokenizer, bool skip_special = true);

  /// False if the tokenizer's decoder cannot be followed token by token (WordPiece, CTC, clean-up
  /// of spaces): then push() gives nothing and finish() gives the whole text, so that the sentence
  /// above still holds; to stream or to look for stop strings, call Tokenizer::decode on all ids.
  [[nodiscard]] bool incremental_ok() const { return incremental_ok_; }

  /// The text that `id` completes; often empty. Ids without a token add nothing.
  std::string push(DetokState& state, std::int32_t id) const;
  /// Writes ids to `out`, those of a text from place `begin` on.
  using ReadIds = std::function<void(std::size_t begin, std::span<std::int32_t> out)>;
  /// The state that pushing all `size` ids onto a fresh one leaves. Reads the few at both ends that
  /// it depends on; all of them without incremental_ok().
  DetokState after(std::size_t size, const ReadIds& read) const;
  /// The rest, at the end of the text. `state` then is at the start of another text.
  std::string finish(DetokState& state) const;

 private:
  bool is_tail(std::int32_t id, std::size_t& bytes) const;

  Tokenizer tokenizer_;
  bool skip_special_;
  bool incremental_ok_;
};

}  // namespace dendrite
