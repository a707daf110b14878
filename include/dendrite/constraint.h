#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dendrite {

/// What generated text must be: every token that could not be part of it is refused before it is
/// drawn. A description, without a model: an engine compiles it when it is first used, once for
/// equal ones, and Engine::check says beforehand whether it can. Cheap to copy; immutable.
class Constraint {
 public:
  enum class Kind { kJsonSchema, kRegex, kLark, kChoice };

  /// JSON that a schema describes (JSON Schema 2020-12). What of it is not supported is an error,
  /// never ignored, and named by its path: not, if, dependent*, uniqueItems, contains, remote $ref,
  /// where they change anything; oneOf of what may overlap. Patterns are ECMA-262's. Properties
  /// come in the schema's order, without spaces, unless the schema's "x-guidance" says otherwise:
  /// {"whitespace_flexible": true}, "item_separator", "key_separator".
  static Constraint json_schema(std::string schema);
  /// Any JSON object.
  static Constraint json_object();
  /// The whole text matches; Rust's syntax of regular expressions, without look-around.
  static Constraint regex(std::string pattern);
  /// A context-free grammar in llguidance's dialect of Lark, from its rule `start`: also
  /// %json { schema } inside, special tokens as <name>.
  static Constraint lark(std::string grammar);
  /// One of these texts.
  static Constraint choice(const std::vector<std::string>& options);
  /// What kind() and text() told of another one.
  static Constraint of(Kind kind, std::string text) { return {kind, std::move(text)}; }

  Kind kind() const { return what_->kind; }
  /// The schema, pattern or grammar; of a choice the options as a JSON array.
  const std::string& text() const { return what_->text; }

  bool operator==(const Constraint& other) const {
    return what_ == other.what_ || (kind() == other.kind() && text() == other.text());
  }

 private:
  struct What {
    Kind kind;
    std::string text;
  };
  Constraint(Kind kind, std::string text)
      : what_(std::make_shared<const What>(What{kind, std::move(text)})) {}
  std::shared_ptr<const What> what_;
};

/// "json_schema", "regex", "lark" or "choice".
const char* name_of(Constraint::Kind kind);

}  // namespace dendrite
