#include "model/generation_config.h"

#include <algorithm>
#include <limits>

#include "io/json_file.h"

namespace dendrite {
namespace {

struct Key {
  const char* name;
  double neutral = 0;  // a number that changes nothing
};

/// What changes the texts of transformers and not ours. (Keys that only matter beside one of these
/// are not named: length_penalty, early_stopping, diversity_penalty of beams.)
constexpr Key kNotObeyed[] = {
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"num_return_sequences", 1},
    {"penalty_alpha"},
    {"dola_layers"},
    {"min_length"},
    {"max_time"},
    {"no_repeat_ngram_size"},
    {"encoder_no_repeat_ngram_size"},
    {"encoder_repetition_penalty", 1},
    {"typical_p", 1},
    {"top_h"},
    {"epsilon_cutoff"},
    {"eta_cutoff"},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"forced_decoder_ids"},
    {"begin_suppress_tokens"},
    {"exponential_decay_length_penalty"},
    {"force_words_ids"},
    {"constraints"},
    {"sequence_bias"},
    {"token_healing"},
    {"guidance_scale", 1},
    {"watermarking_config"},
};

void ban(std::int64_t id, std::int64_t vocab, std::vector<std::int32_t>& banned) {
  if (id < 0 || id >= vocab) return;  // nothing draws it
  const auto token = static_cast<std::int32_t>(id);
  if (std::ranges::find(banned, token) == banned.end()) banned.push_back(token);
}

/// Strings, or one.
std::vector<std::string> read_strings(const JsonObject& json, const char* key) {
  if (!json.says(key)) return {};
  std::vector<std::string> out;
  if (json.is_string(key)) {
    out.push_back(json.require_string(key));
  } else {
    out = json.find_strings(key).value_or(std::vector<std::string>{});
  }
  std::erase(out, "");
  return out;
}

}  // namespace

GenerationDefaults read_generation(const JsonObject& json, std::int64_t vocab,
                                   std::vector<std::string>& warnings) {
  constexpr NumberRange kShare{0.0, 1.0};
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  GenerationDefaults out{
      .do_sample = json.find_bool("do_sample"),
      .temperature = json.find_number("temperature", {0.0, 1e3}),
      .top_k = json.find_int("top_k", {-1, kMost}),
      .top_p = json.find_number("top_p", kShare),
      .min_p = json.find_number("min_p", kShare),
      .repetition_penalty = json.find_number("repetition_penalty", {1e-6, 1e6}),
      .presence_penalty = json.find_number("presence_penalty", {-1e6, 1e6}),
      .frequency_penalty = json.find_number("frequency_penalty", {-1e6, 1e6}),
      .max_new_tokens = json.find_int("max_new_tokens", {0, kMost}),
      .min_new_tokens = json.find_int("min_new_tokens", {0, kMost}),
      .stop_strings = read_strings(json, "stop_strings"),
      .banned = {},
      .bad_words = {},
  };
  std::string not_obeyed;
  const auto name = [&](const std::string& what) {
    not_obeyed += (not_obeyed.empty() ? "" : ", ") + what;
  };
  const auto suppressed = json.find_ints("suppress_tokens");
  for (const std::int64_t id : suppressed.value_or(std::vector<std::int64_t>{})) {
    ban(id, vocab, out.banned);
  }
  const auto words = json.find_int_lists("bad_words_ids");
  for (const auto& word : words.value_or(std::vector<std::vector<std::int64_t>>{})) {
    if (word.size() == 1) ban(word.front(), vocab, out.banned);
    const auto is_token = [&](std::int64_t id) { return id >= 0 && id < vocab; };
    if (word.size() < 2 || !std::ranges::all_of(word, is_token)) continue;  // nothing completes it
    out.bad_words.emplace_back(word.begin(), word.end());
  }
  for (const Key& key : kNotObeyed) {
    if (json.says(key.name, key.neutral)) name(std::string(key.name) + " " + json.shown(key.name));
  }
  if (!not_obeyed.empty()) warnings.push_back(json.file() + ": is not obeyed in " + not_obeyed);
  return out;
}

}  // namespace dendrite
