#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/model_texts.h"

struct dn_tokenizer;

namespace dendrite {

/// Text to token ids and back, as transformers does it from the same tokenizer.json.
/// Immutable and safe to use from several threads. A copy is one more handle on the same tokenizer.
/// Opening costs some tenths of a second at 150,000 tokens: do it once per model.
class Tokenizer {
 public:
  /// Opens a model's: tokenizer.json, and tokenizer_config.json if there.
  /// Error: there is no tokenizer.json, or a file is broken.
  static Tokenizer open(const ModelTexts& texts);
  /// The same, but nothing if there is no tokenizer.json: such a model takes ids only.
  static std::optional<Tokenizer> try_open(const ModelTexts& texts);

  /// The ids of `text`. Special tokens written in the text are parsed; with `add_special` the
  /// tokenizer's own (BOS, where it has one) come on top. Bytes that are not UTF-8 count as U+FFFD,
  /// one for each maximal part that starts a character but does not finish it (Python's
  /// bytes.decode(errors="replace"); transformers itself takes no bytes).
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, bool add_special) const;

  /// How many tokens in front encode_after() looks at, and one more, by which it knows that there
  /// are others.
  static constexpr std::int64_t kBefore = 9;
  /// The ids of `text` as what follows `before`: all ids in front, or the last kBefore or more of
  /// them. No tokenizer's mark of a beginning comes between: they are those of the whole text less
  /// those in front, wherever no token would be of both; else those of `text` as it stands inside a
  /// text. Behind nothing, or what `add_special` adds, `text` is a beginning.
  [[nodiscard]] std::vector<std::int32_t> encode_after(std::span<const std::int32_t> before,
                                                       std::string_view text) const;

  /// The text of `ids`, as transformers' decode() gives it. Always valid UTF-8. Ids without a token
  /// (the padding of a vocabulary) add nothing. Error: a negative id.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  /// What the token adds to a text, in its middle. Those of a text's ids in a row are its bytes,
  /// but for what is cut or left out at its beginning (a space), where decode() puts U+FFFD for
  /// bytes that are no UTF-8, and where it cleans spaces up. Empty: the id has no token.
  [[nodiscard]] std::string bytes_of(std::int32_t id) const;

  /// The largest id plus one. Not every id below has a token, and a model's logits may have more.
  [[nodiscard]] std::int32_t vocab_size() const;
  [[nodiscard]] std::optional<std::int32_t> token_to_id(std::string_view token) const;
  /// The token as the vocabulary writes it ("Ġthe", "▁the"), not its text.
  [[nodiscard]] std::optional<std::string> id_to_token(std::int32_t id) const;
  /// Whether decode() leaves it out with skip_special.
  [[nodiscard]] bool is_special(std::int32_t id) const;

  /// bos_token and eos_token of tokenizer_config.json, where they name a token. A model's own files
  /// (generation_config.json) say better what ends a generation.
  [[nodiscard]] std::optional<std::int32_t> bos_id() const { return bos_id_; }
  [[nodiscard]] std::optional<std::int32_t> eos_id() const { return eos_id_; }

  /// Whether decode() rewrites spaces before punctuation (" ." to "."), which some WordPiece
  /// tokenizers ask for.
  [[nodiscard]] bool cleans_up_spaces() const { return clean_up_spaces_; }

  /// For the text room only: the bridge's object.
  [[nodiscard]] const dn_tokenizer* bridge() const { return handle_.get(); }

 private:
  explicit Tokenizer(std::shared_ptr<const dn_tokenizer> handle) : handle_(std::move(handle)) {}

  std::shared_ptr<const dn_tokenizer> handle_;
  bool clean_up_spaces_ = false;
  std::optional<std::int32_t> bos_id_;
  std::optional<std::int32_t> eos_id_;
};

}  // namespace dendrite
