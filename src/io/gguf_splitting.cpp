#include "io/gguf_splitting.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace dendrite {
namespace {

// The expressions are those of the models' own tokenizer.json files.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kSeed =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr GgufSplitting kSplittings[] = {
    {.name = "gpt-2"},
    {.name = "llama-bpe", .regex = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama3", .regex = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .regex = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "lfm2", .regex = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "smaug-bpe", .regex = kLlama3},
    {.name = "dbrx", .regex = kLlama3},
    {.name = "glm4", .regex = kLlama3, .ignore_merges = true},
    {.name = "qwen2", .regex = kQwen2, .nfc = true},
    {.name = "deepseek-r1-qwen", .regex = kQwen2, .nfc = true},
    {.name = "qwen35", .regex = kQwen35, .nfc = true},
    {.name = "tekken", .regex = kTekken, .ignore_merges = true, .adds_bos = true},
    {.name = "gpt-4o", .regex = kGpt4o},
    {.name = "llama4", .regex = kGpt4o},
    {.name = "minimax-m2", .regex = kGpt4o},
    {.name = "seed-coder", .regex = kSeed},
    {.name = "exaone4"},
    {.name = "smollm", .digits = true},
    {.name = "starcoder", .digits = true},
    {.name = "refact", .digits = true}};

}  // namespace

const GgufSplitting* find_splitting(std::string_view name) {
  const auto* const found = std::ranges::find(kSplittings, name, &GgufSplitting::name);
  return found == std::end(kSplittings) ? nullptr : found;
}

std::string splitting_names() {
  std::string all;
  for (const GgufSplitting& one : kSplittings) {
    all += (all.empty() ? "" : ", ") + std::string(one.name);
  }
  return all;
}

nlohmann::ordered_json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

nlohmann::ordered_json pre_tokenizer(const GgufSplitting& splitting) {
  using Json = nlohmann::ordered_json;
  Json steps = Json::array();
  if (splitting.digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (splitting.regex != nullptr) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", splitting.regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(byte_level(splitting.regex == nullptr));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

}  // namespace dendrite
