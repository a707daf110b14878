#include "dendrite/quantize.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

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
#include "quantize/packed_files.h"
#include "quantize/scaling.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

constexpr std::array kGroups{std::int64_t{128}, std::int64_t{64}, std::int64_t{32}};

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
  const ModelInfo info = make_loader(folder)->info();
  if (const ExpertNames& names = load_config(folder).expert_names;
      names.in_turns || names.transposed || names.fused_gate_up != ExpertNames{}.fused_gate_up) {
    throw Error(
        folder.path().string() + ": is of type " + info.type + ", whose experts lie in " +
        names.fused_gate_up +
        "; expected those of experts.0.gate_proj, or experts.gate_up_proj with rows of gates "
        "first");
  }
  for (const StoredWeights& weights : stored_weights_of(folder)) {  // and looks at all of them
    if (weights.format == "f32" || weights.format == "f16" || weights.format == "bf16") continue;
    throw Error(folder.path().string() + ": holds weights in " + weights.format +
                " already; expected f32, f16 or bf16");
  }
  return folder;
}

/// By the names that most have, by those of Mixtral's experts, LFM's MLPs and Granite 4's, and by
/// those of delta networks, less what says how much is written and forgotten.
bool multiplies(std::string_view name) {
  constexpr std::string_view kEnds[] = {
      "_proj.weight",        ".w1.weight",           ".w2.weight",
      ".w3.weight",          ".in_proj_z.weight",    ".in_proj_qkvz.weight",
      ".in_proj_qkv.weight", ".input_linear.weight", ".output_linear.weight"};
  constexpr std::string_view kForget[] = {".b_proj.weight", ".f_a_proj.weight", ".f_b_proj.weight"};
  const auto is_end = [name](std::string_view end) { return name.ends_with(end); };
  return std::ranges::any_of(kEnds, is_end) && std::ranges::none_of(kForget, is_end);
}

/// Those of a tensor that holds all experts' of a layer: each by its own name, gates and ups apart.
void add_experts(const ModelFolder& folder, std::string_view tensor, Matrices& out,
                 Parted& parted) {
  const std::vector<std::int64_t>& shape = folder.find(tensor)->shape;
  const bool two = tensor.ends_with("gate_up_proj");
  const std::string before(tensor.substr(0, tensor.rfind('.') + 1));
  const std::int64_t rows = two ? shape[1] / 2 : shape[1];
  for (std::int64_t expert = 0; expert < shape[0]; ++expert) {
    const StoredMatrix whole = folder.slice(tensor, {expert, shape[0]}, shape[1], shape[2]);
    const auto add = [&](const char* part, std::int64_t first) {
      const std::string name = before + std::to_string(expert) + "." + part + ".weight";
      const auto added = out.emplace(name, whole).first;
      added->second.name = added->first;
      added->second.data = whole.row(first);
      added->second.rows = rows;
      parted[std::string(tensor)].push_back(name);
    };
    add(two ? "gate_proj" : "down_proj", 0);
    if (two) add("up_proj", rows);
  }
}

