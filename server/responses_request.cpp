#include "server/responses_request.h"

#include <algorithm>
#include <set>

namespace dendrite::server {
namespace {

constexpr std::size_t kMostTools = 512;
constexpr std::size_t kMostText = std::size_t{32} << 20;

std::string name_of_tool(Fields& tool) {
  std::string name = tool.text("name").value_or("");
  if (name.empty()) throw bad_request(tool.path("name"), "expected a text");
  return name;
}

/// Functions into the form in which chats have them. Tools of other kinds are run by who made
/// them, or have calls of another form; a program sends them along with functions, and does
/// without.
class Tools {
 public:
  explicit Tools(ResponsesRequest& request) : request_(request) {}

  void add(const Json& given, const std::string& path, const std::string& space) {
    if (!given.is_object()) throw wrong_type(path, given, "an object");
    Fields tool(given, path);
    const std::string type = tool.text("type").value_or("");
    if (type.empty()) throw bad_request(path + ".type", "expected a text");
    if (type == "namespace" && space.empty()) {
      const std::string name = name_of_tool(tool);
      const Json* inner = tool.array("tools", kMostTools);
      for (std::size_t i = 0; inner != nullptr && i < inner->size(); ++i) {
        add((*inner)[i], at_index(path + ".tools", i), name);
      }
    } else if (type == "function") {
      function(tool, path, space);
    } else {
      const std::string name = tool.text("name").value_or(type);
      request_.ignored.add(path + "(" + name + ")");
    }
  }

 private:
  void function(Fields& tool, const std::string& path, const std::string& space) {
    const std::string name = name_of_tool(tool);
    if (!names_.insert(name).second) {  // of another namespace: a call could not tell them apart
      request_.ignored.add(path + "(" + name + ")");
      return;
    }
    Json made = {{"name", name}};
    if (auto text = tool.text("description", kMostText)) made["description"] = *std::move(text);
    if (const Json* schema = tool.object("parameters")) made["parameters"] = *schema;
    request_.tools.push_back({{"type", "function"}, {"function", std::move(made)}});
    if (!space.empty()) request_.namespaces[name] = space;
  }

  ResponsesRequest& request_;
  std::set<std::string> names_;
};

bool has_tool(const ResponsesRequest& request, const std::string& name) {
  return std::ranges::any_of(request.tools,
                             [&](const Json& tool) { return tool["function"]["name"] == name; });
}

/// The name of the function that a choice means.
std::string chosen(const ResponsesRequest& request, const Json& given, const std::string& path) {
  if (!given.is_object()) throw wrong_type(path, given, "an object");
  Fields choice(given, path);
  const std::string type = choice.text("type").value_or("");
  const std::string name = choice.text("name").value_or("");
  if (type != "function" || !has_tool(request, name)) {
    throw bad_request(path,
                      "got " + echoed(type + " " + name) +
                          "; expected one of the functions in tools, as others can't be "
                          "called",
                      "unsupported_value");
  }
  return name;
}

/// Leaves the functions that a choice allows.
void allow(ResponsesRequest& request, const Json& list, const std::string& path) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    names.insert(chosen(request, list[i], at_index(path, i)));
  }
  Json tools = Json::array();
  for (const Json& tool : request.tools) {
    if (names.contains(tool["function"]["name"].get<std::string>())) tools.push_back(tool);
  }
  request.tools = std::move(tools);
}

void read_tool_choice(Fields& body, ResponsesRequest& request) {
  const Json* given = body.find("tool_choice");
  if (given == nullptr) return;
  std::string choice;
  if (given->is_string()) {
    choice = *body.word("tool_choice", {"none", "auto", "required"});
  } else if (given->is_object() && given->value("type", Json()) == "allowed_tools") {
    Fields allowed(*given, "tool_choice");
    choice = allowed.word("mode", {"auto", "required"}).value_or("auto");
    const Json* list = allowed.array("tools", kMostTools);
    if (list == nullptr) throw bad_request("tool_choice.tools", "expected an array");
    allow(request, *list, "tool_choice.tools");
  } else {
    choice = chosen(request, *given, "tool_choice");
  }
  if (choice == "required" && request.tools.empty()) {
    throw bad_request("tool_choice", "a call is wanted, and there is no tool that can be called");
  }
  request.tool_choice = choice;
}

