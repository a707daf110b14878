// What was generated, read: thoughts, content and calls.
#include <algorithm>

#include "chat/tool_schema.h"
#include "dendrite/chat.h"

namespace dendrite {
namespace {

bool was_cut_short(Finish finish) {
  return finish != Finish::kStop && finish != Finish::kEos;
}

}  // namespace

const char* ChatReply::finish_reason() const {
  const auto is_complete = [](const ToolCall& call) { return call.complete; };
  if (!tool_calls.empty() && std::ranges::all_of(tool_calls, is_complete)) return "tool_calls";
  const bool cut = finish == Finish::kLength || finish == Finish::kStopInside ||
                   finish == Finish::kBudget || finish == Finish::kDeadEnd;
  return cut ? "length" : "stop";
}

std::string ChatReply::message_json() const {
  chats::Json message = {{"role", "assistant"}, {"content", text}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  for (const ToolCall& call : tool_calls) {
    if (!call.complete) continue;
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message.dump(-1, ' ', false, chats::Json::error_handler_t::replace);
}

ReplyParser::ReplyParser(std::optional<ReasoningTags> tags, bool inside,
                         std::string_view tools_json, std::map<Token, std::string> marks)
    : tags_(std::move(tags)), calls_(tools_json), marks_(std::move(marks)) {
  if (tags_) thoughts_.emplace(*tags_, inside);
}

ReplyParser::ReplyParser(HarmonyParser harmony) : calls_(""), harmony_(std::move(harmony)) {}

std::vector<ReplyEvent> ReplyParser::feed(std::string_view text) {
  if (harmony_) return harmony_->feed(text);
  return thoughts_ ? events_of(thoughts_->feed(text)) : calls_.feed(text);
}

std::vector<ReplyEvent> ReplyParser::feed(Token token, std::string_view text) {
  if (harmony_) return harmony_->feed(token, text);
  const std::string marked = with_mark(token, text);
  return thoughts_ ? events_of(thoughts_->feed(token, marked)) : calls_.feed(marked);
}

/// The text of a token, which a mark ends. (What came with a special token was said before it.)
std::string ReplyParser::with_mark(Token token, std::string_view text) const {
  const auto found = marks_.find(token);
  const bool lacks = found != marks_.end() && !text.ends_with(found->second);
  return std::string(text).append(lacks ? found->second : "");
}

std::vector<ReplyEvent> ReplyParser::finish(Finish finish) {
  if (harmony_) return harmony_->finish(was_cut_short(finish));
  std::vector<ReplyEvent> events;
  if (thoughts_) events = events_of(thoughts_->finish());
  std::ranges::move(calls_.finish(was_cut_short(finish)), std::back_inserter(events));
  return events;
}

std::string ReplyParser::begin(std::string_view said) {
  if (harmony_) return harmony_->begin(said);
  feed(said);
  return std::string(said);
}

bool ReplyParser::is_mark(Token token) const {
  if (harmony_) return harmony_->is_mark(token);
  return marks_.contains(token) ||
         (tags_ && (token == tags_->begin_token || token == tags_->end_token));
}

std::vector<ReplyEvent> ReplyParser::events_of(ReasoningSplit split) {
  std::vector<ReplyEvent> events;
  if (!split.reasoning.empty()) {
    events.push_back({ReplyEvent::Kind::kReasoning, std::move(split.reasoning)});
  }
  std::ranges::move(calls_.feed(split.content), std::back_inserter(events));
  return events;
}

}  // namespace dendrite
