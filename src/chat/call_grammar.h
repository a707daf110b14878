#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "chat/tool_schema.h"
#include "dendrite/tool_grammar.h"

namespace dendrite::chats {

using Lines = std::vector<std::string>;

/// A text as a literal.
std::string literal(const std::string& text);
std::string joined(const Lines& parts, const char* between);
void add(Lines& lines, Lines more);
/// <[1-3,7-7]> of 1, 2, 3 and 7; empty of none.
std::string token_set(const std::set<Token>& ids);
/// A schema, written as models have seen JSON: with the blanks of json.dumps, or with none.
Json with_blanks(const Json& schema);
/// Up to `end`, a text; what `tags`, a regular expression, finds is not in it. `lengths`: a
/// schema's.
Lines text_rules(const std::string& name, const Json& lengths, const std::string& tags,
                 const std::string& end);
/// The schema of a function's arguments, which are an object. Properties are those that are listed,
/// unless it says so itself.
Json arguments_of(const Json& function);

/// Writes grammars in Lark. In them `call` is one call without its tags.
class CallGrammarWriter {
 public:
  /// `added`: the tokens of the vocabulary that are no text to a grammar.
  CallGrammarWriter(CallForm form, std::map<std::string, Token> added, const std::set<Token>& eos);

  const CallForm& form() const { return form_; }
  /// See ToolGrammars::of; `answer`: a schema, or null. Throws ConstraintError for a schema that it
  /// cannot read.
  std::string grammar(std::span<const Json> functions, const ToolChoice& choice,
                      const Json& answer) const;

 private:
  std::string begin() const;
  std::string calls(const ToolChoice& choice) const;
  std::string behind_tag(const ToolChoice& choice) const;
  Lines tags_in_text(const ToolChoice& choice) const;
  Lines json_or_text(const ToolChoice& choice) const;
  /// `rest_i`, what follows begin() in a call of this function, and what it is made of.
  Lines rules(const std::string& i, const Json& function) const;
  Lines parameter_rules(const std::string& i, const Json& function) const;
  Lines value_rules(const std::string& i, const Json& function) const;
  std::string token(const std::string& tag) const;

  CallForm form_;
  std::map<std::string, Token> added_;
  std::string others_;  // tokens that are no text, and that an answer may have in it (<think>)
  std::string free_;
};

}  // namespace dendrite::chats
