#include "chat/harmony_chat.h"

#include <algorithm>

#include "dendrite/error.h"

namespace dendrite::chats {
namespace {

bool is_result(const Json& message) {
  return message.value("role", Json()) == "tool";
}

/// All system messages in one at the front, a line each.
Json with_system_in_front(const Json& messages) {
  std::string text;
  Json others = Json::array();
  for (const Json& message : messages) {
    const Json role = message.value("role", Json());
    if (role == "system" || role == "developer") {
      text.append(text.empty() ? "" : "\n").append(message["content"].get<std::string>());
    } else {
      others.push_back(message);
    }
  }
  if (!text.empty()) {
    others.insert(others.begin(), Json{{"role", "system"}, {"content", std::move(text)}});
  }
  return others;
}

/// A message with calls as one for each, the first with the thoughts.
void add_calls(const Json& message, std::vector<Json> results, Json& out) {
  Json first = message;
  const std::string said = message["content"].get<std::string>();
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Json thought = first.value(name, Json());
    if (said.empty() || !thought.is_string() || thought == "") continue;
    first[name] = thought.get<std::string>() + "\n\n" + said;
    first["content"] = "";
  }
  const Json& calls = message["tool_calls"];
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Json one = i == 0 ? first : Json{{"role", "assistant"}, {"content", ""}};
    one["tool_calls"] = Json::array({calls[i]});
    out.push_back(std::move(one));
    const Json id = calls[i].value("id", Json());
    const bool is_last = i + 1 == calls.size();
    for (Json& result : results) {
      if (result.is_null() || !(is_last || result.value("tool_call_id", Json()) == id)) continue;
      out.push_back(std::exchange(result, nullptr));
    }
  }
}

bool writes_harmony(const Engine& engine) {
  const char* const messages = R"([{"role": "user", "content": "probe"},
    {"role": "assistant", "content": "probe"}, {"role": "user", "content": "probe"}])";
  const std::string text = engine.render_chat(messages);
  return text.find("<|start|>assistant<|channel|>final<|message|>") != std::string::npos;
}

}  // namespace

std::optional<HarmonyTokens> harmony_tokens_of(const Engine& engine) try {
  if (!writes_harmony(engine)) return std::nullopt;
  HarmonyTokens tokens;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<Token> ids = engine.encode(kHarmonyMarks[i], false);
    if (ids.size() == 1 && ids.front() < engine.info().vocab) tokens[i] = ids.front();
  }
  for (const HarmonyMark needed : {HarmonyMark::kStart, HarmonyMark::kChannel,
                                   HarmonyMark::kMessage, HarmonyMark::kEnd, HarmonyMark::kCall}) {
    if (!tokens[static_cast<std::size_t>(needed)]) return std::nullopt;
  }
  return tokens;
} catch (const Error&) {  // it has no template, or no tokenizer
  return std::nullopt;
}

Json messages_for_harmony(const Json& given) {
  const Json messages = with_system_in_front(given);
  Json out = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Json message = messages[i];
    const Json calls = message.value("tool_calls", Json());
    if (!calls.is_array() || calls.empty()) {
      message.erase("tool_calls");
      out.push_back(std::move(message));
      continue;
    }
    std::vector<Json> results;
    while (i + 1 < messages.size() && is_result(messages[i + 1])) results.push_back(messages[++i]);
    add_calls(message, std::move(results), out);
  }
  return out;
}

Json tools_for_harmony(Json tools) {
  for (Json& tool : tools) {
    Json& function = tool["function"];
    if (!function.value("description", Json()).is_string()) function["description"] = "";
  }
  return tools;
}

std::string variables_for_harmony(const std::string& template_json) {
  Json variables =
      template_json.empty() ? Json::object() : Json::parse(template_json, nullptr, false);
  if (!variables.is_object()) return template_json;  // the template's door says what is wrong
  const Json effort = variables.value("reasoning_effort", Json());
  if (effort == "none" || effort == "minimal" ||
      (effort.is_null() && variables.value("enable_thinking", Json()) == false)) {
    variables["reasoning_effort"] = "low";
  } else if (effort == "xhigh" || effort == "max") {
    variables["reasoning_effort"] = "high";
  }
  return variables.empty() ? "" : variables.dump();
}

}  // namespace dendrite::chats
