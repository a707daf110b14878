#include "io/gguf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "dendrite/error.h"
#include "io/gguf_splitting.h"
#include "io/gguf_vocabulary.h"

namespace dendrite {
namespace {

using Json = nlohmann::ordered_json;
using Kind = GgufVocabulary::Kind;

constexpr const char* kModel = "tokenizer.ggml.model";
constexpr const char* kPre = "tokenizer.ggml.pre";
constexpr const char* kHuggingFace = "tokenizer.huggingface.json";

/// How it does not matter where each token is a character.
constexpr GgufSplitting kAnyway{.name = ""};

/// A token that is more than a character, if there is one.
std::optional<std::string_view> longer_token(const GgufVocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const std::string_view text = vocabulary.texts[id];
    const bool longer =
        vocabulary.kinds[id] == Kind::kNormal && std::ranges::count_if(text, begins_character) > 1;
    if (longer) return text;
  }
  return std::nullopt;
}

const GgufSplitting& splitting_of(const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  const auto* const found = find_splitting(metadata.find_string(kPre).value_or(""));
  if (found != nullptr) return *found;
  if (!longer_token(vocabulary)) return kAnyway;
  metadata.fail(kPre, "one of " + splitting_names() + " (others are not supported)");
}

/// Puts the beginning and the end around texts, where the file says so.
Json post_processor(const GgufMetadata& metadata, const GgufVocabulary& vocabulary, bool adds_bos) {
  Json text = Json::array();
  Json special = Json::object();
  const auto add = [&](const char* token, const char* wish, bool otherwise) {
    const bool wanted = metadata.find_bool(wish).value_or(otherwise);
    if (!wanted) return;
    const auto content = vocabulary.named(metadata, token);
    if (!content) metadata.fail(token, std::string("the id that ") + wish + " needs");
    text.push_back({{"SpecialToken", {{"id", *content}, {"type_id", 0}}}});
    special[std::string(*content)] = {
        {"id", *content}, {"ids", {metadata.require_int(token)}}, {"tokens", {*content}}};
  };
  add("tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token", adds_bos);
  text.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add("tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_eos_token", false);
  if (special.empty()) return nullptr;
  Json pair = text;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", std::move(text)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(special)}};
}

/// Tokens of Phi 3 that take the blanks behind them, which no key says.
bool takes_blanks(const GgufMetadata& metadata, std::string_view text) {
  return metadata.find_string("general.architecture") == "phi3" &&
         metadata.find_string(kModel) == "llama" && text != "<unk>" && text != "<s>" &&
         text != "<|endoftext|>";
}

/// Tokens that are found in a text before anything else is.
Json added_tokens(const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  Json out = Json::array();
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const Kind kind = vocabulary.kinds[id];
    const bool special = kind == Kind::kControl || kind == Kind::kUnknown;
    if (!special && kind != Kind::kUserDefined) continue;
    out.push_back({{"id", id},
                   {"content", vocabulary.texts[id]},
                   {"single_word", false},
                   {"lstrip", false},
                   {"rstrip", special && takes_blanks(metadata, vocabulary.texts[id])},
                   {"normalized", false},
                   {"special", special}});
  }
  return out;
}

/// Unused tokens fill a vocabulary up: no text has them.
Json vocab_of(const GgufVocabulary& vocabulary) {
  Json out = Json::object();
  auto& members = out.get_ref<Json::object_t&>();  // no look-up for each: texts stand once
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    if (vocabulary.kinds[id] == Kind::kUnused) continue;
    members.push_back({std::string(vocabulary.texts[id]), Json(id)});
  }
  return out;
}

/// Whether a merge joins two tokens to a third. Those that do not have no effect: llama.cpp reads
/// past them, and some writers put one in where a file has to have some.
bool makes_token(std::string_view merge, const std::unordered_set<std::string_view>& texts) {
  const std::size_t gap = merge.find(' ', 1);  // a token may begin with a space
  if (gap == merge.npos) return true;          // which is said by who reads it
  const std::string_view left = merge.substr(0, gap);
  const std::string_view right = merge.substr(gap + 1);
  return texts.contains(left) && texts.contains(right) &&
         texts.contains(std::string(left) + std::string(right));
}

/// "left right" each. A file may lack them, as some writers leave out what is empty, where no token
/// is more than a character.
std::vector<std::string_view> merges_of(const GgufMetadata& metadata,
                                        const GgufVocabulary& vocabulary) {
  constexpr const char* kKey = "tokenizer.ggml.merges";
  if (auto merges = metadata.find_strings(kKey)) return *std::move(merges);
  if (const auto token = longer_token(vocabulary)) {
    metadata.fail(kKey,
                  "an array of strings, as token " + in_quotes(*token) + " is merged of others");
  }
  return {};
}

