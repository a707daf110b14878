#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dendrite {

/// How BPE over bytes splits texts before it merges, by its name in GGUF files.
struct GgufSplitting {
  std::string_view name;
  const char* regex = nullptr;  // null: GPT-2's
  bool digits = false;          // each apart, before that
  bool nfc = false;
  bool ignore_merges = false;  // a whole piece that is a token is it
  bool adds_bos = false;       // where the file doesn't say
};

/// Null: another way would give other tokens.
const GgufSplitting* find_splitting(std::string_view name);

/// All of them, for messages. To support another one: a row in gguf_splitting.cpp.
std::string splitting_names();

/// What tokenizer.json says of it: "pre_tokenizer", whose last step, and the decoder, is this.
nlohmann::ordered_json pre_tokenizer(const GgufSplitting& splitting);
nlohmann::ordered_json byte_level(bool use_regex);

}  // namespace dendrite
