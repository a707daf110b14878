#pragma once

#include <set>
#include <span>
#include <string>

#include "chat/tool_schema.h"
#include "dendrite/harmony.h"
#include "dendrite/tool_grammar.h"

namespace dendrite::chats {

/// Writes grammars of answers in Harmony, in Lark. A prompt ends with <|start|>assistant; a call is
/// the last message of an answer, as <|call|> ends it.
class HarmonyGrammarWriter {
 public:
  /// `eos`: marks that are among these end an answer without being in its grammar.
  HarmonyGrammarWriter(const HarmonyTokens& tokens, const std::set<Token>& eos);

  /// What ToolGrammars::of and answer_of tell; `answer`: a schema, or null. Without functions an
  /// answer is needed.
  std::string grammar(std::span<const Json> functions, const ToolChoice& choice,
                      const Json& answer) const;

 private:
  std::string mark(HarmonyMark which) const;

  HarmonyTokens tokens_;
  std::string end_;  // tokens behind the last message
};

}  // namespace dendrite::chats
