#include "dendrite/tool_calls.h"

#include <algorithm>
#include <array>
#include <optional>

#include "chat/blank.h"
#include "chat/call_reader.h"
#include "chat/event_writer.h"
#include "chat/function_reader.h"

namespace dendrite {
namespace {

using chats::CallReader;
using chats::FunctionReader;
using chats::is_blank;

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::array<std::string_view, 2> kBefore = {"<|python_tag|>", "[TOOL_CALLS]"};

}  // namespace

/// The parser by characters, so that it can't depend on how the text is cut.
struct ToolCallParser::State {
  enum class Place {
    kText,      // content, the blanks and tags before calls
    kOpened,    // behind <tool_call>
    kJson,      // in JSON that is a call, or may be one
    kNoCall,    // in JSON that is none
    kFunction,  // behind <function=
  };

  explicit State(std::string_view tools_json)
      : tools(std::make_shared<const chats::ToolTable>(tools_json)) {}

  void put(char c);
  void put_text(char c);
  void put_opened(char c);
  void put_json(char c);
  void put_function(char c);
  void finish(bool cut_short);

  bool may_be_tag(std::string_view text) const;
  void open_json(char c);
  void open_function();
  void say(std::string_view text);
  void give_back();
  void begin_call(const std::string& name);
  void end_call(bool complete);

