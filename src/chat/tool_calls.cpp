#include "dendrite/tool_calls.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "chat/blank.h"
#include "chat/call_reader.h"
#include "chat/call_tags.h"
#include "chat/event_writer.h"
#include "chat/function_reader.h"
#include "chat/gemma_reader.h"
#include "chat/named_reader.h"
#include "chat/python_reader.h"

namespace dendrite {
namespace {

using chats::CallNow;
using chats::CallReader;
using chats::CallStyle;
using chats::CallTag;
using chats::is_blank;
using chats::kCallTags;
using chats::kFunctionBegin;
using chats::kInvokeBegin;

constexpr std::string_view kPythonTag = "<|python_tag|>";

/// Of a call that is no JSON as a whole.
using TextReader = std::variant<chats::FunctionReader, chats::NamedReader, chats::GemmaReader,
                                chats::PythonReader>;

TextReader reader_of(CallStyle kind, std::shared_ptr<const chats::ToolTable> tools) {
  switch (kind) {
    case CallStyle::kNamed:
      return chats::NamedReader(std::move(tools));
    case CallStyle::kGemma:
      return chats::GemmaReader(std::move(tools));
    case CallStyle::kPython:
      return chats::PythonReader(std::move(tools));
    default:
      return chats::FunctionReader(kind, std::move(tools));
  }
}

bool is_close(std::string_view text) {
  return !text.empty() &&
         std::ranges::any_of(kCallTags, [&](const CallTag& tag) { return tag.close == text; });
}

}  // namespace

/// The parser by characters, so that it can't depend on how the text is cut.
struct ToolCallParser::State {
  enum class Place {
    kText,    // content, the blanks and tags before calls
    kOpened,  // behind a tag
    kJson,    // in JSON that is a call, or may be one
    kNoCall,  // in JSON that is none
    kCall,    // in a call that is no JSON as a whole
  };

  explicit State(std::string_view tools_json)
      : tools(std::make_shared<const chats::ToolTable>(tools_json)) {}

  void put(char c);
  void put_text(char c);
  void put_opened(char c);
  void put_json(char c);
  void put_call(char c);
  void finish(bool cut_short);

  bool may_be_tag(std::string_view text) const;
  void open_json(char c);
  void open_call(CallStyle kind);
  void say(std::string_view text);
  void give_back();
  void begin_call(const std::string& name);
  void end_call(bool complete);

  std::shared_ptr<const chats::ToolTable> tools;
  Place place = Place::kText;
  std::string held;     // what is content, unless a call follows
  std::string partial;  // what may be a tag; behind `held`
  std::optional<CallReader> json;
  std::optional<TextReader> call;
  const CallTag* tag = nullptr;  // that opened last
  bool at_start = true;          // nothing but calls so far: JSON may be one
  bool behind_call = false;      // nothing but blanks since
  chats::EventWriter out;
};

bool ToolCallParser::State::may_be_tag(std::string_view text) const {
  const auto begins = [&](std::string_view tag) { return tag.starts_with(text); };
  const auto begins_one = [&](const CallTag& each) {
    return begins(each.open) || (behind_call && begins(each.close));
  };
  return std::ranges::any_of(kCallTags, begins_one) || begins(kFunctionBegin) ||
         begins(kInvokeBegin) || (at_start && begins(kPythonTag));
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
    case Place::kCall:
      return put_call(c);
  }
}

void ToolCallParser::State::put_text(char c) {
  if (!partial.empty() && may_be_tag(partial + c)) {
    partial += c;
    const auto* const opened = std::ranges::find(kCallTags, partial, &CallTag::open);
    if (opened != kCallTags.end()) {
      tag = &*opened;
      place = Place::kOpened;
    } else if (partial == kFunctionBegin) {
      open_call(CallStyle::kFunction);
    } else if (partial == kInvokeBegin) {
      open_call(CallStyle::kInvoke);
    } else if (is_close(partial)) {
      held.clear();  // of the call before
      partial.clear();
      return;
    } else if (partial != kPythonTag) {
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
  const auto may_be = [&](std::string_view begin) { return begin.starts_with(partial + c); };
  if (partial.empty() && is_blank(c)) {
    held += c;
  } else if (partial.empty() && tag->json && c == '{') {
    open_json(c);
  } else if (partial.empty() && tag->json && c == '[' && tag->kind != CallStyle::kPython) {
    open_json(c);
  } else if (partial.empty() && tag->kind == CallStyle::kPython && c == '[') {
    partial = c;
  } else if (partial == "[") {  // a list: of objects, or of calls in Python
    partial.clear();
    if (c == '{') open_json('[');
    if (c != '{') {
      open_call(CallStyle::kPython);
      put('[');
    }
    put(c);
  } else if (may_be(kFunctionBegin) || may_be(kInvokeBegin) || may_be(tag->begin)) {
    partial += c;
    const bool is_function = partial == kFunctionBegin;
    if (!is_function && partial != kInvokeBegin && partial != tag->begin) return;
    const CallStyle kind = is_function               ? CallStyle::kFunction
                           : partial == kInvokeBegin ? CallStyle::kInvoke
                                                     : *tag->kind;
    held += std::exchange(partial, {});
    open_call(kind);
  } else if (partial.empty() && tag->kind && tag->begin.empty()) {
    open_call(*tag->kind);
    put(c);
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

void ToolCallParser::State::open_call(CallStyle kind) {
  place = Place::kCall;
  call.emplace(reader_of(kind, tools));
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

void ToolCallParser::State::put_call(char c) {
  const auto with_reader = [this](const auto& act) { return std::visit(act, *call); };
  const CallNow now = with_reader([&](auto& reader) { return reader.put(c); });
  if (now == CallNow::kNoCall || now == CallNow::kBroken) {
    const std::string unread =
        with_reader([](auto& reader) { return std::string(reader.unread()); });
    if (out.in_call()) {
      out.add_arguments(with_reader([](auto& reader) { return reader.take_arguments(); }));
      end_call(false);
    }
    held.resize(held.size() - unread.size());
    give_back();
    at_start = behind_call = false;
    for (const char each : unread) put(each);
    return put(c);
  }
  if (!out.in_call()) held += c;
  if (!out.in_call() && with_reader([](auto& reader) { return reader.has_begun(); })) {
    begin_call(with_reader([](auto& reader) { return reader.name(); }));
  }
  if (out.in_call()) {
    out.add_arguments(with_reader([](auto& reader) { return reader.take_arguments(); }));
  }
  if (now == CallNow::kCallEnded) end_call(true);
  if (!with_reader([](auto& reader) { return reader.ended(); })) return;
  held.clear();  // what closes a list of calls
  place = Place::kText;
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
  const std::string text = std::exchange(partial, {});
  say({});
  for (const char each : text) put(each);
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
  const auto ends = [](auto& reader) { return reader.finish(); };
  if (place == Place::kCall && !cut_short && std::visit(ends, *call)) {
    if (!out.in_call()) begin_call(std::visit([](auto& reader) { return reader.name(); }, *call));
    out.add_arguments(std::visit([](auto& reader) { return reader.take_arguments(); }, *call));
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
