#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "chat/tool_schema.h"
#include "dendrite/tool_grammar.h"

namespace dendrite::chats {

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
  using Lines = std::vector<std::string>;
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
