#include "chat/model_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat/call_tags.h"
#include "dendrite/error.h"
#include "dendrite/model_files.h"

namespace dendrite::chats {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Empty, if there is none. What a GGUF file says in place of its folder's files is such a file.
std::string text_of(const fs::path& path) {
  if (fs::is_regular_file(path.parent_path())) {
    return model_text(path.parent_path().string(), path.filename().string()).value_or("");
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

/// The member of the object in a file, null if there is none: others are passed over.
Json member_of(const fs::path& path, const char* name) {
  const std::string text = text_of(path);
  if (text.empty()) return {};
  const auto wanted = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    return event != Json::parse_event_t::key || depth != 1 || parsed == name;
  };
  const Json all = Json::parse(text, wanted, false);
  if (!all.is_object()) throw Error(path.string() + ": got no JSON object; expected one");
  return all.value(name, Json());
}

bool is_tag(const std::string& text) {
  return text.size() > 1 && text.front() == '<' && text.back() == '>';
}

}  // namespace

std::map<std::string, Token> added_tokens(const std::string& model_path) {
  std::map<std::string, Token> added;
  const Json tokens = member_of(fs::path(model_path) / "tokenizer.json", "added_tokens");
  for (const Json& token : tokens.is_array() ? tokens : Json::array()) {
    const std::string content = token.value("content", "");
    if (token.value("special", false) || is_tag(content)) added[content] = token.value("id", -1);
  }
  return added;
}

std::map<Token, std::string> call_marks_of(const Engine& engine) {
  std::map<Token, std::string> marks;
  for (const auto& [content, token] : added_tokens(engine.info().model_path)) {
    const auto is_tag = [&](const CallTag& tag) {
      return content == tag.open || content == tag.close;
    };
    const bool is_mark =
        std::ranges::any_of(kCallTags, is_tag) || std::ranges::count(kCallMarks, content) > 0;
    if (is_mark && token >= 0 && token < engine.info().vocab) marks[token] = content;
  }
  return marks;
}

std::optional<ReasoningTags> reasoning_tags_of(const std::string& model_path,
                                               const std::map<std::string, Token>& added) {
  const fs::path folder(model_path);
  const Json configured = member_of(folder / "tokenizer_config.json", "chat_template");
  const std::string text = text_of(folder / "chat_template.jinja") +
                           text_of(folder / "chat_template.json") + configured.dump();
  const auto id_of = [&](const std::string& tag) {
    const auto found = added.find(tag);
    return found == added.end() ? std::nullopt : std::optional(found->second);
  };
  struct Known {
    const char *begin, *end, *label = "";
  };
  for (const Known& each : {Known{"<think>", "</think>"},
                            {"[THINK]", "[/THINK]"},
                            {"<seed:think>", "</seed:think>"},
                            {"<|channel>", "<channel|>", "thought"}}) {
    if (added.contains(each.end) || text.find(each.end) != std::string::npos) {
      return ReasoningTags{each.begin, each.end, id_of(each.begin), id_of(each.end), each.label};
    }
  }
  return std::nullopt;
}

}  // namespace dendrite::chats
