#include "server/anthropic_request.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "server/conversation.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kMostMessages = 8192;
constexpr std::size_t kMostTools = 512;
constexpr std::size_t kMostEdits = 512;
constexpr std::size_t kMostText = std::size_t{32} << 20;
constexpr std::size_t kMostBlocks = 65536;
/// A program's own header, which it puts before the system's text and changes with each request:
/// no text for a model.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

std::string required_text(Fields& fields, std::string_view name) {
  std::optional<std::string> text = fields.text(name, kMostText);
  if (!text) throw bad_request(fields.path(name), "expected a text");
  return *std::move(text);
}

[[noreturn]] void refuse_block(const std::string& path, const std::string& type,
                               std::string_view expected) {
  throw bad_request(path,
                    "got a block of type " + echoed(type) + "; expected " + std::string(expected),
                    "unsupported_value");
}

/// Calls `act` for each block of a message, with its place and its type.
void each_block(
    const Json& blocks, const std::string& path,
    const std::function<void(Fields& block, const std::string& at, const std::string& type)>& act) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = at_index(path, i);
    if (!blocks[i].is_object()) throw wrong_type(at, blocks[i], "an object");
    Fields block(blocks[i], at);
    act(block, at, required_text(block, "type"));
  }
}

/// A text, or the texts of blocks, a line each. Blocks of the types in `dropped` are left out.
std::string text_of(const Json& content, const std::string& path, Ignored& ignored,
                    const std::vector<std::string_view>& dropped = {}) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw wrong_type(path, content, "a text or an array of blocks");
  std::string text;
  bool first = true;
  each_block(content, path, [&](Fields& block, const std::string& at, const std::string& type) {
    if (std::ranges::find(dropped, type) != dropped.end()) return ignored.add(at);
    if (type != "text") refuse_block(at, type, "\"text\" alone");
    const std::string said = required_text(block, "text");
    if (said.starts_with(kBillingHeader)) return ignored.add(at);
    append_line(text, first, said);
  });
  return text;
}

/// The messages of one request, one after the other.
class Conversation {
 public:
  explicit Conversation(Ignored& ignored) : ignored_(ignored) {}

  void system(std::string text) {
    if (!text.empty()) add("system", std::move(text));
  }

  void message(const Json& given, const std::string& path) {
    if (!given.is_object()) throw wrong_type(path, given, "an object");
    Fields fields(given, path);
    const std::string role = *or_throw(fields.word("role", {"user", "assistant", "system"}), path);
    const Json* content = fields.find("content");
    const std::string at = fields.path("content");
    if (content == nullptr) throw bad_request(at, "expected a text or an array of blocks");
    if (role == "system") {
      system(text_of(*content, at, ignored_));
    } else if (content->is_string()) {
      add(role, content->get<std::string>());
    } else if (!content->is_array() || content->size() > kMostBlocks) {
      throw wrong_type(at, *content, "a text or an array of blocks");
    } else if (role == "user") {
      user(*content, at);
    } else {
      assistant(*content, at);
    }
  }

  Json take() { return std::move(messages_); }

 private:
  static std::optional<std::string> or_throw(std::optional<std::string> role,
                                             const std::string& path) {
    if (!role) {
      throw bad_request(path + ".role", "expected \"user\" or \"assistant\"");
    }
    return role;
  }

  /// Turns of one side that follow each other are one turn.
  void add(const std::string& role, std::string text) {
    if (role == "user" && !messages_.empty() && messages_.back()["role"] == "user") {
      auto& last = messages_.back()["content"].get_ref<std::string&>();
      last += '\n' + text;
      return;
    }
    messages_.push_back({{"role", role}, {"content", std::move(text)}});
  }

  void user(const Json& blocks, const std::string& path) {
    std::string text;
    bool first = true;
    const auto flush = [&] {
      if (!first) add("user", std::move(text));
      text.clear();
      first = true;
    };
    each_block(blocks, path, [&](Fields& block, const std::string& at, const std::string& type) {
      if (type == "text") {
        append_line(text, first, required_text(block, "text"));
      } else if (type == "tool_result") {
        flush();
        result(block);
      } else {
        refuse_block(at, type, "\"text\" or \"tool_result\"");
      }
    });
    flush();
  }

