#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dendrite/generate.h"
#include "dendrite/harmony.h"
#include "dendrite/reasoning.h"
#include "dendrite/tool_calls.h"
#include "dendrite/tool_grammar.h"

// Conversations to replies.
namespace dendrite {

/// Keeps the branches of the last replies, so that a chat that goes on computes only what is new: a
/// prefill begins at the longest prefix of which any live branch has K and V. Where pages run out,
/// those that are kept go before those that run. Safe to use from several threads.
class ChatBranches {
 public:
  explicit ChatBranches(std::size_t size = 16);
  ~ChatBranches();

  /// Those that it continues are let go for it; else the oldest. O(tokens of all).
  void keep(Branch branch);
  void clear();
  std::size_t size() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// How to reply.
struct ChatParams {
  /// As for any prompts. `decode.constraint` says what a reply must be that calls no tool, and
  /// beside tools has to be a JSON schema. decode_each stays empty.
  GenerateParams generate{};
  /// A JSON array of functions that the model may call, in OpenAI's form ({"type": "function",
  /// "function": {...}}) or bare ({"name": ..., "parameters": ...}); empty: none.
  std::string tools_json{};
  /// "auto"; "required": at least one call, and nothing else; "none"; or the name of the one tool
  /// that is to be called.
  std::string tool_choice = "auto";
  bool parallel_calls = true;  ///< it may call several; a tool that is named is called once
  /// Further variables of the template, see ChatOptions::extra_json.
  std::string template_json{};
  ChatBranches* keep = nullptr;  ///< takes the branches of replies that were not cancelled
};

/// What a model replied. A value; it needs no session.
struct ChatReply {
  std::string text;                  ///< said: without reasoning and calls
  std::vector<ToolCall> tool_calls;  ///< of known tools; what looks like one and is none is text
  std::string reasoning;  ///< thought before, by a model that writes it apart; else empty
  Finish finish = Finish::kRunning;
  std::int64_t prompt_tokens = 0;     ///< of the conversation as the template writes it
  Generation generation;              ///< all of it, as it was generated
  std::vector<std::string> warnings;  ///< ToolGrammar::warnings

  /// In OpenAI's words: "tool_calls", "stop", or "length" where it was cut short.
  const char* finish_reason() const;
  /// The message, as a JSON object, that goes on with the chat; results of tools, with the ids of
  /// their calls, or a question follow it. Calls that are not complete are left out.
  std::string message_json() const;
};

/// Splits one reply, as it is generated, into thoughts, content and calls. Copyable, as branches
/// fork.
class ReplyParser {
 public:
  /// Without `tags` nothing is thought, without tools nothing is called. `inside`: the prompt ends
  /// inside of the tags. `marks`: tokens that stand in calls, where they may be no text.
  ReplyParser(std::optional<ReasoningTags> tags, bool inside, std::string_view tools_json,
              std::map<Token, std::string> marks = {});
  explicit ReplyParser(HarmonyParser harmony);

  std::vector<ReplyEvent> feed(std::string_view text);
  /// One token with the text that it added (TokenEvent, StreamToken): also where tags of thoughts
  /// are special tokens, which are no text.
  std::vector<ReplyEvent> feed(Token token, std::string_view text);
  std::vector<ReplyEvent> finish(Finish finish);

  /// The reply begins with this, said, which is no event of it: how it stands behind the prompt.
  std::string begin(std::string_view said);
  /// Whether the token stands between parts of a reply, and may be no text.
  bool is_mark(Token token) const;

 private:
  std::vector<ReplyEvent> events_of(ReasoningSplit split);
  std::string with_mark(Token token, std::string_view text) const;

  std::optional<ReasoningTags> tags_;
  std::optional<ReasoningSplitter> thoughts_;
  ToolCallParser calls_;
  std::map<Token, std::string> marks_;
  std::optional<HarmonyParser> harmony_;  // reads all, where the model writes it
};

/// A conversation as the calls of a session take it.
struct ChatRequest {
  std::vector<Token> prompt;  ///< special tokens included; nothing is to be put before it
  DecodeParams decode;        ///< held to what the reply must be
  ReplyParser parser;         ///< for one reply; a copy for each
  std::vector<std::string> warnings;
};

/// What is known of how an engine's model chats: its template, tags and tokens, grammars of calls.
/// Of one that writes Harmony an answer ends with <|call|> and <|return|> whatever
/// generation_config.json says, and a constraint of another kind than JSON leaves no room for
/// thoughts.
/// A server has one for each engine. Safe to use from several threads.
class ChatModel {
 public:
  /// Reads the model's folder. Throws Error for files in it that are no JSON.
  explicit ChatModel(const Engine& engine);
  ChatModel(ChatModel&&) noexcept;
  ChatModel& operator=(ChatModel&&) noexcept;
  ~ChatModel();

  const std::optional<ReasoningTags>& reasoning_tags() const;
  const CallForm& call_form() const;

  /// `messages_json`: in OpenAI's form, each with "role" and "content" (a text, null, or parts of
  /// type "text"). Throws Error where the model has no template, for what that cannot render, for
  /// parameters that are not as told, and ConstraintError (ToolGrammars::of).
  ChatRequest request(std::string_view messages_json, const ChatParams& params) const;
  /// What was generated after a request, read.
  ChatReply reply(const ChatRequest& request, Generation generation) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the model replies in each of several chats, together, as generate() does: result[chat], one
/// reply or GenerateParams::n. Throws as ChatModel::request, naming the conversation by its index,
/// before anything is computed, and as generate().
std::vector<std::vector<ChatReply>> chat(Session& session, const ChatModel& model,
                                         std::span<const std::string> conversations,
                                         const ChatParams& params = {});
/// In one; a program that has more of them to come keeps a ChatModel.
std::vector<ChatReply> chat(Session& session, const std::string& messages_json,
                            const ChatParams& params = {});

}  // namespace dendrite
