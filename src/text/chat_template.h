#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/model_texts.h"

struct dn_template;

namespace dendrite {

struct RenderOptions {
  /// Whether the text ends with the opening of the assistant's turn.
  bool add_generation_prompt = true;
  /// JSON array of tools (function schemas as objects); empty or "null": none.
  std::string_view tools_json = {};
  /// JSON object with further variables ("enable_thinking", "documents"); empty: none. They win
  /// over the special tokens of the tokenizer.
  std::string_view extra_json = {};
};

/// Renders conversations with a model's own chat template, byte for byte as transformers'
/// apply_chat_template(tokenize=False) does. Immutable and safe to use from several threads; a copy
/// is one more handle on the same templates.
///
/// The text already holds BOS where the template writes one: encode it without special tokens.
class ChatTemplate {
 public:
  /// Opens a model's template. In this order, the first that exists:
  /// chat_template.jinja with additional_chat_templates/*.jinja; "chat_template" of
  /// tokenizer_config.json (a string, or a list of {name, template}); chat_template.json.
  /// Error: there is none, or a file is broken.
  static ChatTemplate open(const ModelTexts& texts);
  /// The same, but nothing if there is no template.
  static std::optional<ChatTemplate> try_open(const ModelTexts& texts);

  /// `messages_json`: an array of objects, usually {"role": …, "content": …}. As in transformers,
  /// keys with the value null are dropped, and the reasoning of a message may be called
  /// reasoning_content, thinking or reasoning.
  /// With tools, the template "tool_use" is taken where there are several, else "default".
  /// Error: broken JSON, no messages, or what the template raises (roles that do not alternate, …).
  [[nodiscard]] std::string render(std::string_view messages_json,
                                   const RenderOptions& options = {}) const;

 private:
  struct Named {
    std::string name;                             // "default", "tool_use", …
    std::shared_ptr<const dn_template> compiled;  // null: `error` says why
    std::string error;
  };
  ChatTemplate() = default;
  void add(std::string name, std::string_view source);
  [[nodiscard]] const Named& choose(bool has_tools) const;

  std::string origin_;  // the file or directory, for messages
  std::vector<Named> templates_;
  bool is_single_ = false;  // one template without a name: taken for everything
  std::vector<std::pair<std::string, std::string>> special_tokens_;  // variables of the template
};

}  // namespace dendrite
