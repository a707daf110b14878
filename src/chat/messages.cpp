#include "chat/messages.h"

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
    Json arguments = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
    if (arguments.is_discarded()) {
      throw Error("got arguments of a tool call that are no JSON: " + text);
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
  Json messages = Json::parse(messages_json, nullptr, false);
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

}  // namespace dendrite::chats
