#include "quantize/matrices.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "model/config_reader.h"
#include "model/weights.h"
#include "quant/formats.h"
#include "quantize/packings.h"

namespace dendrite {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBias = "_bias";  // beside a matrix of all experts

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

/// Takes tensors that hold all experts' of a layer apart: each by its own name, gates and ups
/// apart.
class ExpertTensors {
 public:
  ExpertTensors(const ModelFolder& folder, Matrices& matrices, Parted& parted)
      : folder_(folder),
        names_(load_config(folder).expert_names),
        matrices_(matrices),
        parted_(parted) {}

  void take(std::string_view tensor) {
    const std::size_t dims = folder_.find(tensor)->shape.size();
    for (const bool down : {false, true}) {
      const std::string fused = names_.block + (down ? names_.fused_down : names_.fused_gate_up);
      const std::vector<std::string> parts =
          down ? std::vector{names_.down} : std::vector{names_.gate, names_.up};
      if (dims == 3 && tensor.ends_with("." + fused)) {
        add_matrices(tensor, experts_of(tensor, fused), parts);
      } else if (dims == 2 && names_.in_turns &&
                 tensor.ends_with("." + fused + std::string(kBias)) &&
                 folder_.find(tensor.substr(0, tensor.size() - kBias.size())) != nullptr) {
        add_biases(tensor, experts_of(tensor, fused + std::string(kBias)), parts);
      }
    }
  }

 private:
  /// What is before the number of an expert.
  std::string experts_of(std::string_view tensor, std::string_view end) const {
    return std::string(tensor.substr(0, tensor.size() - end.size())) + names_.block + "experts.";
  }

  void add_matrices(std::string_view tensor, const std::string& experts,
                    const std::vector<std::string>& parts) {
    const std::vector<std::int64_t>& shape = folder_.find(tensor)->shape;
    const auto kinds = std::ssize(parts);
    SourceMatrix matrix;
    matrix.transposed = names_.in_turns || names_.transposed;
    matrix.rows = shape[matrix.transposed ? 2 : 1] / kinds;
    matrix.cols = shape[matrix.transposed ? 1 : 2];
    matrix.step = names_.in_turns ? kinds : 1;
    PartedTensor& of = parted_[std::string(tensor)];
    of.experts = experts;
    for (std::int64_t expert = 0; expert < shape[0]; ++expert) {
      matrix.stored = folder_.slice(tensor, {expert, shape[0]}, shape[1], shape[2]);
      for (std::int64_t kind = 0; kind < kinds; ++kind) {
        const std::string name = experts + std::to_string(expert) + "." +
                                 parts[static_cast<std::size_t>(kind)] + std::string(kWeight);
        matrix.first = kind * (names_.in_turns ? 1 : matrix.rows);
        const auto added = matrices_.emplace(name, matrix).first;
        added->second.stored.name = added->first;
        of.matrices.push_back(name);
      }
    }
  }

  void add_biases(std::string_view tensor, const std::string& experts,
                  const std::vector<std::string>& parts) {
    const std::vector<std::int64_t>& shape = folder_.find(tensor)->shape;
    const auto kinds = std::ssize(parts);
    PartedTensor& of = parted_[std::string(tensor)];
    of.experts = experts;
    for (std::int64_t expert = 0; expert < shape[0]; ++expert) {
      for (std::int64_t kind = 0; kind < kinds; ++kind) {
        of.biases.push_back({.name = experts + std::to_string(expert) + "." +
                                     parts[static_cast<std::size_t>(kind)] + ".bias",
                             .count = shape[1] / kinds,
                             .first = expert * shape[1] + kind,
                             .step = kinds});
      }
    }
  }

