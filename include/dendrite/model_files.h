#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What a model's files say, without an engine. `model` is as for Engine::load: a folder, an id of
// the local Hugging Face cache, or a GGUF file. What is wrong with them is an Error, as there.
namespace dendrite {

/// The weights of one format, as a model's files hold them. What goes with a tensor (scales, zero
/// points) counts in its bytes alone.
struct StoredWeights {
  std::string format;  ///< "bf16", "awq", "q4_k"
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
};

/// Those of all formats that a model's weights are in, the one of most bytes first; none where
/// there are no weights. Names, shapes and types are checked, and no weight is read.
std::vector<StoredWeights> stored_weights(const std::string& model);

/// The text of a file of the model's folder ("tokenizer.json"), or what a GGUF file says in its
/// place; nothing where there is none.
std::optional<std::string> model_text(const std::string& model, const std::string& name);

/// A family of models that can be loaded.
struct ModelFamily {
  std::string model_type;                  ///< as config.json says it: "gemma3_text"
  std::vector<std::string> architectures;  ///< of which a file names one
};

/// All of them.
std::vector<ModelFamily> model_families();

}  // namespace dendrite
