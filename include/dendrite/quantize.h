#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "dendrite/perplexity.h"

// A model's files written anew with fewer bits a weight.
namespace dendrite {

struct QuantizeOptions {
  /// What the matrices of layers become: fp8 (E4M3, a scale for each row), int8 (the same), or int4
  /// (a scale for `group` neighbours of a row).
  std::string format{};
  /// int4: 128, 64 or 32. 0: the largest of these that all matrices can have. Matrices whose rows
  /// are not whole groups are left as they are.
  std::int64_t group = 0;
  /// What the matrix that gives the logits becomes: fp8 or int8, as above. Empty: it stays. Not
  /// where it is the embeddings, too, which no reader of the layout looks up in rounded ones.
  std::string output_quantization{};
  /// What the model is used for, in some ten thousand tokens of texts; of more, the first are taken
  /// (kCalibrationTokens). With it, inputs that matter more are rounded less; without, all count
  /// the same. It takes the model's memory and a CPU's time for its prompt.
  std::vector<TextSample> calibration{};
  int threads = 0;           ///< 0: one a core
  std::stop_token cancel{};  ///< looked at between matrices and steps
  /// Told what is being done, and how far it has come.
  std::function<void(const std::string& what, std::int64_t done, std::int64_t all)> on_progress{};
};

inline constexpr std::int64_t kCalibrationTokens = 32768;

struct Quantized {
  std::int64_t matrices = 0;            ///< that were rounded
  std::vector<std::string> left{};      ///< matrices of layers that were not
  std::int64_t group = 0;               ///< of int4
  std::int64_t calibration_tokens = 0;  ///< that were taken
  /// Of the places where inputs can be scaled (each belongs to the matrices that read it), and
  /// where that makes the error less.
  std::int64_t places = 0, scaled = 0;
  /// The mean over those places of the error beside that without scaling; 1: no less.
  double error_ratio = 1;
  bool cancelled = false;  ///< there is no folder
};

/// Reads a folder of f32, f16 or bf16 safetensors (or an id of the local Hugging Face cache) and
/// writes the folder `out` in the layout of compressed-tensors: config.json with a
/// "quantization_config", weights in as many files as before, and all other files as they are.
/// Embeddings, norms and, but for `output_quantization`, the output matrix keep their type. `out`
/// is made whole or not at all. Experts of a layer that lie in one tensor are written each by
/// itself, as the layout's readers have them; those of gpt-oss that are MXFP4 stay as they are, and
/// no other program reads such a folder.
/// Throws Error where there is something of that name, and naming file and tensor for what can't be
/// read, is no number, or has too few bits already.
Quantized quantize(const std::string& model, const std::filesystem::path& out,
                   const QuantizeOptions& options);

}  // namespace dendrite