/// Those that the file has and that make a token.
Json merges_of_tokens(const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  Json merges = Json::array();
  std::unordered_set<std::string_view> texts;
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    if (vocabulary.kinds[id] != Kind::kUnused) texts.insert(vocabulary.texts[id]);
  }
  for (const std::string_view merge : merges_of(metadata, vocabulary)) {
    if (makes_token(merge, texts)) merges.push_back(merge);
  }
  return merges;
}

Json of_bytes(const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  const GgufSplitting& splitting = splitting_of(metadata, vocabulary);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens(metadata, vocabulary)},
          {"normalizer", splitting.nfc ? Json{{"type", "NFC"}} : Json()},
          {"pre_tokenizer", pre_tokenizer(splitting)},
          {"post_processor", post_processor(metadata, vocabulary, splitting.adds_bos)},
          {"decoder", byte_level(true)},
          {"model",
           {{"type", "BPE"},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", splitting.ignore_merges},
            {"vocab", vocab_of(vocabulary)},
            {"merges", merges_of_tokens(metadata, vocabulary)}}}};
}

Json scored_merges(const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  Json merges = Json::array();
  for (const auto& [left, right] : merges_by_score(metadata, vocabulary)) {
    merges.push_back({left, right});
  }
  return merges;
}

/// SentencePiece's BPE: blanks are characters, and what is no token is its bytes.
Json of_sentencepiece(const GgufMetadata& metadata, const GgufVocabulary& vocabulary, Json merges) {
  constexpr const char* kSpace = "\u2581";
  const bool prefix = metadata.find_bool("tokenizer.ggml.add_space_prefix").value_or(true);
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  const auto unknown = vocabulary.named(metadata, "tokenizer.ggml.unknown_token_id");
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens(metadata, vocabulary)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", post_processor(metadata, vocabulary, true)},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", unknown ? Json(*unknown) : Json()},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"ignore_merges", false},
            {"vocab", vocab_of(vocabulary)},
            {"merges", std::move(merges)}}}};
}

/// Text of a document whose strings come from the file.
std::string dumped(const GgufMetadata& metadata, const Json& document) {
  try {
    return document.dump();
  } catch (const Json::exception&) {
    throw Error(std::string(metadata.file()) +
                ": the tokenizer holds a text that is no UTF-8, expected UTF-8");
  }
}

/// One template, or several by their names.
Json chat_template(const GgufMetadata& metadata) {
  const std::string kKey = "tokenizer.chat_template";
  const auto whole = metadata.find_string(kKey);
  const auto names = metadata.find_strings("tokenizer.chat_templates");
  if (!names || names->empty()) return whole ? Json(*whole) : Json();
  Json out = Json::array();
  if (whole) out.push_back({{"name", "default"}, {"template", *whole}});
  for (const std::string_view name : *names) {
    const std::string key = kKey + "." + std::string(name);
    if (name == "default" && whole && !metadata.has(key)) continue;
    out.push_back({{"name", name}, {"template", metadata.require_string(key)}});
  }
  return out;
}

}  // namespace

bool has_gguf_tokenizer(const GgufMetadata& metadata) {
  if (metadata.has(kHuggingFace)) return true;
  const auto model = metadata.find_string(kModel);
  return model && *model != "none" && *model != "no_vocab";
}

std::string gguf_tokenizer(const GgufMetadata& metadata) {
  if (const auto whole = metadata.find_string(kHuggingFace)) return std::string(*whole);
  const std::string_view model = metadata.find_string(kModel).value_or("");
  if (model == "gpt2") {
    return dumped(metadata, of_bytes(metadata, GgufVocabulary::read(metadata)));
  }
  if (model == "llama" || model == "gemma4") {
    const GgufVocabulary vocabulary = GgufVocabulary::read(metadata);
    Json merges = model == "llama" ? scored_merges(metadata, vocabulary)
                                   : merges_of_tokens(metadata, vocabulary);
    return dumped(metadata, of_sentencepiece(metadata, vocabulary, std::move(merges)));
  }
  metadata.fail(kModel, "gpt2, llama or gemma4 (others are not supported)");
}

std::string gguf_tokenizer_config(const GgufMetadata& metadata) {
  Json out = Json::object();
  if (metadata.has("tokenizer.ggml.tokens")) {
    const std::vector<std::string_view> texts = metadata.require_strings("tokenizer.ggml.tokens");
    GgufVocabulary vocabulary;
    vocabulary.texts = texts;
    constexpr std::pair<const char*, const char*> kNamed[] = {
        {"bos", "bos_token"},       {"eos", "eos_token"},     {"unknown", "unk_token"},
        {"seperator", "sep_token"}, {"padding", "pad_token"}, {"mask", "mask_token"}};
    for (const auto& [key, name] : kNamed) {
      const auto text =
          vocabulary.named(metadata, "tokenizer.ggml." + std::string(key) + "_token_id");
      if (text) out[name] = *text;
    }
  }
  if (Json source = chat_template(metadata); !source.is_null()) {
    out["chat_template"] = std::move(source);
  }
  return dumped(metadata, out);
}

}  // namespace dendrite
