#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dendrite::fuzz {

/// What the model for fuzzing has.
struct TinyModel {
  bool recurrent = false;  // around one layer of full attention two recurrent ones
  bool experts = false;    // MLPs are mixtures of experts
  std::string family{};    // of tiny_families(), instead of a Qwen
};
/// Values of config.json's model_type.
std::vector<std::string> tiny_families();
/// Whether K of a model can't be moved, so that compositions are exact.
bool is_only_exact(const std::string& model_type);
/// Whether some of its layers are recurrent.
bool is_recurrent(const TinyModel& kind);
/// A model for fuzzing: two layers, one of full attention and one with a sliding window, 300 ids,
/// of which some end a sequence and some have no text; a byte-level tokenizer, so that most ids are
/// parts of characters. Without weights: it is loaded with load_format "dummy".
/// And a block drafter for it, if there may be one.
void write_tiny_model(const std::filesystem::path& folder, const TinyModel& kind);
/// Where a model's drafter is, if it has one.
std::filesystem::path drafter_of(const std::filesystem::path& folder);

}  // namespace dendrite::fuzz
