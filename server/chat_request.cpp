#include "server/chat_request.h"

#include <algorithm>

#include "server/conversation.h"
#include "server/read.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kMostMessages = 8192;
constexpr std::size_t kMostTools = 512;
constexpr std::size_t kMostText = std::size_t{32} << 20;

/// A text, or the texts of its parts, a line each.
Json read_content(const Json& content, const std::string& path) {
  if (content.is_null() || content.is_string()) return content;
  if (!content.is_array()) throw wrong_type(path, content, "a text or an array of parts");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = at_index(path, i);
    Fields part(content[i], at);
    const auto type = part.text("type");
    if (type && *type != "text" && *type != "refusal") {
      throw bad_request(at + ".type", "parts of type " + echoed(*type) + " are not supported here",
                        "unsupported_value");
    }
    const auto said = part.text(type == "refusal" ? "refusal" : "text", kMostText);
    if (!said) throw bad_request(at + ".text", "it is missing");
    text += (i > 0 ? "\n" : "") + *said;
  }
  return text;
}

Json read_call(const Json& call, const std::string& path) {
  Fields fields(call, path);
  const Json* function = fields.object("function");
  if (function == nullptr) {
    throw bad_request(path + ".function", "it is missing; calls of functions are known alone");
  }
  Fields named(*function, path + ".function");
  const auto name = named.text("name");
  if (!name) throw bad_request(path + ".function.name", "it is missing");
  return {{"id", fields.text("id").value_or("")},
          {"type", "function"},
          {"function",
           {{"name", *name}, {"arguments", named.text("arguments", kMostText).value_or("{}")}}}};
}

Json read_message(const Json& message, const std::string& path) {
  Fields fields(message, path);
  std::string role = fields.text("role").value_or("");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    throw bad_request(
        path + ".role",
        "got " + echoed(role) + "; expected system, developer, user, assistant or tool",
        "unsupported_value");
  }
  const auto content = message.find("content");
  Json out = {
      {"role", role},
      {"content", content == message.end() ? Json() : read_content(*content, path + ".content")}};
  fields.refuse("audio", "it is not supported");
  fields.refuse("function_call", "please use tool_calls");
  if (role == "assistant") {
    if (const Json* calls = fields.array("tool_calls", kMostTools); calls && !calls->empty()) {
      Json made = Json::array();
      for (std::size_t i = 0; i < calls->size(); ++i) {
        made.push_back(read_call((*calls)[i], at_index(path + ".tool_calls", i)));
      }
      out["tool_calls"] = std::move(made);
    }
    auto thought = fields.text("reasoning_content", kMostText);
    if (!thought) thought = fields.text("reasoning", kMostText);
    if (thought) out["reasoning_content"] = *thought;
  } else if (out["content"].is_null()) {
    throw bad_request(path + ".content", "it is missing");
  }
  if (const auto id = fields.text("tool_call_id")) out["tool_call_id"] = *id;
  if (const auto name = fields.text("name")) out["name"] = *name;
  return out;
}

/// Functions alone; others cannot be called, and are named.
Json read_tools(Fields& body, Ignored& ignored) {
  const Json* tools = body.array("tools", kMostTools);
  if (tools == nullptr) return Json::array();
  if (tools->empty()) throw bad_request("tools", "it is empty; expected at least one, or none");
  Json out = Json::array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string path = at_index("tools", i);
    Fields tool((*tools)[i], path);
    const auto type = tool.text("type");
    if (type != "function") {
      ignored.add(path);
      continue;
    }
    const Json* function = tool.object("function");
    if (function == nullptr) throw bad_request(path + ".function", "it is missing");
    Fields fields(*function, path + ".function");
    const auto name = fields.text("name", 256);
    if (!name || name->empty()) throw bad_request(path + ".function.name", "it is missing");
    if (*name == "auto" || *name == "none" || *name == "required") {
      throw bad_request(path + ".function.name", echoed(*name) + " is no name of a function");
    }
    fields.object("parameters");
    out.push_back({{"type", "function"}, {"function", *function}});
  }
  return out;
}

bool has_tool(const Json& tools, const std::string& name) {
  return std::ranges::any_of(tools,
                             [&](const Json& tool) { return tool["function"]["name"] == name; });
}

void read_choice(Fields& body, const Json& tools, ChatBody& out) {
  const Json* choice = body.find("tool_choice");
  std::string& wanted = out.turn.chat.tool_choice;
  if (choice != nullptr && choice->is_object()) {
    Fields fields(*choice, "tool_choice");
    fields.word("type", {"function"});
    const Json* function = fields.object("function");
    const auto name = function == nullptr
                          ? std::nullopt
                          : Fields(*function, "tool_choice.function").text("name", 256);
    if (!name) throw bad_request("tool_choice.function.name", "it is missing");
    wanted = *name;
    out.names_tool = true;
    if (!has_tool(tools, wanted)) {
      throw bad_request("tool_choice", "there is no function " + echoed(wanted) + " in tools");
    }
  } else {
    wanted = body.word("tool_choice", {"auto", "none", "required"}).value_or("auto");
    if (wanted == "required" && tools.empty()) {
      throw bad_request("tool_choice", "a call is required, and tools has no function");
    }
  }
  out.turn.chat.parallel_calls = body.boolean("parallel_tool_calls").value_or(true);
}

