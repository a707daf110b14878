#include "text/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string_view>

#include "dendrite/error.h"
#include "text/json.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

// In transformers' order, in which templates would see them.
constexpr std::array<std::string_view, 7> kNamedTokens = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

bool is_named(std::string_view key) {
  return std::find(kNamedTokens.begin(), kNamedTokens.end(), key) != kNamedTokens.end();
}

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw Error(file.string() + ": " + what);
}

/// The object in a JSON file; an empty one if there is no file.
Json read_object(const ModelTexts& texts, const char* name) {
  const std::optional<std::string> text = texts.read(name);
  if (!text) return Json::object();
  const fs::path file = texts.path() / name;
  Json object = parse_json(*text, file.string());
  if (!object.is_object()) fail(file, "got " + describe(object) + ", expected an object");
  return object;
}

/// "<s>", or {"content": "<s>", …} as transformers writes an AddedToken; null gives nothing.
std::optional<std::string> token_content(const fs::path& file, const std::string& key,
                                         const Json& value) {
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  fail(file, "key " + key + ": got " + value.dump() +
                 ", expected a string or an object with a string \"content\"");
}

/// An entry of added_tokens_json from a token written as a string or as an object.
Json added_entry(const fs::path& file, const std::string& key, const Json& value) {
  const std::optional<std::string> content = token_content(file, key, value);
  if (!content) fail(file, "key " + key + ": got null, expected a token");
  Json entry = {{"content", *content}};
  if (!value.is_object()) {
    entry["special"] = true;
    return entry;
  }
  for (const char* flag : {"special", "single_word", "lstrip", "rstrip", "normalized"}) {
    if (!value.contains(flag)) continue;
    if (!value[flag].is_boolean()) {
      fail(file, "key " + key + ": " + flag + " is " + value[flag].dump() + ", expected a boolean");
    }
    entry[flag] = value[flag];
  }
  return entry;
}

bool get_flag(const fs::path& file, const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return false;
  if (!found->is_boolean()) {
    fail(file, std::string("key ") + key + ": got " + found->dump() + ", expected a boolean");
  }
  return found->get<bool>();
}

/// Tokens by id, as "added_tokens_decoder" of tokenizer_config.json lists them.
void add_decoder_entries(const fs::path& file, const Json& decoder, Json& entries) {
  if (!decoder.is_object()) fail(file, "key added_tokens_decoder: expected an object");
  std::map<long, Json> by_id;
  for (const auto& [id, token] : decoder.items()) {
    char* end = nullptr;
    const long number = std::strtol(id.c_str(), &end, 10);
    if (id.empty() || *end != '\0') {
      fail(file, "key added_tokens_decoder: got the id \"" + id + "\", expected a number");
    }
    by_id[number] = added_entry(file, "added_tokens_decoder[" + id + "]", token);
  }
  for (auto& [id, entry] : by_id) entries.push_back(std::move(entry));
}

/// Keys of the older special_tokens_map.json count as if tokenizer_config.json had them.
void merge_special_tokens_map(const ModelTexts& texts, Json& config) {
  const Json map = read_object(texts, "special_tokens_map.json");
  for (const auto& [key, value] : map.items()) {
    Json token = value;
    if (token.is_object() && key != "extra_special_tokens") token["special"] = true;
    config[key] = std::move(token);
  }
}

/// The tokens of the older added_tokens.json, {"<tool>": 32000}, in order of their ids.
void add_legacy_entries(const ModelTexts& texts, const std::vector<std::string>& special,
                        Json& entries) {
  constexpr const char* kName = "added_tokens.json";
  const Json legacy = read_object(texts, kName);
  std::multimap<std::int64_t, std::string> by_id;
  for (const auto& [token, id] : legacy.items()) {
    if (!id.is_number_integer()) {
      fail(texts.path() / kName, "token " + token + ": expected an integer id");
    }
    by_id.emplace(id.get<std::int64_t>(), token);
  }
  for (const auto& [id, token] : by_id) {
    const bool is_special = std::find(special.begin(), special.end(), token) != special.end();
    entries.push_back({{"content", token}, {"special", is_special}, {"if_absent", true}});
  }
}

}  // namespace

TokenizerConfig TokenizerConfig::read(const ModelTexts& texts) {
  constexpr const char* kName = "tokenizer_config.json";
  const fs::path file = texts.path() / kName;
  Json config = read_object(texts, kName);
  TokenizerConfig result;
  Json entries = Json::array();

  const bool has_decoder =
      config.contains("added_tokens_decoder") && !config["added_tokens_decoder"].is_null();
  if (has_decoder) {
    add_decoder_entries(file, config["added_tokens_decoder"], entries);
  } else {
    merge_special_tokens_map(texts, config);
  }

  // Named tokens, then those a multimodal model names itself ("image_token"), then unnamed ones.
  Json extra = config.contains("extra_special_tokens") ? config["extra_special_tokens"] : Json();
  if (extra.empty() && config.contains("additional_special_tokens")) {
    extra = config["additional_special_tokens"];
  }
  Json named = Json::array();
  const auto add_named = [&](const std::string& key, const Json& value) {
    const std::optional<std::string> content = token_content(file, key, value);
    if (!content) return;
    result.named_tokens.emplace_back(key, *content);
    Json entry = added_entry(file, key, value);
    entry["if_absent"] = true;
    entry["named"] = !has_decoder;  // with one, transformers leaves tokens that it does not list
    named.push_back(std::move(entry));
  };
  for (const std::string_view name : kNamedTokens) {
    const auto found = config.find(std::string(name));
    if (found != config.end()) add_named(std::string(name), *found);
  }
  for (const auto& [key, value] : config.items()) {
    if (!is_named(key) && key.ends_with("_token") && value.is_string()) add_named(key, value);
  }
  if (extra.is_object()) {
    for (const auto& [key, value] : extra.items()) add_named(key, value);
  } else if (extra.is_array()) {
    for (const Json& value : extra) {
      Json entry = added_entry(file, "extra_special_tokens", value);
      entry["if_absent"] = true;
      named.push_back(std::move(entry));
    }
  }

  if (!has_decoder) {
    std::vector<std::string> special;
    for (const Json& entry : named) special.push_back(entry["content"].get<std::string>());
    add_legacy_entries(texts, special, entries);
  }
  for (Json& entry : entries) {  // a token that has a name becomes special
    const bool has_name =
        std::any_of(result.named_tokens.begin(), result.named_tokens.end(),
                    [&](const auto& token) { return entry["content"] == token.second; });
    if (has_name) entry["named"] = true;
  }
  for (Json& entry : named) entries.push_back(std::move(entry));

  result.added_tokens_json = entries.dump();
  result.clean_up_spaces = get_flag(file, config, "clean_up_tokenization_spaces");
  result.clean_up_spaces_of_bpe = get_flag(
      file, config, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output");
  if (config.contains("chat_template")) result.chat_template_json = config["chat_template"].dump();
  return result;
}

std::optional<std::string> TokenizerConfig::named_token(const std::string& name) const {
  for (const auto& [key, content] : named_tokens) {
    if (key == name) return content;
  }
  return std::nullopt;
}

}  // namespace dendrite
