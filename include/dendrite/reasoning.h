#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dendrite/types.h"

// What a model thinks before it answers. It needs no engine.
namespace dendrite {

/// What a model writes around its thoughts: <think> and </think>, <seed:think> and </seed:think>,
/// [THINK] and [/THINK], or <|channel>thought and <channel|>.
struct ReasoningTags {
  std::string begin, end;
  /// The tokens that they are, where a generation's text leaves these out (special tokens).
  std::optional<Token> begin_token{}, end_token{};
  std::string label{};  ///< what follows `begin` and is no thought ("thought")

  bool operator==(const ReasoningTags&) const = default;
};

/// What of a piece of text was thought, and what was said.
struct ReasoningSplit {
  std::string reasoning, content;
};

/// Splits the text of one answer, as it is generated, into thoughts and what is said after them.
/// Thoughts begin with the answer, where the prompt ends inside of their tags, or with the opening
/// tag, blanks before it aside; they end with the first closing tag. Without an opening tag all is
/// content. Blanks around the thoughts, and before what follows them, are dropped; nothing else is.
/// Both texts are the same however the text is cut into pieces. Copyable, as branches fork.
class ReasoningSplitter {
 public:
  /// `inside`: the prompt ends inside of the tags.
  explicit ReasoningSplitter(ReasoningTags tags, bool inside = false);

  ReasoningSplit feed(std::string_view text);
  /// The same of one token with the text that it added (TokenEvent::text), also where the tags are
  /// special tokens.
  ReasoningSplit feed(Token token, std::string_view text);
  /// What was held back, when the answer has ended.
  ReasoningSplit finish();

 private:
  enum class Place { kStart, kThoughts, kBehind, kContent };

  void put(char c, ReasoningSplit& out);
  void put_start(char c, ReasoningSplit& out);
  void put_thought(char c, ReasoningSplit& out);

  ReasoningTags tags_;
  Place place_;
  bool inside_;           // the prompt ends so
  bool thought_ = false;  // something but blanks
  std::string blanks_;    // that may be dropped
  std::string partial_;   // what may be a tag
};

}  // namespace dendrite