  void result(Fields& block) {
    const Json* content = block.find("content");
    std::string text;
    if (content != nullptr) {
      text = text_of(*content, block.path("content"), ignored_, {"tool_reference"});
    }
    const std::string begin = text.substr(0, 5);
    if (block.boolean("is_error").value_or(false) && begin != "Error" && begin != "error") {
      text = "Error: " + text;
    }
    messages_.push_back({{"role", "tool"},
                         {"tool_call_id", required_text(block, "tool_use_id")},
                         {"content", std::move(text)}});
  }

  void assistant(const Json& blocks, const std::string& path) {
    std::string text;
    std::string thoughts;
    Json calls = Json::array();
    each_block(blocks, path, [&](Fields& block, const std::string& at, const std::string& type) {
      if (type == "text") {
        text += required_text(block, "text");
      } else if (type == "thinking") {
        thoughts += required_text(block, "thinking");
      } else if (type == "tool_use") {
        calls.push_back(call(block));
      } else if (type == "redacted_thinking" || type == "server_tool_use" ||
                 type.ends_with("_tool_result")) {
        ignored_.add(at);
      } else {
        refuse_block(at, type, "\"text\", \"thinking\" or \"tool_use\"");
      }
    });
    Json message = {{"role", "assistant"}, {"content", std::move(text)}};
    if (!thoughts.empty()) message["reasoning_content"] = std::move(thoughts);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    messages_.push_back(std::move(message));
  }

  static Json call(Fields& block) {
    const Json* input = block.object("input");
    return {{"id", required_text(block, "id")},
            {"type", "function"},
            {"function",
             {{"name", required_text(block, "name")},
              {"arguments", input == nullptr ? "{}" : dump(*input)}}}};
  }

  Json messages_ = Json::array();
  Ignored& ignored_;
};

void read_tools(Fields& body, AnthropicRequest& request) {
  const Json* tools = body.array("tools", kMostTools);
  if (tools == nullptr) return;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string at = at_index("tools", i);
    const Json& given = (*tools)[i];
    if (!given.is_object()) throw wrong_type(at, given, "an object");
    Fields tool(given, at);
    const std::string type = tool.text("type").value_or("custom");
    const std::string name = tool.text("name").value_or("");
    if (type != "custom") {  // one that only its maker's server can run
      request.ignored.add(at + (name.empty() ? "" : "(" + name + ")"));
      continue;
    }
    if (name.empty()) throw bad_request(at + ".name", "expected a text");
    const Json* schema = tool.object("input_schema");
    if (schema == nullptr) {
      throw bad_request(at + ".input_schema", "expected an object");
    }
    Json function = {{"name", name}};
    if (auto description = tool.text("description", kMostText)) {
      function["description"] = *std::move(description);
    }
    function["parameters"] = *schema;
    request.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
}

void read_tool_choice(Fields& body, AnthropicRequest& request) {
  const Json* given = body.object("tool_choice");
  if (given == nullptr) return;
  Fields choice(*given, "tool_choice");
  const std::string type = choice.word("type", {"auto", "any", "tool", "none"}).value_or("auto");
  request.parallel_calls = !choice.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "any") {
    request.tool_choice = "required";
    if (request.tools.empty()) {
      throw bad_request("tool_choice",
                        "tool_choice: a call is wanted, and of the tools none can "
                        "be called");
    }
  } else if (type == "tool") {
    request.tool_choice = required_text(choice, "name");
    const auto is_it = [&](const Json& tool) {
      return tool["function"]["name"] == request.tool_choice;
    };
    if (std::ranges::none_of(request.tools, is_it)) {
      throw bad_request("tool_choice.name", "tool_choice.name: got " + echoed(request.tool_choice) +
                                                "; expected the name of a tool with input_schema");
    }
  } else {
    request.tool_choice = type;
  }
}

/// Thinking is off unless it is asked for.
void read_thinking(Fields& body, AnthropicRequest& request) {
  bool thinks = false;
  if (const Json* given = body.object("thinking")) {
    Fields thinking(*given, "thinking");
    thinks = thinking.word("type", {"enabled", "adaptive", "disabled"}).value_or("disabled") !=
             "disabled";
    if (thinking.integer("budget_tokens", 0, INT64_MAX))
      request.ignored.add("thinking.budget_tokens");
    thinking.accept("display");
    thinking.rest(request.ignored);
  }
  request.variables["enable_thinking"] = thinks;
}

