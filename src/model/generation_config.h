#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dendrite {

class JsonObject;

/// generation_config.json; what the file does not say is nullopt, or empty.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<std::int64_t> max_new_tokens;
  std::optional<std::int64_t> min_new_tokens;
  std::vector<std::string> stop_strings;  // none is empty
  /// Tokens that are never drawn: suppress_tokens, and bad_words_ids of one token each; ...
  std::vector<std::int32_t> banned;
  /// ... and the longer ones of these, which are never completed.
  std::vector<std::vector<std::int32_t>> bad_words;
};

/// Throws Error naming file and key for a wrong type or range. What it says and nothing obeys goes
/// into `warnings`, in one line; not the length of texts, which callers say.
GenerationDefaults read_generation(const JsonObject& json, std::int64_t vocab,
                                   std::vector<std::string>& warnings);

}  // namespace dendrite
