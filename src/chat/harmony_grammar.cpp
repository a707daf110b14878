#include "chat/harmony_grammar.h"

#include "chat/call_grammar.h"
#include "dendrite/error.h"

namespace dendrite::chats {

HarmonyGrammarWriter::HarmonyGrammarWriter(const HarmonyTokens& tokens, const std::set<Token>& eos)
    : tokens_(tokens) {
  std::set<Token> ends;
  for (const HarmonyMark each : {HarmonyMark::kCall, HarmonyMark::kReturn}) {
    const auto& token = tokens[static_cast<std::size_t>(each)];
    if (token && !eos.contains(*token)) ends.insert(*token);
  }
  if (!ends.empty()) end_.append(" ").append(token_set(ends)).append("?");
}

std::string HarmonyGrammarWriter::grammar(std::span<const Json> functions, const ToolChoice& choice,
                                          const Json& answer) const try {
  const std::string channel = mark(HarmonyMark::kChannel);
  const std::string message = mark(HarmonyMark::kMessage);
  std::string next = mark(HarmonyMark::kEnd);
  next.append(" ").append(mark(HarmonyMark::kStart)).append(" \"assistant\"");
  const auto said = [&](const char* rule, const char* channels) {
    return std::string(rule) + ": " + channel + " " + channels + " " + message + " TEXT?";
  };
  const bool is_held = choice.required || !answer.is_null();
  Lines lines = {R"(TEXT: /(.|\n)+/)"};
  Lines last;
  if (is_held) {
    lines.push_back(said("thought", R"("analysis")"));
  } else {
    lines.push_back(said("said", "(\"analysis\" | \"commentary\" | \"final\")"));
    last.emplace_back("said");
  }
  if (!answer.is_null() && !choice.required) {
    last.emplace_back("final");
    lines.push_back("final: " + channel + " \"final\" " + message + " answer");
    lines.push_back("answer: %json " + with_blanks(answer).dump());
  }
  if (!functions.empty()) last.emplace_back("call");
  const std::string before = is_held ? "(thought " + next + ")?" : "(said " + next + ")*";
  lines.insert(lines.begin(), "start: " + before + " (" + joined(last, " | ") + ")" + end_);
  if (functions.empty()) return joined(lines, "\n") + "\n";

  const auto& constrain = tokens_[static_cast<std::size_t>(HarmonyMark::kConstrain)];
  const std::string typed =
      constrain ? "\" \"? " + mark(HarmonyMark::kConstrain) + " \"json\" | " : std::string();
  lines.push_back("type: " + typed + "\" json\"");
  Lines calls;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const std::string number = std::to_string(i);
    const std::string to = "to=functions." + functions[i]["name"].get<std::string>();
    lines.push_back("call_" + number + ": (" + channel + " " + literal("commentary " + to) + " | " +
                    literal(" " + to) + " " + channel + " \"commentary\") type? " + message +
                    " arguments_" + number);
    lines.push_back("arguments_" + number + ": %json " + arguments_of(functions[i]).dump());
    calls.push_back("call_" + number);
  }
  lines.push_back("call: " + joined(calls, " | "));
  return joined(lines, "\n") + "\n";
} catch (const Json::exception& error) {
  throw ConstraintError("no JSON schema of an object: " + std::string(error.what()));
}

std::string HarmonyGrammarWriter::mark(HarmonyMark which) const {
  return token_set({*tokens_[static_cast<std::size_t>(which)]});
}

}  // namespace dendrite::chats