/// A format, which is a JSON schema; nullptr: none.
void read_format(const Json* format, const std::string& path, AnthropicRequest& request) {
  if (format == nullptr) return;
  Fields fields(*format, path);
  fields.word("type", {"json_schema"});
  const Json* schema = fields.object("schema");
  if (schema == nullptr) throw bad_request(path + ".schema", "expected an object");
  request.schema = *schema;
}

void read_output(Fields& body, AnthropicRequest& request) {
  read_format(body.object("output_format"), "output_format", request);  // its name in a beta
  const Json* given = body.object("output_config");
  if (given == nullptr) return;
  Fields output(*given, "output_config");
  if (const auto effort = output.text("effort")) request.variables["reasoning_effort"] = *effort;
  read_format(output.object("format"), "output_config.format", request);
  output.rest(request.ignored);
}

/// Thoughts of former turns are the template's to leave out; other edits are not done.
void read_context_management(Fields& body, AnthropicRequest& request) {
  const Json* given = body.object("context_management");
  if (given == nullptr) return;
  Fields fields(*given, "context_management");
  const Json* edits = fields.array("edits", kMostEdits);
  for (std::size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    const Json& edit = (*edits)[i];
    const Json type = edit.is_object() ? edit.value("type", Json("")) : Json("");
    const bool thinking = type.is_string() && type.get<std::string>().starts_with("clear_thinking");
    if (!thinking) request.ignored.add(at_index(fields.path("edits"), i));
  }
}

}  // namespace

AnthropicRequest read_anthropic(Fields& body, bool counting) {
  AnthropicRequest request;
  request.model = body.text("model").value_or("");
  const auto max_tokens = body.integer("max_tokens", 1, INT64_MAX);
  if (!counting) {
    if (!max_tokens) throw bad_request("max_tokens", "expected a number of at least 1");
    request.max_tokens = *max_tokens;
  }
  request.stream = body.boolean("stream").value_or(false);

  Conversation conversation(request.ignored);
  if (const Json* system = body.find("system")) {
    conversation.system(text_of(*system, "system", request.ignored));
  }
  const Json* messages = body.array("messages", kMostMessages);
  if (messages == nullptr || messages->empty()) {
    throw bad_request("messages", "expected at least one");
  }
  for (std::size_t i = 0; i < messages->size(); ++i) {
    conversation.message((*messages)[i], at_index("messages", i));
  }
  request.messages = conversation.take();
  if (request.messages.empty()) throw bad_request("messages", "got no text at all");
  if (const Json& last = request.messages.back(); last["role"] == "assistant") {
    if (last.contains("tool_calls") || last.contains("reasoning_content")) {
      const std::string at = at_index("messages", messages->size() - 1);
      throw bad_request(at,
                        "got the assistant's, which is continued; expected text alone in it, "
                        "or a user's message behind it");
    }
    request.reply_begins = last["content"].get<std::string>();
    request.messages.erase(request.messages.size() - 1);
  }

  read_tools(body, request);
  read_tool_choice(body, request);
  read_thinking(body, request);
  read_output(body, request);
  read_context_management(body, request);
  if (const Json* stops = body.array("stop_sequences", 16)) {
    for (std::size_t i = 0; i < stops->size(); ++i) {
      const std::string at = at_index("stop_sequences", i);
      const Json& stop = (*stops)[i];
      if (!stop.is_string()) throw wrong_type(at, stop, "a text");
      const auto& text = stop.get_ref<const std::string&>();
      if (text.empty() || text.size() > 256) {
        throw bad_request(at, "expected a text of 1 to 256 bytes");
      }
      request.stop.push_back(text);
    }
  }
  for (const char* name : {"metadata", "service_tier", "cache_control", "inference_geo", "speed",
                           "diagnostics", "betas", "user_profile_id", "workspace_id"}) {
    body.accept(name);
  }
  return request;
}

}  // namespace dendrite::server
