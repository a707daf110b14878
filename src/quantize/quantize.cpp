#include "dendrite/quantize.h"

#include <algorithm>
#include <array>
#include <optional>

#include "backend/backend.h"
#include "backend/host_cores.h"
#include "dendrite/error.h"
#include "io/new_folder.h"
#include "io/output_file.h"
#include "model/config_reader.h"
#include "model/loader.h"
#include "model/stored.h"
#include "model/weights.h"
#include "quant/formats.h"
#include "quantize/activations.h"
#include "quantize/config_text.h"
#include "quantize/matrices.h"
#include "quantize/packed_files.h"
#include "quantize/scaling.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

std::optional<RowPacking> packing_of_output(const std::string& format) {
  if (format.empty()) return std::nullopt;
  if (format == "fp8") return RowPacking{.kind = PackedKind::kFp8};
  if (format == "int8") return RowPacking{.kind = PackedKind::kInt8};
  throw Error("quantize: output_quantization is \"" + format + "\"; expected fp8, int8 or nothing");
}

PackedKind kind_of(const std::string& format) {
  if (format == "fp8") return PackedKind::kFp8;
  if (format == "int8") return PackedKind::kInt8;
  if (format == "int4") return PackedKind::kInt4;
  throw Error("quantize: format is \"" + format + "\"; expected fp8, int8 or int4");
}

void check(const QuantizeOptions& options) {
  const bool four = kind_of(options.format) == PackedKind::kInt4;
  packing_of_output(options.output_quantization);
  const bool known = std::ranges::find(kGroups, options.group) != kGroups.end();
  if (options.group != 0 && !(four && known)) {
    throw Error("quantize: group is " + std::to_string(options.group) + " of " + options.format +
                "; expected 128, 64 or 32 of int4, or 0");
  }
  if (options.threads < 0) {
    throw Error("quantize: threads is " + std::to_string(options.threads) + "; expected >= 0");
  }
}

ModelFolder open_plain(const std::string& model) {
  if (const auto file = find_model_file(model)) {
    throw Error(file->string() +
                ": is a file; expected a folder of safetensors in f32, f16 or bf16");
  }
  ModelFolder folder = ModelFolder::open(model);
  const bool packed_experts = load_config(folder).expert_names.in_mxfp4;  // which stay
  for (const StoredWeights& weights : stored_weights_of(folder)) {  // and looks at all of them
    if (weights.format == "f32" || weights.format == "f16" || weights.format == "bf16") continue;
    if (weights.format == "mxfp4" && packed_experts) continue;
    throw Error(folder.path().string() + ": holds weights in " + weights.format +
                " already; expected f32, f16 or bf16");
  }
  return folder;
}

SourceMatrix output_matrix_of(const ModelFolder& folder, const std::string& name) {
  const DecoderConfig config = load_config(folder);
  if (config.tie_embeddings) {
    throw Error(
        folder.path().string() + "/config.json: the embeddings give the logits " +
        "(tie_word_embeddings), which readers of the layout can't look up in rounded ones; " +
        "expected a matrix of its own for them, or output_quantization when it is loaded");
  }
  return {folder.matrix(name, config.vocab, config.dim), config.vocab, config.dim};
}

/// What belongs to a model beside its weights: every other file of the folder, but for hidden ones.
void copy_other_files(const fs::path& from, const fs::path& to) {
  const std::array weights{".safetensors", ".bin", ".pt",      ".pth",
                           ".gguf",        ".h5",  ".msgpack", ".onnx"};
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    const bool leaves = !entry.is_regular_file() || name.starts_with(".") ||
                        name == "config.json" || name.ends_with(".index.json") ||
                        std::ranges::find(weights, entry.path().extension()) != weights.end();
    if (leaves) continue;
    std::error_code error;
    if (!fs::copy_file(entry.path(), to / name, error)) {
      throw Error(entry.path().string() + ": cannot be copied to " + to.string() + ": " +
                  error.message());
    }
  }
}

/// What is told of it, with its name.
std::function<void(std::int64_t, std::int64_t)> progress(const QuantizeOptions& options,
                                                         const char* what) {
  if (!options.on_progress) return {};
  return [&options, what](std::int64_t done, std::int64_t all) {
    options.on_progress(what, done, all);
  };
}

Scalings calibrate(const ModelFolder& folder, const Matrices& matrices, const RowPacking& packing,
                   const ThreadPool& workers, const QuantizeOptions& options, Quantized& out) {
  if (options.calibration.empty()) return {};
  const Activations activations = activations_of(folder.path().string(), options.calibration,
                                                 {.tokens = kCalibrationTokens,
                                                  .threads = options.threads,
                                                  .cancel = options.cancel,
                                                  .on_progress = progress(options, "calibrating")});
  if (activations.cancelled) return {};
  const std::unique_ptr<ModelLoader> loader = make_loader(folder);
  Scalings scalings = find_scalings(
      folder, loader->info(), matrices, activations, workers,
      {.packing = packing, .cancel = options.cancel, .on_progress = progress(options, "scaling")});
  out.calibration_tokens = activations.tokens;
  out.places = scalings.places;
  out.scaled = scalings.scaled;
  out.error_ratio = scalings.error_ratio;
  return scalings;
}

}  // namespace

Quantized quantize(const std::string& model, const std::filesystem::path& out,
                   const QuantizeOptions& options) {
  check(options);
  NewFolder target(out);
  const ModelFolder folder = open_plain(model);
  Parted parted;
  Matrices matrices = matrices_of(folder, parted);
  Quantized done;
  RowPacking packing{.kind = kind_of(options.format)};
  if (packing.kind == PackedKind::kInt4) {
    packing.group = options.group > 0 ? options.group : common_group(matrices);
  }
  done.left = leave_out(matrices, parted, packing.group);
  if (matrices.empty()) {
    throw Error(folder.path().string() + ": no matrix of a layer can be " + options.format +
                (packing.group > 0 ? " in groups of " + std::to_string(packing.group) : "") +
                "; expected rows of whole groups");
  }
  done.group = packing.group;
  const ThreadPool workers(options.threads > 0 ? options.threads : usable_cores());
  const Packings packings{packing, packing_of_output(options.output_quantization),
                          output_name(folder)};
  std::optional<SourceMatrix> output;
  if (packings.output) output = output_matrix_of(folder, packings.output_name);
  const Scalings scalings = calibrate(folder, matrices, packing, workers, options, done);
  if (output) matrices.emplace(packings.output_name, *output);
  done.matrices = std::ssize(matrices);
  done.cancelled = options.cancel.stop_requested() ||
                   !write_packed_files(folder, target.path(), matrices, parted, scalings, workers,
                                       {.packings = packings,
                                        .cancel = options.cancel,
                                        .on_progress = progress(options, "writing")});
  if (done.cancelled) return done;
  constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
  write_text(target.path() / "config.json",
             packed_config(folder.text("config.json", kMostBytes), packings,
                           modules_that_stay(folder, matrices, parted)));
  copy_other_files(folder.path(), target.path());
  target.become_target();
  return done;
}

}  // namespace dendrite
