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
/// <[1-3,7-7]> of 1, 2, 3 and 7; empty of none.
std::string token_set(const std::set<Token>& ids);
/// A schema, written as models have seen JSON: with the blanks of json.dumps, or with none.
Json with_blanks(const Json& schema);
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
  std::string calls(const ToolChoice& choice) const;
  Lines tags_in_text(const ToolChoice& choice) const;
  Lines json_or_text(const ToolChoice& choice) const;
  Lines json_rules(const std::string& i, const Json& function) const;
  Lines function_rules(const std::string& i, const Json& function) const;
  std::string token(const std::string& tag) const;
  std::string close() const;

  CallForm form_;
  std::map<std::string, Token> added_;
  std::string others_;  // tokens that are no text, and that an answer may have in it (<think>)
  std::string free_;
};

}  // namespace dendrite::chats
