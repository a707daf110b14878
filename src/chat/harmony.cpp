#include "dendrite/harmony.h"

#include <algorithm>

#include "chat/blank.h"
#include "chat/event_writer.h"
#include "chat/json_scanner.h"
#include "chat/tool_schema.h"

namespace dendrite {
namespace {

using chats::is_blank;

constexpr std::string_view kAssistant = "assistant";
constexpr std::string_view kTo = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kBetween = "\n\n";

std::string_view name_of(HarmonyMark mark) {
  return kHarmonyMarks[static_cast<std::size_t>(mark)];
}

/// What stands behind to=, if anything does.
std::string_view receiver_in(std::string_view header) {
  for (std::size_t at = header.find(kTo); at != std::string_view::npos;
       at = header.find(kTo, at + 1)) {
    if (at == 0 || is_blank(header[at - 1])) return header.substr(at + kTo.size());
  }
  return {};
}

}  // namespace

/// The parser by characters and marks, so that it can't depend on how the text is cut.
struct HarmonyParser::State {
  enum class Place {
    kRole,       // of a message that begins, or text that stands in none
    kChannel,    // behind <|channel|>
    kType,       // behind <|constrain|>
    kText,       // of a message
    kArguments,  // of a message to a tool: its JSON is still to begin
    kJson,
    kBehindJson,
  };
  using Kind = ReplyEvent::Kind;

  State(std::string_view tools_json, const HarmonyTokens& of_marks)
      : tokens(of_marks), tools(std::make_shared<const chats::ToolTable>(tools_json)) {}

  void read(std::string_view text);
  void read_marked(std::string_view text);
  void put(char c);
  void put_role(char c);
  void put_json(char c);
  void mark(HarmonyMark which);
  void begin_message();
  void end_message();
  void say(char c);
  void say_as_text(char c);
  std::string tool_called() const;
  bool in_header() const { return place <= Place::kType; }

