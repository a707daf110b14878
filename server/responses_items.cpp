#include "server/responses_items.h"

#include <array>
#include <string_view>

#include "server/conversation.h"
#include "server/ids.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kMostItems = 16384;
constexpr std::size_t kMostText = std::size_t{32} << 20;
constexpr std::string_view kPacked = "dendrite-1-";

std::string text_field(Fields& fields, std::string_view name) {
  std::optional<std::string> text = fields.text(name, kMostText);
  if (!text) throw bad_request(fields.path(name), "expected a text");
  return *std::move(text);
}

/// A text, or the texts of parts: a line each, or (what a model wrote) one behind the other.
std::string text_of(const Json& content, const std::string& path, bool lines) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw wrong_type(path, content, "a text or an array of parts");
  std::string text;
  bool first = true;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = at_index(path, i);
    if (!content[i].is_object()) throw wrong_type(at, content[i], "an object");
    Fields part(content[i], at);
    const std::string type = text_field(part, "type");
    if (type != "input_text" && type != "output_text" && type != "text" && type != "refusal") {
      throw bad_request(at, "got a part of type " + echoed(type) + "; expected text alone",
                        "unsupported_value");
    }
    const std::string said = text_field(part, type == "refusal" ? "refusal" : "text");
    if (lines) {
      append_line(text, first, said);
    } else {
      text += said;
    }
  }
  return text;
}

std::string reasoning_of(const Json& item) {
  std::string text;
  for (const Json& part : item.value("content", Json())) {
    if (part.is_object() && part.value("text", Json()).is_string()) {
      text += part["text"].get<std::string>();
    }
  }
  const Json packed = item.value("encrypted_content", Json());
  if (text.empty() && packed.is_string()) text = unpack_reasoning(packed.get<std::string>());
  return text;
}

/// Puts together what the assistant wrote.
class Reader {
 public:
  Reader(Json& messages, Ignored& ignored) : messages_(messages), ignored_(ignored) {}

  void add(const Json& item, const std::string& path) {
    if (!item.is_object()) throw wrong_type(path, item, "an object");
    Fields fields(item, path);
    const std::string type = fields.text("type").value_or("message");
    if (type == "message") {
      message(fields);
    } else if (type == "reasoning") {
      const std::string text = reasoning_of(item);
      if (text.empty()) return;
      reply(State::kReasoned)["reasoning_content"] = text;
    } else if (type == "function_call" || type == "custom_tool_call") {
      call(fields, type == "custom_tool_call");
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      result(fields);
    } else {
      ignored_.add(path + "(" + type + ")");
    }
  }

 private:
  /// How far the last message is, where that is the assistant's and may go on.
  enum class State { kNone, kReasoned, kSaid, kCalled };

  /// The message that text, reasoning or calls go into: the last one, where these may follow.
  Json& reply(State next) {
    const bool goes_on = state_ != State::kNone && (state_ < next || next == State::kCalled);
    if (!goes_on) messages_.push_back({{"role", "assistant"}, {"content", ""}});
    state_ = next;
    return messages_.back();
  }

  void message(Fields& fields) {
    const auto role = fields.word("role", {"user", "assistant", "system", "developer"});
    if (!role) throw bad_request(fields.path("role"), "expected user, assistant or system");
    const Json* content = fields.find("content");
    const std::string at = fields.path("content");
    if (content == nullptr) throw bad_request(at, "expected a text or an array of parts");
    if (*role == "assistant") {
      const std::string text = text_of(*content, at, false);
      reply(State::kSaid)["content"] = text;
      return;
    }
    state_ = State::kNone;
    messages_.push_back(
        {{"role", *role == "user" ? "user" : "system"}, {"content", text_of(*content, at, true)}});
  }

  void call(Fields& fields, bool custom) {
    Json arguments = text_field(fields, custom ? "input" : "arguments");
    if (custom) arguments = dump({{"input", arguments}});
    const std::string id = text_field(fields, "call_id");
    const std::string name = text_field(fields, "name");
    Json& message = reply(State::kCalled);
    message["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  }

  void result(Fields& fields) {
    state_ = State::kNone;
    const std::string id = text_field(fields, "call_id");
    const Json* output = fields.find("output");
    const std::string at = fields.path("output");
    messages_.push_back(
        {{"role", "tool"},
         {"tool_call_id", id},
         {"content", output == nullptr ? std::string() : text_of(*output, at, true)}});
  }

  Json& messages_;
  Ignored& ignored_;
  State state_ = State::kNone;
};

std::string item_prefix(const std::string& type) {
  if (type == "message") return "msg_";
  if (type == "reasoning") return "rs_";
  if (type == "function_call") return "fc_";
  return type == "function_call_output" ? "fco_" : "item_";
}

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

}  // namespace

Json items_of_input(const Json& input, const std::string& path,
                    const std::function<Json(const std::string&)>& resolve) {
  Json items = Json::array();
  if (input.is_null()) return items;
  if (input.is_string()) {
    if (input.get_ref<const std::string&>().empty()) return items;
    items.push_back({{"type", "message"}, {"role", "user"}, {"content", input}});
  } else if (!input.is_array() || input.size() > kMostItems) {
    throw wrong_type(path, input, "a text, or an array of at most 16384 items");
  } else {
    items = input;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string at = at_index(path, i);
    if (!items[i].is_object()) throw wrong_type(at, items[i], "an object");
    Fields item(items[i], at);
    std::string type = item.text("type").value_or("message");
    if (type == "item_reference") {
      const std::string id = text_field(item, "id");
      items[i] = resolve(id);
      if (items[i].is_null()) throw bad_request(at + ".id", "there is no item " + echoed(id));
      continue;
    }
    items[i]["type"] = type;
    if (!items[i].value("id", Json()).is_string()) {
      items[i]["id"] = item_prefix(type) + random_hex(16);
    }
  }
  return items;
}

void add_items(const Json& items, const std::string& path, Json& messages, Ignored& ignored) {
  Reader reader(messages, ignored);
  for (std::size_t i = 0; i < items.size(); ++i) reader.add(items[i], at_index(path, i));
}

std::string pack_reasoning(const std::string& text) {
  std::string packed(kPacked);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) packed += kDigits[(bits >> (count - 6)) & 63];
  }
  if (count > 0) packed += kDigits[(bits << (6 - count)) & 63];
  return packed;
}

std::string unpack_reasoning(const std::string& packed) {
  if (!packed.starts_with(kPacked)) return {};
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (std::size_t i = kPacked.size(); i < packed.size(); ++i) {
    const std::size_t digit = kDigits.find(packed[i]);
    if (digit == std::string_view::npos) return {};
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    if (count += 6; count >= 8) text += static_cast<char>((bits >> (count -= 8)) & 255);
  }
  return text;
}

}  // namespace dendrite::server