  const ModelFolder& folder_;
  ExpertNames names_;
  Matrices& matrices_;
  Parted& parted_;
};

/// How a reader finds a module whose name it may have behind another beginning than the file.
std::string anywhere(std::string_view name) {
  std::string out = "re:.*";
  for (const char letter : name) {
    if (letter == '.') out += '\\';
    out += letter;
  }
  return out + "$";
}

/// Of a tensor that is none of `matrices`; empty: of no matrix.
std::string_view module_of(const TensorInfo& tensor) {
  constexpr std::string_view kBlocks = "_blocks";  // of experts in MXFP4, which are one module
  const std::string_view name = tensor.name;
  if (name.ends_with(kBlocks)) return name.substr(0, name.rfind('.'));
  const bool is_matrix = tensor.shape.size() >= 2 && name.ends_with(kWeight);
  return is_matrix ? name.substr(0, name.size() - kWeight.size()) : std::string_view();
}

}  // namespace

void SourceMatrix::widen(std::int64_t begin, std::span<float> out) const {
  const auto width = static_cast<std::size_t>(cols);
  const std::size_t count = out.size() / width;
  const std::int64_t from = first + begin * step;
  if (!transposed) {
    for (std::size_t i = 0; i < count; ++i) {
      stored.format->widen(stored, from + static_cast<std::int64_t>(i) * step, 0,
                           out.subspan(i * width, width));
    }
    return;
  }
  const auto stride = static_cast<std::size_t>(step);
  std::vector<float> values((count - 1) * stride + 1);
  for (std::size_t k = 0; k < width; ++k) {
    stored.format->widen(stored, static_cast<std::int64_t>(k), from, values);
    for (std::size_t i = 0; i < count; ++i) out[i * width + k] = values[i * stride];
  }
}

Matrices matrices_of(const ModelFolder& folder, Parted& parted) {
  const std::string layers = tensor_prefix(folder) + "layers.";
  Matrices out;
  ExpertTensors experts(folder, out, parted);
  for (const std::string_view name : folder.names()) {
    const TensorInfo& tensor = *folder.find(name);
    if (!name.starts_with(layers)) continue;
    if (tensor.shape.size() == 2 && multiplies(name)) {
      const std::int64_t rows = tensor.shape[0];
      const std::int64_t cols = tensor.shape[1];
      out.emplace(name, SourceMatrix{folder.matrix(name, rows, cols), rows, cols});
    } else {
      experts.take(name);
    }
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

std::vector<std::string> leave_out(Matrices& matrices, Parted& parted, std::int64_t group) {
  std::vector<std::string> left;
  if (group == 0) return left;
  const auto leaves = [&](const SourceMatrix& matrix) { return matrix.cols % group != 0; };
  std::set<std::string> whole;  // experts that stay in their tensors, which are read together
  for (const auto& [tensor, of] : parted) {
    if (!of.matrices.empty() && leaves(matrices.find(of.matrices.front())->second)) {
      whole.insert(of.experts);
    }
  }
  std::erase_if(parted, [&](const auto& one) {
    const auto& [tensor, of] = one;
    if (!whole.contains(of.experts)) return false;
    for (const std::string& name : of.matrices) matrices.erase(name);
    if (!of.matrices.empty()) left.push_back(tensor.substr(0, tensor.rfind(kWeight)));
    return true;
  });
  std::erase_if(matrices, [&](const auto& one) {
    const auto& [name, matrix] = one;
    if (leaves(matrix)) left.push_back(name.substr(0, name.size() - kWeight.size()));
    return leaves(matrix);
  });
  return left;
}

std::vector<std::string> modules_that_stay(const ModelFolder& folder, const Matrices& matrices,
                                           const Parted& parted) {
  const std::string text = tensor_prefix(folder);
  std::vector<std::string> out;
  for (const std::string_view name : folder.names()) {
    if (matrices.contains(name) || parted.contains(name) || name == Packings::kOutput) continue;
    std::string_view module = module_of(*folder.find(name));
    if (module.empty() || module.ends_with("embed_tokens")) continue;
    if (text != "model.") {
      const std::string_view begin = module.starts_with(text) ? std::string_view(text) : "model.";
      if (module.starts_with(begin)) module.remove_prefix(begin.size());
    }
    std::string found = text == "model." ? std::string(module) : anywhere(module);
    if (out.empty() || out.back() != found) out.push_back(std::move(found));
  }
  return out;
}

}  // namespace dendrite
