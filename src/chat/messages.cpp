#include "chat/messages.h"

#include <algorithm>

#include "dendrite/error.h"

namespace dendrite::chats {
namespace {

std::string text_of(const Json& content) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    throw Error(std::string("got content that is a ") + content.type_name() +
                "; expected a text or an array of parts");
  }
  std::string text;
  bool first = true;
  for (const Json& part : content) {
    const std::string type = part.is_string()   ? "text"
                             : part.is_object() ? part.value("type", Json("")).dump()
                                                : part.dump();
    if (type == "\"tool_use\"" || type == "\"tool_call\"") continue;  // they stand in tool_calls
    const Json said = part.is_string()   ? part
                      : part.is_object() ? part.value("text", Json())
                                         : part;
    if ((type != "text" && type != "\"text\"") || !said.is_string()) {
      throw Error("got content of type " + type + "; expected \"text\" alone");
    }
    if (!first) text += '\n';
    text += said.get<std::string>();
    first = false;
  }
  return text;
}

Json call_for_template(const Json& call) {
  if (!call.is_object()) {
    throw Error(std::string("got a tool call that is a ") + call.type_name() +
                "; expected an object");
  }
  Json function = call.value("function", call);
  const Json given = function.is_object() ? function.value("arguments", Json()) : Json();
  if (given.is_string()) {
    const std::string text = given.get<std::string>();
    Json arguments = text.empty() ? Json::object() : parsed_json(text);
    if (arguments.is_discarded()) {
      throw Error("got arguments of a tool call that are no JSON of 512 levels at most: " +
                  text.substr(0, 200));
    }
    function["arguments"] = std::move(arguments);
  }
  Json made = call;
  made["type"] = "function";
  made["function"] = std::move(function);
  return made;
}

}  // namespace

Json for_template(std::string_view messages_json) {
  const std::string expected = "; expected a JSON array of {\"role\": ..., \"content\": ...}";
  Json messages = parsed_json(messages_json);
  if (!messages.is_array() || messages.empty()) {
    throw Error((messages.is_discarded() ? "got no JSON"
                 : messages.is_array()   ? "got no messages"
                                         : std::string("got a ") + messages.type_name()) +
                expected);
  }
  for (Json& message : messages) {
    if (!message.is_object()) {
      throw Error(std::string("got a message that is a ") + message.type_name() + expected);
    }
    message["content"] = text_of(message.value("content", Json()));
    const Json calls = message.value("tool_calls", Json());
    if (!calls.is_array() || calls.empty()) continue;
    Json made = Json::array();
    for (const Json& call : calls) made.push_back(call_for_template(call));
    message["tool_calls"] = std::move(made);
  }
  return messages;
}

Json with_short_ids(Json messages) {
  constexpr std::size_t kSize = 9;
  const auto shorten = [](Json& object, const char* key) {
    const Json id = object.value(key, Json());
    if (!id.is_string() || id.get_ref<const std::string&>().size() <= kSize) return;
    const std::string& whole = id.get_ref<const std::string&>();
    object[key] = whole.substr(whole.size() - kSize);
  };
  for (Json& message : messages) {
    shorten(message, "tool_call_id");
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      if (call.is_object()) shorten(call, "id");
    }
  }
  return messages;
}

Json with_results_in_calls(const Json& messages) {
  Json out = Json::array();
  for (const Json& message : messages) {
    const bool is_result = message.value("role", Json()) == "tool";
    const Json calls = out.empty() || !is_result ? Json() : out.back().value("tool_calls", Json());
    if (!calls.is_array() || calls.empty()) {
      out.push_back(message);
      continue;
    }
    Json& responses = out.back()["tool_responses"];
    const Json id = message.value("tool_call_id", Json());
    const auto is_it = [&](const Json& call) { return call.value("id", Json()) == id; };
    const auto found = std::ranges::find_if(calls, is_it);
    const std::size_t next = std::min(responses.size(), calls.size() - 1);
    const Json& call = found != calls.end() && !id.is_null() ? *found : calls[next];
    responses.push_back({{"name", call["function"].value("name", Json("unknown"))},
                         {"response", message["content"]}});
  }
  return out;
}

}  // namespace dendrite::chats