  std::shared_ptr<const chats::ToolTable> tools;
  Place place = Place::kText;
  std::string held;     // what is content, unless a call follows
  std::string partial;  // what may be a tag; behind `held`
  std::optional<CallReader> json;
  std::optional<FunctionReader> function;
  bool at_start = true;      // nothing but calls so far: JSON may be one
  bool behind_call = false;  // nothing but blanks since
  chats::EventWriter out;
};

bool ToolCallParser::State::may_be_tag(std::string_view text) const {
  const auto begins = [&](std::string_view tag) { return tag.starts_with(text); };
  return begins(kOpen) || begins(kFunction) || (behind_call && begins(kClose)) ||
         (at_start && std::ranges::any_of(kBefore, begins));
}

void ToolCallParser::State::put(char c) {
  switch (place) {
    case Place::kText:
      return put_text(c);
    case Place::kOpened:
      return put_opened(c);
    case Place::kJson:
    case Place::kNoCall:
      return put_json(c);
    case Place::kFunction:
      return put_function(c);
  }
}

void ToolCallParser::State::put_text(char c) {
  if (!partial.empty() && may_be_tag(partial + c)) {
    partial += c;
    const bool is_before = std::ranges::count(kBefore, partial) > 0;
    if (partial == kOpen) {
      place = Place::kOpened;
    } else if (partial == kFunction) {
      open_function();
    } else if (partial == kClose) {
      held.clear();  // of the call before
      partial.clear();
      return;
    } else if (!is_before) {
      return;
    }
    held += std::exchange(partial, {});
    return;
  }
  if (partial == "[" && at_start) {  // no [TOOL_CALLS]
    partial.clear();
    open_json('[');
    return put(c);
  }
  if (!partial.empty()) say(std::exchange(partial, {}));
  if (is_blank(c)) {
    held += c;
  } else if (at_start && out.calls() > 0 && (c == ';' || c == ',')) {
    held.clear();
  } else if (at_start && c == '{') {
    open_json(c);
  } else if (may_be_tag(std::string_view(&c, 1)) || (at_start && c == '[')) {
    partial = c;
  } else {
    say(std::string_view(&c, 1));
  }
}

void ToolCallParser::State::put_opened(char c) {
  if (partial.empty() && is_blank(c)) {
    held += c;
  } else if (partial.empty() && (c == '{' || c == '[')) {
    open_json(c);
  } else if (kFunction.starts_with(partial + c)) {
    partial += c;
    if (partial != kFunction) return;
    held += std::exchange(partial, {});
    open_function();
  } else {
    give_back();
    put(c);
  }
}

void ToolCallParser::State::open_json(char c) {
  place = Place::kJson;
  behind_call = false;
  json.emplace(tools);
  put_json(c);
}

void ToolCallParser::State::open_function() {
  place = Place::kFunction;
  function.emplace(tools);
}

void ToolCallParser::State::put_json(char c) {
  const CallReader::Now now = json->put(c);
  if (now == CallReader::Now::kBroken) {
    if (out.in_call()) end_call(false);
    give_back();
    at_start = behind_call = false;
    return put(c);
  }
  if (place == Place::kNoCall) {
    say(std::string_view(&c, 1));
  } else {
    if (!out.in_call()) held += c;
    if (!out.in_call() && json->has_begun() && now != CallReader::Now::kNoCall)
      begin_call(json->name());
    if (out.in_call()) out.add_arguments(json->take_arguments());
    if (now == CallReader::Now::kCallEnded) end_call(json->is_clear());
    if (now == CallReader::Now::kNoCall) {
      say({});
      place = Place::kNoCall;
    }
  }
  if (!json->ended()) return;
  if (!behind_call) say({});  // an empty array
  held.clear();               // what closes one of calls
  place = Place::kText;
}

void ToolCallParser::State::put_function(char c) {
  const FunctionReader::Now now = function->put(c);
  if (now == FunctionReader::Now::kNoCall) {
    const std::string unread = function->unread();
    held.resize(held.size() - unread.size());
    give_back();
    for (const char each : unread) put(each);
    return put(c);
  }
  if (!out.in_call()) held += c;
  if (!out.in_call() && function->has_begun()) begin_call(function->name());
  if (out.in_call()) out.add_arguments(function->take_arguments());
  if (now == FunctionReader::Now::kCallEnded) {
    end_call(true);
    place = Place::kText;
  }
}

/// What is held, and this text, are content.
void ToolCallParser::State::say(std::string_view text) {
  held += text;
  if (held.empty()) return;
  at_start = behind_call = false;
  out.say(ReplyEvent::Kind::kContent, std::exchange(held, {}));
}

/// What is held was no call.
void ToolCallParser::State::give_back() {
  place = Place::kText;
  const std::string tag = std::exchange(partial, {});
  say({});
  for (const char each : tag) put(each);
}

void ToolCallParser::State::begin_call(const std::string& name) {
  held.clear();
  out.begin_call(name);
}

void ToolCallParser::State::end_call(bool complete) {
  behind_call = true;
  out.end_call(complete);
}

void ToolCallParser::State::finish(bool cut_short) {
  if (place == Place::kFunction && !cut_short && function->finish()) {
    if (!out.in_call()) begin_call(function->name());
    out.add_arguments(function->take_arguments());
    return end_call(true);
  }
  if (out.in_call()) return end_call(false);
  const bool between = place == Place::kJson && json->is_between();
  held += std::exchange(partial, {});
  // Behind a call, blanks and what separates calls go.
  if (!behind_call || !(between || is_blank(held))) say({});
}

ToolCallParser::ToolCallParser(std::string_view tools_json)
    : state_(std::make_unique<State>(tools_json)) {}
ToolCallParser::ToolCallParser(const ToolCallParser& other)
    : state_(std::make_unique<State>(*other.state_)) {}
ToolCallParser::ToolCallParser(ToolCallParser&&) noexcept = default;
ToolCallParser& ToolCallParser::operator=(const ToolCallParser& other) {
  state_ = std::make_unique<State>(*other.state_);
  return *this;
}
ToolCallParser& ToolCallParser::operator=(ToolCallParser&&) noexcept = default;
ToolCallParser::~ToolCallParser() = default;

std::vector<ReplyEvent> ToolCallParser::feed(std::string_view text) {
  if (state_->tools->tools.empty()) {  // nothing is a call
    state_->say(text);
  } else {
    for (const char c : text) state_->put(c);
  }
  return state_->out.take();
}

std::vector<ReplyEvent> ToolCallParser::finish(bool cut_short) {
  state_->finish(cut_short);
  return state_->out.take();
}

void ParsedReply::add(std::span<const ReplyEvent> events) {
  for (const ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case ReplyEvent::Kind::kContent:
        content += event.text;
        break;
      case ReplyEvent::Kind::kCallBegin:
        calls.push_back({event.id, event.name, "", false});
        break;
      case ReplyEvent::Kind::kCallArguments:
        calls.back().arguments += event.text;
        break;
      case ReplyEvent::Kind::kCallEnd:
        calls.back().complete = event.complete;
    }
  }
}

ParsedReply parse_tool_calls(std::string_view text, std::string_view tools_json, bool cut_short) {
  ToolCallParser parser(tools_json);
  ParsedReply reply;
  reply.add(parser.feed(text));
  reply.add(parser.finish(cut_short));
  return reply;
}

}  // namespace dendrite