void read_text(Fields& body, ResponsesRequest& request) {
  const Json* given = body.object("text");
  request.echo["text"] = {{"format", {{"type", "text"}}}};
  if (given == nullptr) return;
  Fields text(*given, "text");
  text.accept("verbosity");
  const Json* format = text.object("format");
  text.rest(request.ignored);
  if (format == nullptr) return;
  request.echo["text"]["format"] = *format;
  Fields fields(*format, "text.format");
  const std::string type =
      fields.word("type", {"text", "json_object", "json_schema"}).value_or("text");
  request.any_object = type == "json_object";
  if (type != "json_schema") return;
  const Json* schema = fields.object("schema");
  if (schema == nullptr) throw bad_request("text.format.schema", "expected an object");
  request.schema = *schema;
}

void read_reasoning(Fields& body, ResponsesRequest& request) {
  request.echo["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* given = body.object("reasoning");
  if (given == nullptr) return;
  Fields reasoning(*given, "reasoning");
  for (const char* name : {"summary", "generate_summary", "context"}) reasoning.accept(name);
  if (const auto effort = reasoning.text("effort")) {
    request.variables["reasoning_effort"] = *effort;
    request.variables["enable_thinking"] = *effort != "none";
    request.echo["reasoning"]["effort"] = *effort;
  }
  reasoning.rest(request.ignored);
}

void read_include(Fields& body, ResponsesRequest& request) {
  const auto top = body.integer("top_logprobs", 0, 20);
  request.top_logprobs = static_cast<int>(top.value_or(0));
  request.echo["top_logprobs"] = request.top_logprobs;
  if (const Json* include = body.array("include", 64)) {
    for (std::size_t i = 0; i < include->size(); ++i) {
      const Json& what = (*include)[i];
      const std::string at = at_index("include", i);
      if (!what.is_string()) throw wrong_type(at, what, "a text");
      if (what == "message.output_text.logprobs") {
        request.logprobs = true;
      } else if (what == "reasoning.encrypted_content") {
        request.packed_reasoning = true;
      } else {
        request.ignored.add(at);
      }
    }
  }
  request.logprobs = request.logprobs || request.top_logprobs > 0;
}

}  // namespace

ResponsesRequest read_responses(Fields& body) {
  ResponsesRequest request;
  body.refuse("conversation", "conversations are not kept; expected previous_response_id");
  body.refuse("prompt", "prompts are not kept; expected input");
  body.refuse("context_management", "nothing is cut out of a conversation");
  body.refuse("moderation", "nothing is moderated");
  request.model = body.text("model").value_or("");
  if (const Json* input = body.find("input")) request.input = *input;
  request.instructions = body.text("instructions", kMostText).value_or("");
  request.previous_id = body.text("previous_response_id").value_or("");
  request.store = body.boolean("store").value_or(true);
  request.stream = body.boolean("stream").value_or(false);
  request.background = body.boolean("background").value_or(false);
  if (request.background && !request.store) {
    throw bad_request("background",
                      "what is made in the background is stored; expected store true");
  }
  if (const auto cut = body.word("truncation", {"disabled", "auto"}); cut == "auto") {
    throw bad_request("truncation", "nothing is cut out of a conversation; expected \"disabled\"",
                      "unsupported_value");
  }
  request.max_tokens = body.integer("max_output_tokens", 1, INT64_MAX);
  request.parallel_calls = body.boolean("parallel_tool_calls").value_or(true);

  body.object("metadata");
  body.integer("max_tool_calls", INT64_MIN, INT64_MAX);  // of tools that are no functions
  for (const char* name : {"user", "prompt_cache_key", "safety_identifier"}) body.text(name);

  Json& echo = request.echo;
  const auto say_again = [&](const char* name, Json otherwise) {
    const Json* given = body.find(name);
    echo[name] = given == nullptr ? std::move(otherwise) : *given;
  };
  say_again("instructions", nullptr);
  say_again("max_output_tokens", nullptr);
  say_again("max_tool_calls", nullptr);
  say_again("parallel_tool_calls", true);
  say_again("previous_response_id", nullptr);
  say_again("store", true);
  say_again("background", false);
  say_again("tool_choice", "auto");
  say_again("tools", Json::array());
  say_again("metadata", Json::object());
  say_again("user", nullptr);
  say_again("prompt_cache_key", nullptr);
  say_again("safety_identifier", nullptr);
  echo["truncation"] = "disabled";
  echo["service_tier"] = "default";

  Tools tools(request);
  if (const Json* given = body.array("tools", kMostTools)) {
    for (std::size_t i = 0; i < given->size(); ++i) {
      tools.add((*given)[i], at_index("tools", i), "");
    }
  }
  read_tool_choice(body, request);
  read_text(body, request);
  read_reasoning(body, request);
  read_include(body, request);
  for (const char* name : {"service_tier", "prompt_cache_retention", "prompt_cache_options",
                           "stream_options", "client_metadata"}) {
    body.accept(name);
  }
  return request;
}

}  // namespace dendrite::server
