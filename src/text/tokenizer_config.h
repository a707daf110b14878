#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/model_texts.h"

namespace dendrite {

/// What the files beside tokenizer.json say about it: tokenizer_config.json, and the older
/// special_tokens_map.json and added_tokens.json. All are optional. The rules are those of
/// transformers 5; where tokenizer.json and these files disagree on segmentation (add_bos_token),
/// tokenizer.json wins.
struct TokenizerConfig {
  /// The tokens a chat template may name, in order: {"bos_token", "<s>"}, {"eos_token", "</s>"}, …
  std::vector<std::pair<std::string, std::string>> named_tokens;
  /// JSON array for dn_tokenizer_open: tokens these files add to the tokenizer or change in it.
  std::string added_tokens_json = "[]";
  /// Whether decoding ends with clean_up_tokenization_spaces(); transformers ignores the wish for
  /// BPE models unless the second key, too, is set.
  bool clean_up_spaces = false;
  bool clean_up_spaces_of_bpe = false;
  /// chat_template as JSON (a string or a list of {name, template}), "null" if there is none.
  std::string chat_template_json = "null";

  /// Error: a text is not JSON, or a key has a wrong type.
  static TokenizerConfig read(const ModelTexts& texts);

  /// The value of "bos_token" and the like.
  [[nodiscard]] std::optional<std::string> named_token(const std::string& name) const;
};

}  // namespace dendrite