  HarmonyTokens tokens;
  std::shared_ptr<const chats::ToolTable> tools;
  Place place = Place::kRole;
  std::string partial;  // what may be a mark
  std::string role{kAssistant}, channel;
  // Of a message:
  Kind kind = Kind::kContent;
  std::string tool;  // that it may call
  std::string held;  // blanks before its arguments
  chats::JsonScanner json;
  bool has_begun = false;                      // some of its text was told
  bool has_thought = false, has_said = false;  // in messages before, too
  chats::EventWriter out;
};

/// Text in which marks are tokens, or stand as text.
void HarmonyParser::State::read(std::string_view text) {
  const auto finds = [&](const auto& fits) {
    for (std::size_t i = 0; i < kHarmonyMarks.size(); ++i) {
      if (!tokens[i] && fits(kHarmonyMarks[i])) return std::optional(static_cast<HarmonyMark>(i));
    }
    return std::optional<HarmonyMark>();
  };
  for (const char c : text) {
    partial += c;
    if (const auto whole = finds([&](std::string_view name) { return name == partial; })) {
      partial.clear();
      mark(*whole);
    }
    const auto begins = [&](std::string_view name) { return name.starts_with(partial); };
    while (!partial.empty() && !finds(begins)) {
      const char first = partial.front();
      partial.erase(0, 1);
      put(first);
    }
  }
}

/// Text in which all marks stand as text.
void HarmonyParser::State::read_marked(std::string_view text) {
  const HarmonyTokens known = std::exchange(tokens, {});
  read(text);
  tokens = known;
  for (const char c : std::exchange(partial, {})) put(c);
}

void HarmonyParser::State::put(char c) {
  switch (place) {
    case Place::kRole:
      return put_role(c);
    case Place::kChannel:
      channel += c;
      return;
    case Place::kType:
      return;
    case Place::kText:
      return say(c);
    case Place::kArguments:
      if (is_blank(c)) {
        held += c;
      } else if (c == '{') {
        out.begin_call(tool);
        place = Place::kJson;
        put_json(c);
      } else {
        place = Place::kText;
        for (const char each : std::exchange(held, {})) say(each);
        say(c);
      }
      return;
    case Place::kJson:
      return put_json(c);
    case Place::kBehindJson:
      if (!is_blank(c)) say_as_text(c);
  }
}

/// Behind "assistant" the receiver may follow; what is neither is said.
void HarmonyParser::State::put_role(char c) {
  role += c;
  if (!role.starts_with(kAssistant)) return;
  const std::string behind = role.substr(kAssistant.size());
  const std::size_t at = std::min(behind.find_first_not_of(chats::kBlanks), behind.size());
  if (kTo.starts_with(std::string_view(behind).substr(at, kTo.size()))) return;
  role = kAssistant;
  begin_message();
  for (const char each : behind) say(each);
}

void HarmonyParser::State::put_json(char c) {
  const bool in_string = json.in_string();
  const chats::JsonScanner::Now now = json.put(c);
  if (now == chats::JsonScanner::Now::kBroken) {
    out.end_call(false);
    return say_as_text(c);
  }
  std::string text;
  chats::add_json(text, c, in_string);
  out.add_arguments(text);
  if (now != chats::JsonScanner::Now::kEnded) return;
  out.end_call(true);
  place = Place::kBehindJson;
}

void HarmonyParser::State::mark(HarmonyMark which) {
  switch (which) {
    case HarmonyMark::kStart:
      end_message();
      role.clear();
      return;
    case HarmonyMark::kChannel:
      if (!in_header()) end_message();
      channel.clear();
      place = Place::kChannel;
      return;
    case HarmonyMark::kConstrain:
      if (in_header()) place = Place::kType;
      return;
    case HarmonyMark::kMessage:
      if (in_header()) begin_message();
      return;
    case HarmonyMark::kEnd:
    case HarmonyMark::kCall:
    case HarmonyMark::kReturn:
      return end_message();
  }
}

void HarmonyParser::State::begin_message() {
  const std::string_view name = chats::stripped(channel);
  kind = name.substr(0, name.find_first_of(chats::kBlanks)) == "analysis" ? Kind::kReasoning
                                                                          : Kind::kContent;
  tool = tool_called();
  place = tool.empty() ? Place::kText : Place::kArguments;
  held.clear();
  json = {};
  has_begun = false;
}

void HarmonyParser::State::end_message() {
  if (place == Place::kArguments) {
    out.begin_call(tool);
    out.add_arguments("{}");
    out.end_call(true);
  }
  if (out.in_call()) out.end_call(false);
  place = Place::kRole;
  role = kAssistant;
  channel.clear();
}

void HarmonyParser::State::say(char c) {
  bool& before = kind == Kind::kReasoning ? has_thought : has_said;
  if (!has_begun && before) out.say(kind, kBetween);
  has_begun = before = true;
  out.say(kind, std::string_view(&c, 1));
}

/// Behind what was a call.
void HarmonyParser::State::say_as_text(char c) {
  place = Place::kText;
  kind = Kind::kContent;
  say(c);
}

/// Of the tools whose names stand there the one with the longest; empty: none does.
std::string HarmonyParser::State::tool_called() const {
  std::string found;
  for (const std::string& header : {role, channel}) {
    const std::string_view whole = receiver_in(header);
    const bool is_function = whole.starts_with(kFunctions);
    for (const std::string_view to :
         {whole, is_function ? whole.substr(kFunctions.size()) : std::string_view()}) {
      for (const auto& [name, types] : tools->tools) {
        const bool is_it =
            to.starts_with(name) && (to.size() == name.size() || is_blank(to[name.size()]));
        if (is_it && name.size() > found.size()) found = name;
      }
    }
  }
  return found;
}

HarmonyParser::HarmonyParser(std::string_view tools_json, const HarmonyTokens& tokens,
                             std::string_view prompt)
    : state_(std::make_unique<State>(tools_json, tokens)) {
  const std::size_t at = prompt.rfind(name_of(HarmonyMark::kStart));
  if (at == std::string_view::npos) return;
  state_->read_marked(prompt.substr(at));
  state_->role = chats::stripped(state_->role);
  // Where there is more than an opening, that stands in a message of another format.
  if (!state_->out.take().empty()) state_ = std::make_unique<State>(tools_json, tokens);
}
HarmonyParser::HarmonyParser(const HarmonyParser& other)
    : state_(std::make_unique<State>(*other.state_)) {}
HarmonyParser::HarmonyParser(HarmonyParser&&) noexcept = default;
HarmonyParser& HarmonyParser::operator=(const HarmonyParser& other) {
  state_ = std::make_unique<State>(*other.state_);
  return *this;
}
HarmonyParser& HarmonyParser::operator=(HarmonyParser&&) noexcept = default;
HarmonyParser::~HarmonyParser() = default;

std::vector<ReplyEvent> HarmonyParser::feed(std::string_view text) {
  state_->read(text);
  return state_->out.take();
}

std::vector<ReplyEvent> HarmonyParser::feed(Token token, std::string_view text) {
  const auto found = std::ranges::find(state_->tokens, std::optional(token));
  if (found == state_->tokens.end()) return feed(text);
  const auto which = static_cast<HarmonyMark>(found - state_->tokens.begin());
  // (What came with a special token was said before it.)
  if (text.ends_with(name_of(which))) text.remove_suffix(name_of(which).size());
  state_->read(text);
  state_->mark(which);
  return state_->out.take();
}

std::vector<ReplyEvent> HarmonyParser::finish(bool cut_short) {
  for (const char c : std::exchange(state_->partial, {})) state_->put(c);
  const bool is_begun = state_->place == State::Place::kArguments;
  if (!(cut_short && is_begun)) state_->end_message();
  return state_->out.take();
}

std::string HarmonyParser::begin(std::string_view said) {
  std::string begun;
  if (state_->in_header()) {
    begun.append(name_of(HarmonyMark::kChannel)).append("final");
    begun.append(name_of(HarmonyMark::kMessage));
    state_->read_marked(begun);
  }
  feed(said);
  return begun.append(said);
}

bool HarmonyParser::is_mark(Token token) const {
  return std::ranges::count(state_->tokens, std::optional(token)) > 0;
}

}  // namespace dendrite