void read_template(Fields& body, TurnRequest& turn) {
  Json variables = Json::object();
  if (const auto effort = body.text("reasoning_effort", 64)) {
    variables["reasoning_effort"] = *effort;
    variables["enable_thinking"] = *effort != "none";
  }
  if (const Json* given = body.object("chat_template_kwargs")) {
    for (const auto& [name, value] : given->items()) {
      if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
        throw bad_request("chat_template_kwargs." + name, "the template has it from the request",
                          "unsupported_parameter");
      }
      variables[name] = value;
    }
  }
  if (!variables.empty()) turn.chat.template_json = dump(variables);
  body.refuse("chat_template", "the model's own is used");
  body.refuse("documents", "please put them into a message");
}

/// The last message, where the reply goes on with it.
void read_continuation(Fields& body, Json& messages, TurnRequest& turn) {
  const bool continues = body.boolean("continue_final_message").value_or(false);
  const bool begins = body.boolean("add_generation_prompt").value_or(!continues);
  if (begins == continues) {
    throw bad_request(continues ? "continue_final_message" : "add_generation_prompt",
                      "either the last message goes on (continue_final_message), or a new one "
                      "begins (add_generation_prompt)",
                      "unsupported_value");
  }
  if (!continues) return;
  const Json last = messages.back();
  if (last["role"] != "assistant" || !last["content"].is_string() || last.contains("tool_calls") ||
      messages.size() < 2) {
    throw bad_request("continue_final_message",
                      "the last message has to be an assistant's text behind another message");
  }
  if (turn.chat.generate.decode.constraint) {
    throw bad_request("continue_final_message",
                      "a reply that is constrained can't go on with a message",
                      "unsupported_value");
  }
  turn.reply_begins = last["content"].get<std::string>();
  messages.erase(messages.size() - 1);
}

void read_stream(Fields& body, ChatBody& out) {
  out.stream = body.boolean("stream").value_or(false);
  const Json* options = body.object("stream_options");
  if (options == nullptr) return;
  if (!out.stream) throw bad_request("stream_options", "there is no stream");
  Fields fields(*options, "stream_options");
  out.include_usage = fields.boolean("include_usage").value_or(false);
  out.continuous_usage = fields.boolean("continuous_usage_stats").value_or(false);
  fields.accept("include_obfuscation");
  fields.rest(out.ignored);
}

void read_logprobs(Fields& body, const Service& service, TurnRequest& turn) {
  const bool wanted = body.boolean("logprobs").value_or(false);
  const auto top = body.integer("top_logprobs", 0, service.options.max_logprobs);
  if (top && *top > 0 && !wanted) {
    throw bad_request("top_logprobs", "logprobs is not true");
  }
  if (wanted) turn.chat.generate.decode.top_logprobs = static_cast<int>(top.value_or(0));
}

}  // namespace

Json read_messages(const Json& messages, const std::string& path) {
  if (!messages.is_array()) throw wrong_type(path, messages, "an array");
  if (messages.empty() || messages.size() > kMostMessages) {
    throw bad_request(path, "it has " + std::to_string(messages.size()) +
                                " messages; expected 1 to " + std::to_string(kMostMessages));
  }
  Json out = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    out.push_back(read_message(messages[i], at_index(path, i)));
  }
  return out;
}

ChatBody read_chat(const Service& service, const Json& body) {
  Fields fields(body, "");
  ChatBody out;
  TurnRequest& turn = out.turn;
  out.model = service.model_name(fields.text("model").value_or(""));
  const Json* messages = fields.find("messages");
  if (messages == nullptr) throw bad_request("messages", "it is missing");
  Json read = read_messages(*messages, "messages");
  read_stream(fields, out);
  read_sampling(fields, service, turn);
  read_constraint(fields, service, turn);
  read_logprobs(fields, service, turn);
  turn.n = static_cast<int>(fields.integer("n", 1, service.options.max_n).value_or(1));
  const auto limit = fields.integer("max_tokens", 1, INT32_MAX);
  const auto newer = fields.integer("max_completion_tokens", 1, INT32_MAX);
  turn.max_tokens = newer ? newer : limit;
  const Json tools = read_tools(fields, out.ignored);
  read_choice(fields, tools, out);
  if (!tools.empty()) turn.chat.tools_json = dump(tools);
  read_template(fields, turn);
  read_continuation(fields, read, turn);
  turn.messages_json = dump(read);
  out.token_ids = turn.tokens = fields.boolean("return_token_ids").value_or(false);

  for (const char* name : {"functions", "function_call"}) fields.refuse(name, "please use tools");
  for (const char* name : {"audio", "web_search_options", "moderation", "thinking_token_budget"}) {
    fields.refuse(name, "it is not supported");
  }
  if (const Json* kinds = fields.array("modalities", 8)) {
    for (const Json& kind : *kinds) {
      if (kind != "text") {
        throw bad_request("modalities", "got " + echoed(kind.dump()) + "; expected \"text\" alone",
                          "unsupported_value");
      }
    }
  }
  fields.refuse("echo", "please use /v1/completions");
  if (const auto best = fields.integer("best_of", 1, 1 << 20); best && *best != turn.n) {
    throw bad_request("best_of", "it is not n", "unsupported_parameter");
  }
  for (const char* name : {"verbosity", "prediction"}) fields.accept(name);
  read_extension(fields, turn, out.ignored);
  fields.rest(out.ignored);
  return out;
}

}  // namespace dendrite::server
