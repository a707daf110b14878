#include "text/chat_template.h"

#include <algorithm>
#include <cstddef>

#include "text/bridge.h"
#include "text/json.h"
#include "text/tokenizer_config.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;
using Sources = std::vector<std::pair<std::string, std::string>>;  // name, source

/// chat_template.jinja is "default"; the files of additional_chat_templates are named by their
/// stem.
Sources read_template_files(const ModelTexts& texts) {
  Sources sources;
  if (auto text = texts.read("chat_template.jinja")) {
    sources.emplace_back("default", std::move(*text));
  }
  std::error_code no_directory;
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::directory_iterator(texts.path() / "additional_chat_templates", no_directory)) {
    if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    sources.emplace_back(file.stem().string(), read_text_file(file).value_or(""));
  }
  return sources;
}

/// A string is the one template, without a name here; a list names its templates.
Sources parse_template_key(const Json& value, const std::string& origin) {
  if (value.is_null()) return {};
  if (value.is_string()) return {{"", value.get<std::string>()}};
  const auto is_entry = [](const Json& entry) {
    return entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
           entry.contains("template") && entry["template"].is_string();
  };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_entry)) {
    throw Error(origin + ": key chat_template: got " + describe(value) +
                ", expected a string or an array of {\"name\": …, \"template\": …}");
  }
  Sources sources;
  for (const Json& entry : value) {
    sources.emplace_back(entry["name"].get<std::string>(), entry["template"].get<std::string>());
  }
  return sources;
}

Json check_array_of_objects(Json array, const std::string& name) {
  if (!array.is_array()) throw Error(name + ": got " + describe(array) + ", expected an array");
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_object()) {
      throw Error(name + "[" + std::to_string(i) + "]: got " + describe(array[i]) +
                  ", expected an object");
    }
  }
  return array;
}

/// transformers hands a message's reasoning to the template under two names: reasoning_content
/// always, thinking unless the message has it.
Json alias_reasoning(const Json& message) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    if (!message.contains(key)) continue;
    Json aliased = {{"thinking", message[key]}};
    for (const auto& [name, value] : message.items()) aliased[name] = value;
    aliased["reasoning_content"] = message[key];
    return aliased;
  }
  return message;
}

Json parse_messages(std::string_view text) {
  Json messages = parse_json(text, "messages");
  if (!messages.is_array() || messages.empty()) {
    throw Error("messages: got " + describe(messages) +
                ", expected an array of at least one {\"role\": …, \"content\": …}");
  }
  messages = check_array_of_objects(std::move(messages), "messages");
  Json result = Json::array();
  for (const Json& message : messages) {
    Json kept = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) kept[key] = value;
    }
    result.push_back(alias_reasoning(kept));
  }
  return result;
}

/// JSON text in which no integer is rounded before the template has it.
std::string mark_integers(std::string_view json) {
  dn_buffer marked{};
  check_bridge(dn_json_mark_integers(json.data(), json.size(), &marked), "JSON");
  return take(marked);
}

/// An optional array of objects; null if `text` is empty.
Json parse_optional_array(std::string_view text, const std::string& name) {
  if (text.empty()) return nullptr;
  Json array = parse_json(text, name);
  return array.is_null() ? array : check_array_of_objects(std::move(array), name);
}

}  // namespace

void ChatTemplate::add(std::string name, std::string_view source) {
  dn_template* handle = nullptr;
  if (dn_template_open(source.data(), source.size(), &handle) != DN_OK) {
    templates_.push_back({std::move(name), nullptr, dn_last_error()});
    return;
  }
  const auto free = [handle](const dn_template*) { dn_template_free(handle); };
  templates_.push_back({std::move(name), std::shared_ptr<const dn_template>(handle, free), {}});
}

ChatTemplate ChatTemplate::open(const ModelTexts& texts) {
  std::optional<ChatTemplate> chat_template = try_open(texts);
  if (!chat_template) {
    throw Error(texts.path().string() +
                ": no chat template; expected chat_template.jinja, or a chat_template in "
                "tokenizer_config.json");
  }
  return std::move(*chat_template);
}

std::optional<ChatTemplate> ChatTemplate::try_open(const ModelTexts& texts) {
  const TokenizerConfig config = TokenizerConfig::read(texts);
  ChatTemplate result;
  result.special_tokens_ = config.named_tokens;
  result.origin_ = (texts.path() / "chat_template.jinja").string();
  Sources sources = read_template_files(texts);
  if (sources.empty()) {
    result.origin_ = (texts.path() / "tokenizer_config.json").string();
    sources =
        parse_template_key(parse_json(config.chat_template_json, result.origin_), result.origin_);
  }
  if (sources.empty()) {
    result.origin_ = (texts.path() / "chat_template.json").string();
    const Json legacy = parse_json(texts.read("chat_template.json").value_or("{}"), result.origin_);
    if (legacy.is_object() && legacy.contains("chat_template")) {
      sources = parse_template_key(legacy["chat_template"], result.origin_);
    }
  }
  if (sources.empty()) return std::nullopt;
  result.is_single_ =
      sources.size() == 1 && (sources[0].first.empty() || sources[0].first == "default");
  for (auto& [name, source] : sources) result.add(std::move(name), source);
  // A template among several may be broken without harm to the others; the only one may not.
  if (result.is_single_ && !result.templates_[0].compiled) {
    throw Error(result.origin_ + ": " + result.templates_[0].error);
  }
  return result;
}

const ChatTemplate::Named& ChatTemplate::choose(bool has_tools) const {
  if (is_single_) return templates_[0];
  for (const char* name : {"tool_use", "default"}) {
    if (name == std::string_view("tool_use") && !has_tools) continue;
    // Of equal names the last counts, as in a Python dict.
    const auto found = std::find_if(templates_.rbegin(), templates_.rend(),
                                    [&](const Named& named) { return named.name == name; });
    if (found == templates_.rend()) continue;
    if (!found->compiled) throw Error(origin_ + ": template " + found->name + ": " + found->error);
    return *found;
  }
  std::string names;
  for (const Named& named : templates_) names += (names.empty() ? "" : ", ") + named.name;
  throw Error(origin_ + ": got chat templates named " + names + ", expected one named default");
}

std::string ChatTemplate::render(std::string_view messages_json,
                                 const RenderOptions& options) const {
  Json context = Json::object();
  context["messages"] = parse_messages(mark_integers(messages_json));
  context["tools"] = parse_optional_array(mark_integers(options.tools_json), "tools");
  context["documents"] = nullptr;
  context["add_generation_prompt"] = options.add_generation_prompt;
  for (const auto& [name, token] : special_tokens_) context[name] = token;
  if (!options.extra_json.empty()) {
    const Json extra = parse_json(mark_integers(options.extra_json), "extra variables");
    if (!extra.is_object()) {
      throw Error("extra variables: got " + describe(extra) + ", expected an object");
    }
    for (const auto& [key, value] : extra.items()) {
      if (key == "messages" || key == "tools" || key == "add_generation_prompt") {
        throw Error("extra variables: got " + key + ", which has an argument of its own");
      }
      if (key == "documents" && !value.is_null()) check_array_of_objects(value, key);
      context[key] = value;
    }
  }
  const Named& chosen = choose(!context["tools"].is_null());
  const std::string json = context.dump();
  dn_buffer text{};
  check_bridge(dn_template_render(chosen.compiled.get(), json.data(), json.size(), &text), origin_);
  return take(text);
}

}  // namespace dendrite
