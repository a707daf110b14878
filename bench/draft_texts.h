#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "options.h"

namespace dendrite::bench {

/// A kind of text that speculation is measured on.
struct DraftText {
  std::string name;
  std::string kind;  // of those that drafters are compared on elsewhere; or "made up"
  std::vector<std::vector<Token>> prompts;  // as many as there are, at least one
  DecodeParams params;                      // without speculation
  bool is_repeated = false;                 // the session has heard the very text before
  bool is_made_up() const { return kind == "made up"; }
};

struct TextOptions {
  std::vector<std::string> names;  // empty: all that the model was trained for, if any
  std::int64_t prompt_length = 128;
  std::int64_t output_length = 128;
  double temperature = 0.7;

  void add_to(CLI::App& app);
  /// `folder`: the model's, empty where its weights are random. Throws Error for a text that it
  /// does not have.
  std::vector<DraftText> make(const Engine& engine, const std::filesystem::path& folder) const;
};

/// Kinds of text that drafters are compared on elsewhere, and that no shipped model writes.
std::vector<std::string> kinds_without_text();

}  // namespace dendrite::bench
