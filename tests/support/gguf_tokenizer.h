#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/gguf_writer.h"

namespace dendrite::test {

/// Writes the tokenizer of a folder, BPE over bytes or SentencePiece's, as a GGUF file says it.
/// `splitting`: what GGUF calls how it splits texts, for the former. `vocab`: that of the model.
inline void put_tokenizer(GgufWriter& out, const std::filesystem::path& folder,
                          const std::string& splitting, std::size_t vocab = 0) {
  using Json = nlohmann::ordered_json;
  const auto read = [&](const char* name) {
    std::ifstream in(folder / name);
    return in ? Json::parse(in) : Json::object();
  };
  const Json file = read("tokenizer.json");
  const Json& model = file["model"];
  const bool pieces = model["byte_fallback"] == true;
  std::map<std::size_t, std::pair<std::string, int>> tokens;  // text and kind by id
  for (const auto& [text, id] : model["vocab"].items()) {
    const bool byte = pieces && text.size() == 6 && text.starts_with("<0x");
    tokens[id.get<std::size_t>()] = {text, byte ? 6 : 1};
  }
  for (const Json& token : file["added_tokens"]) {
    const auto text = token["content"].get<std::string>();
    const int special = model["unk_token"] == text ? 2 : 3;
    tokens[token["id"].get<std::size_t>()] = {text, token["special"] == true ? special : 4};
  }
  const Json config = read("tokenizer_config.json");
  const auto named = [&](const char* name) -> std::string {
    if (!config.contains(name) || config[name].is_null()) return "";
    const Json& value = config[name];
    return (value.is_string() ? value : value["content"]).get<std::string>();
  };
  const auto has = [&](const std::string& text) {
    return std::ranges::any_of(tokens, [&](const auto& one) { return one.second.first == text; });
  };
  if (const std::string pad = named("pad_token"); !pad.empty() && !has(pad)) {
    tokens[tokens.rbegin()->first + 1] = {pad, 3};
  }
  std::map<std::string, float> score;
  std::vector<std::string> merges;
  for (const Json& merge : model["merges"]) {
    const auto left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    score.emplace(left + right, -static_cast<float>(merges.size()));
    merges.push_back(left + " " + right);
  }
  std::vector<std::string> texts;
  std::vector<std::int32_t> kinds;
  std::vector<float> scores;
  const std::size_t count = std::max(vocab, tokens.empty() ? 0 : tokens.rbegin()->first + 1);
  for (std::size_t id = 0; id < count; ++id) {
    const auto token = tokens.find(id);
    texts.push_back(token == tokens.end() ? "[PAD" + std::to_string(id) + "]"
                                          : token->second.first);
    kinds.push_back(token == tokens.end() ? 5 : token->second.second);
    scores.push_back(score.contains(texts.back()) ? score[texts.back()] : -1e6F);
  }
  out.text("tokenizer.ggml.model", pieces ? "llama" : "gpt2");
  out.texts("tokenizer.ggml.tokens", texts);
  out.i32s("tokenizer.ggml.token_type", kinds);
  if (pieces) {
    out.f32s("tokenizer.ggml.scores", scores);
  } else {
    out.text("tokenizer.ggml.pre", splitting);
    out.texts("tokenizer.ggml.merges", merges);
  }
  const auto name = [&](const char* token, const char* key) {
    const auto place = std::ranges::find(texts, named(token));
    if (place == texts.end()) return;
    out.u32(key, static_cast<std::uint32_t>(place - texts.begin()));
  };
  name("bos_token", "tokenizer.ggml.bos_token_id");
  name("eos_token", "tokenizer.ggml.eos_token_id");
  name("unk_token", "tokenizer.ggml.unknown_token_id");
  name("pad_token", "tokenizer.ggml.padding_token_id");
  const std::string post = file["post_processor"].dump();
  out.boolean("tokenizer.ggml.add_bos_token", post.find("SpecialToken") != std::string::npos);
  std::ifstream chat_template(folder / "chat_template.jinja");
  if (chat_template) {
    out.text("tokenizer.chat_template",
             std::string(std::istreambuf_iterator<char>(chat_template), {}));
  } else if (config.contains("chat_template")) {
    out.text("tokenizer.chat_template", config["chat_template"].get<std::string>());
  }
}

}  // namespace dendrite::test