/// The matrices of layers that multiply.
Matrices matrices_of(const ModelFolder& folder, Parted& parted) {
  const std::string layers = tensor_prefix(folder) + "layers.";
  Matrices out;
  for (const std::string_view name : folder.names()) {
    const TensorInfo& tensor = *folder.find(name);
    if (!name.starts_with(layers)) continue;
    if (tensor.shape.size() == 2 && multiplies(name)) {
      out.emplace(name, folder.matrix(name, tensor.shape[0], tensor.shape[1]));
    } else if (tensor.shape.size() == 3 &&
               (name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj"))) {
      add_experts(folder, name, out, parted);
    }
  }
  return out;
}

/// How a reader finds a module whose name it may have behind another beginning than the file.
std::string anywhere(std::string_view name) {
  std::string out = "re:.*";
  for (const char letter : name) {
    if (letter == '.') out += '\\';
    out += letter;
  }
  return out + "$";
}

/// Modules that readers must not take for packed ones, beside those that are left out: other
/// matrices of the model, and all of what is not its text.
std::vector<std::string> modules_that_stay(const ModelFolder& folder, const Matrices& matrices) {
  constexpr std::string_view kEnd = ".weight";
  const std::string text = tensor_prefix(folder);
  std::vector<std::string> out;
  for (const std::string_view name : folder.names()) {
    const bool is_matrix = folder.find(name)->shape.size() >= 2 && name.ends_with(kEnd);
    if (!is_matrix || matrices.contains(name) || name == Packings::kOutput) continue;
    std::string_view module = name.substr(0, name.size() - kEnd.size());
    if (module.ends_with("embed_tokens")) continue;
    if (text == "model.") {
      out.emplace_back(module);
      continue;
    }
    const std::string_view begin = module.starts_with(text) ? std::string_view(text) : "model.";
    if (module.starts_with(begin)) module.remove_prefix(begin.size());
    out.push_back(anywhere(module));
  }
  return out;
}

std::int64_t common_group(const Matrices& matrices) {
  for (const std::int64_t group : kGroups) {
    const auto fits = [group](const auto& one) { return one.second.cols % group == 0; };
    if (std::ranges::all_of(matrices, fits)) return group;
  }
  return kGroups.back();
}

/// Takes those that are not whole groups out of the matrices; their modules.
std::vector<std::string> leave_out(Matrices& matrices, std::int64_t group) {
  std::vector<std::string> left;
  std::erase_if(matrices, [&](const auto& one) {
    const auto& [name, matrix] = one;
    const bool leaves = group > 0 && matrix.cols % group != 0;
    if (leaves) left.push_back(name.substr(0, name.size() - std::string(".weight").size()));
    return leaves;
  });
  return left;
}

/// Takes experts out of the matrices where not all of a layer's are whole groups: they stay in
/// their two tensors, which are read together. These.
std::vector<std::string> leave_whole(Parted& parted, Matrices& matrices, std::int64_t group) {
  std::vector<std::string> left;
  const auto of_layer = [](std::string_view tensor) { return tensor.substr(0, tensor.rfind('.')); };
  std::set<std::string, std::less<>> whole;
  for (const auto& [tensor, names] : parted) {
    const std::int64_t cols = matrices.find(names.front())->second.cols;
    if (group > 0 && cols % group != 0) whole.emplace(of_layer(tensor));
  }
  std::erase_if(parted, [&](const auto& one) {
    if (!whole.contains(of_layer(one.first))) return false;
    for (const std::string& name : one.second) matrices.erase(name);
    left.push_back(one.first);
    return true;
  });
  return left;
}

StoredMatrix output_matrix_of(const ModelFolder& folder) {
  const DecoderConfig config = load_config(folder);
  if (config.tie_embeddings) {
    throw Error(
        folder.path().string() + "/config.json: the embeddings give the logits " +
        "(tie_word_embeddings), which readers of the layout can't look up in rounded ones; " +
        "expected a matrix of its own for them, or output_quantization when it is loaded");
  }
  const std::string name(Packings::kOutput);
  return folder.matrix(name, config.vocab, config.dim);
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
  done.left = leave_whole(parted, matrices, packing.group);
  for (std::string& module : leave_out(matrices, packing.group)) {
    done.left.push_back(std::move(module));
  }
  if (matrices.empty()) {
    throw Error(folder.path().string() + ": no matrix of a layer can be " + options.format +
                (packing.group > 0 ? " in groups of " + std::to_string(packing.group) : "") +
                "; expected rows of whole groups");
  }
  done.group = packing.group;
  const ThreadPool workers(options.threads > 0 ? options.threads : usable_cores());
  const Packings packings{packing, packing_of_output(options.output_quantization)};
  std::optional<StoredMatrix> output;
  if (packings.output) output = output_matrix_of(folder);
  const Scalings scalings = calibrate(folder, matrices, packing, workers, options, done);
  if (output) matrices.emplace(Packings::kOutput, *output);
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
                           modules_that_stay(folder, matrices)));
  copy_other_files(folder.path(), target.path());
  target.become_target();
  return done;
}

}  // namespace dendrite
