#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/json_file.h"
#include "io/model_folder.h"
#include "model/rope.h"
#include "model/weights.h"
#include "quant/formats.h"
#include "support/gguf_config.h"
#include "support/gguf_names.h"
#include "support/gguf_tensors.h"
#include "support/gguf_tokenizer.h"
#include "support/gguf_writer.h"

namespace dendrite::test {

/// A model folder as a GGUF file, as llama.cpp's converter writes it: matrices in one type, vectors
/// in f32.
class GgufOfFolder {
 public:
  /// `type`: of matrices: F32, F16, BF16, Q8_0 or, empty, as the folder has them.
  GgufOfFolder(const std::filesystem::path& folder, std::string type)
      : path_(folder),
        type_(std::move(type)),
        folder_(ModelFolder::open(folder.string())),
        json_(nlohmann::json::parse(with_named_floats(folder_.text("config.json", 1 << 20)))) {
    if (json_.contains("text_config")) {  // text and more
      json_ = nlohmann::json(json_["text_config"]);
      prefix_ = tensor_prefix(folder_);
    }
    config_.emplace(json_);
    if (config_->is_nemotron()) prefix_ = "backbone.";
  }

  /// How many tensors go into each of the parts of split files; one part: all.
  std::vector<GgufWriter> write(std::size_t parts = 1) {
    std::vector<GgufWriter> out(parts);
    config_->put(out[0]);
    if (std::filesystem::exists(path_ / "tokenizer.json")) {
      put_tokenizer(out[0], path_, config_->architecture() == "llama" ? "gpt-2" : "qwen2",
                    json_["vocab_size"].get<std::size_t>());
    }
    std::vector<std::string> names;
    for (const std::string_view name : folder_.names()) {
      const bool is_more = name.ends_with("lm_head.weight") || name.starts_with("mtp.");
      if (!name.starts_with(prefix_) && !is_more) continue;
      const auto at = name.find(".experts.");
      // All experts go with the first, and exponents with what they are of.
      const bool later = at != name.npos && name.substr(at + 9, 2) != "0." && name[at + 9] >= '0' &&
                         name[at + 9] <= '9';
      if (!later && !name.ends_with("_scales")) names.emplace_back(name);
    }
    std::size_t tensors = 0;
    for (const std::string& name : names) {
      for (const GgufTensor& tensor : converted(name)) put_tensor(out[tensors++ % parts], tensor);
      if (name.ends_with("_blocks")) put_blocks(out[0], name);
    }
    put_rope(out[0]);
    if (parts > 1) {
      for (std::size_t i = 0; i < parts; ++i) {
        out[i].u16("split.no", static_cast<std::uint16_t>(i));
        out[i].u16("split.count", static_cast<std::uint16_t>(parts));
        out[i].i32("split.tensors.count", static_cast<std::int32_t>(tensors));
      }
    }
    return out;
  }

 private:
  std::string model_type() const { return json_["model_type"].get<std::string>(); }

  void put_rope(GgufWriter& out) const {
    const auto rope = json_.value("rope_parameters", json_.value("rope_scaling", nlohmann::json()));
    if (!rope.is_object()) return;
    if (model_type() == "gemma4_text") {
      const double part = rope["full_attention"].value("partial_rotary_factor", 1.0);
      std::vector<float> factors(static_cast<std::size_t>(config_->wide("head_dim") / 2), 1e30F);
      const auto turned = static_cast<std::size_t>(part * static_cast<double>(factors.size()));
      std::fill_n(factors.begin(), turned, 1.0F);
      out.tensor("rope_freqs.weight", 0, {std::ssize(factors)}, bytes_of(factors, "F32"));
    }
    for (const char* kind : {"short", "long"}) {
      const std::string key = std::string(kind) + "_factor";
      if (!rope.contains(key)) continue;
      const auto factors = rope[key].get<std::vector<float>>();
      out.tensor("rope_factors_" + std::string(kind) + ".weight", 0, {std::ssize(factors)},
                 bytes_of(factors, "F32"));
    }
    if (rope.value("rope_type", "") != "llama3") return;
    const double theta = rope.value("rope_theta", 10000.0);
    RopeConfig stretched{.type = RopeType::kLlama3,
                         .theta = theta,
                         .factor = rope["factor"],
                         .original_positions = rope["original_max_position_embeddings"],
                         .low_freq_factor = rope["low_freq_factor"],
                         .high_freq_factor = rope["high_freq_factor"]};
    const auto slow = inv_freq(stretched, config_->head_dim());
    const auto fast = inv_freq({.theta = theta}, config_->head_dim());
    std::vector<float> factors;
    for (std::size_t i = 0; i < slow.size(); ++i) factors.push_back(fast[i] / slow[i]);
    out.tensor("rope_freqs.weight", 0, {std::ssize(factors)}, bytes_of(factors, "F32"));
  }

  std::string name_of(const std::string& in_folder) const {
    const std::string name =
        in_folder.starts_with(prefix_) ? "model." + in_folder.substr(prefix_.size()) : in_folder;
    static const std::map<std::string, std::string> kWhole{
        {"model.embed_tokens.weight", "token_embd.weight"},
        {"model.norm.weight", "output_norm.weight"},
        {"model.embeddings.weight", "token_embd.weight"},
        {"model.norm_f.weight", "output_norm.weight"},
        {"model.embedding_norm.weight", "token_embd_norm.weight"},
        {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
        {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
        {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
        {"lm_head.weight", "output.weight"},
        {"language_model.lm_head.weight", "output.weight"}};
    if (kWhole.contains(name)) return kWhole.at(name);
    if (name.starts_with("mtp.")) return name_of_head(name);
    const std::string layers = "model.layers.";
    const auto dot = name.find('.', layers.size());
    std::string part = name.substr(dot + 1);
    std::string kind;
    for (const char* known : {".weight", ".bias"}) {
      if (part.ends_with(known)) kind = known;
    }
    part.resize(part.size() - kind.size());
    return "blk." + name.substr(layers.size(), dot - layers.size()) + "." + part_of(part) + kind;
  }

  /// What stands beside an MLP of Granite 4 has another name where the MLP stands beside experts.
  std::string part_of(const std::string& part) const {
    if (part == "shared_mlp.output_linear" && json_.value("num_local_experts", 0) > 0) {
      return "ffn_down_shexp";
    }
    return gguf_part_of(model_type(), part);
  }

  /// Of an MTP head, whose layer comes behind the model's.
  std::string name_of_head(const std::string& name) const {
    const std::string layer = std::to_string(json_["num_hidden_layers"].get<int>());
    const std::string own = "mtp.layers.0.";
    if (name.starts_with(own))
      return name_of("model.layers." + layer + "." + name.substr(own.size()));
    static const std::map<std::string, std::string> kParts{
        {"mtp.fc.weight", "eh_proj"},
        {"mtp.pre_fc_norm_embedding.weight", "enorm"},
        {"mtp.pre_fc_norm_hidden.weight", "hnorm"},
        {"mtp.norm.weight", "shared_head_norm"}};
    return "blk." + layer + ".nextn." + kParts.at(name) + ".weight";
  }

  GgufTensor read(const std::string& name) const {
    const TensorInfo& tensor = *folder_.find(name);
    GgufTensor out{name, tensor.shape, numbers_of(tensor)};
    const std::string first = ".experts.0.";
    const auto at = name.find(first);
    if (at == name.npos) return out;
    std::int64_t expert = 1;
    for (;; ++expert) {
      std::string other = name;
      other.replace(at, first.size(), ".experts." + std::to_string(expert) + ".");
      const TensorInfo* const more = folder_.find(other);
      if (more == nullptr) break;
      const std::vector<float> values = numbers_of(*more);
      out.values.insert(out.values.end(), values.begin(), values.end());
    }
    out.shape.insert(out.shape.begin(), expert);
    out.name.replace(at, first.size(), ".experts.");
    return out;
  }

  /// What of a folder's tensor goes into the file.
  std::vector<GgufTensor> converted(const std::string& name) const {
    if (name.ends_with("_blocks")) return {};
    GgufTensor tensor = read(name);
    const bool in_net = name.find(".linear_attn.") != name.npos;
    const bool is_norm = tensor.is("norm.weight") || name.starts_with("mtp.pre_fc_norm");
    if (config_->zero_centred() && is_norm && !in_net) {
      for (float& weight : tensor.values) weight += 1;
    }
    if (config_->paired() &&
        (name.find(".q_proj.") != name.npos || name.find(".k_proj.") != name.npos)) {
      put_in_pairs(tensor, config_->head_dim());
    }
    if (in_net) return GgufDeltaNet(json_).convert(tensor);
    if (tensor.is(".conv.conv.weight")) tensor.shape.erase(tensor.shape.begin() + 1);
    if (config_->has_mamba()) put_mamba(tensor);
    if (tensor.is(".shared_mlp.input_linear.weight")) return of_shared_mlp(tensor);
    if (tensor.is(".input_linear.weight")) {
      return halves(tensor, ".input_linear.weight", ".experts.w1.weight", ".experts.w3.weight");
    }
    if (model_type() == "gpt_oss") return of_gpt_oss(tensor);
    if (model_type() == "gemma4_text" && tensor.is(".experts.gate_up_proj")) {
      tensor.name += ".weight";
    }
    if (model_type() == "llama4_text" && name.find(".experts.") != name.npos) {
      transpose_each(tensor);
    }
    if (tensor.is(".experts.gate_up_proj")) {
      return halves(tensor, ".gate_up_proj", ".gate_proj.weight", ".up_proj.weight");
    }
    if (tensor.is(".experts.down_proj")) tensor.name += ".weight";
    return {tensor};
  }

  /// Decays as they come out; numbers of heads and norms of groups in rows of their own.
  void put_mamba(GgufTensor& tensor) const {
    if (tensor.is(".A_log")) {
      for (float& value : tensor.values) value = -std::exp(value);
    }
    if (tensor.is(".A_log") || tensor.is(".D")) tensor.shape.push_back(1);
    if (tensor.is(".conv1d.weight")) tensor.shape.erase(tensor.shape.begin() + 1);
    if (tensor.is(".mamba.norm.weight") || tensor.is(".mixer.norm.weight")) {
      const auto groups = json_.value("n_groups", json_.value("mamba_n_groups", std::int64_t{1}));
      tensor.shape = {groups, tensor.shape[0] / groups};
    }
  }

  /// Gates, then ups; beside experts by other names.
  std::vector<GgufTensor> of_shared_mlp(const GgufTensor& tensor) const {
    const std::string end = "input_linear.weight";
    const std::string block = json_.value("num_local_experts", 0) > 0 ? "shared." : "";
    GgufTensor gates = tensor, ups = tensor;
    gates.name.replace(tensor.name.size() - end.size(), end.size(), block + "gate_proj.weight");
    ups.name.replace(tensor.name.size() - end.size(), end.size(), block + "up_proj.weight");
    const std::int64_t count = tensor.shape[0];
    take_rows(gates, rows_between(0, count / 2));
    take_rows(ups, rows_between(count / 2, count));
    return {gates, ups};
  }

  static std::vector<GgufTensor> halves(const GgufTensor& tensor, const std::string& end,
                                        const std::string& first, const std::string& second) {
    const std::int64_t count = tensor.shape[1];
    return {rows_of_each(tensor, rows_between(0, count / 2), end, first),
            rows_of_each(tensor, rows_between(count / 2, count), end, second)};
  }

  static std::vector<GgufTensor> of_gpt_oss(GgufTensor tensor) {
    const auto parted = [&](const std::string& end, const std::string& kind) {
      const std::int64_t count = tensor.shape[1];
      return std::vector<GgufTensor>{
          rows_of_each(tensor, rows_between(0, count, 2), end, ".gate_proj" + kind),
          rows_of_each(tensor, rows_between(1, count, 2), end, ".up_proj" + kind)};
    };
    if (tensor.is(".gate_up_proj_bias")) return parted(".gate_up_proj_bias", ".bias");
    if (tensor.is(".down_proj_bias")) {
      tensor.name.replace(tensor.name.size() - 5, 5, ".bias");
    } else if (tensor.is(".experts.gate_up_proj")) {
      transpose_each(tensor);
      return parted(".gate_up_proj", ".weight");
    } else if (tensor.is(".experts.down_proj")) {
      transpose_each(tensor);
      tensor.name += ".weight";
    }
    return {tensor};
  }

  /// E2M1 with exponents: neighbours of a block lie in a byte there, and half a block apart here.
  void put_blocks(GgufWriter& out, const std::string& name) const {
    const std::string matrix = name.substr(0, name.size() - std::string("_blocks").size());
    const TensorInfo& blocks = *folder_.find(name);
    const TensorInfo& scales = *folder_.find(matrix + "_scales");
    const std::int64_t rows = blocks.shape[1], count = blocks.shape[2];
    const auto packed = [&](std::int64_t first, std::int64_t step) {
      std::string bytes;
      for (std::int64_t row = 0; row < blocks.shape[0] * rows; ++row) {
        if (row % rows % step != first) continue;
        for (std::int64_t block = row * count; block < (row + 1) * count; ++block) {
          bytes += static_cast<char>(scales.data[block]);
          const auto* const from = reinterpret_cast<const std::uint8_t*>(blocks.data) + block * 16;
          const auto code = [&](int i) { return from[i / 2] >> (i % 2 * 4) & 15; };
          for (int i = 0; i < 16; ++i) bytes += static_cast<char>(code(i) | code(i + 16) << 4);
        }
      }
      return bytes;
    };
    const auto put = [&](const std::string& part, std::int64_t first, std::int64_t step) {
      const std::string whole = matrix.substr(0, matrix.rfind('.') + 1) + part + ".weight";
      out.tensor(name_of(whole), 39, {blocks.shape[0], rows / step, count * 32},
                 packed(first, step));
    };
    if (matrix.ends_with("down_proj")) return put("down_proj", 0, 1);
    put("gate_proj", 0, 2);
    put("up_proj", 1, 2);
  }

  void put_tensor(GgufWriter& out, const GgufTensor& tensor) const {
    const std::string name = name_of(tensor.name);
    const bool exact = tensor.shape.size() == 1 || name.find("ffn_gate_inp") != name.npos ||
                       name.ends_with(".bias") || name.find("ssm_conv1d") != name.npos ||
                       name.find("ssm_norm") != name.npos || name.ends_with(".ssm_a") ||
                       name.ends_with(".ssm_d");
    const std::string type = exact ? "F32" : type_.empty() ? type_of(tensor.name) : type_;
    static const std::map<std::string, std::uint32_t> kIds{
        {"F32", 0}, {"F16", 1}, {"BF16", 30}, {"Q8_0", 8}};
    out.tensor(name, kIds.at(type), tensor.shape, bytes_of(tensor.values, type));
  }

  /// As the folder has it; where it has none of that name, as it has its first.
  std::string type_of(const std::string& name) const {
    const TensorInfo* const stored = folder_.find(name);
    const TensorInfo* const first = folder_.find(
        prefix_ + (config_->is_nemotron() ? "embeddings" : "embed_tokens") + ".weight");
    return std::string((stored == nullptr ? first : stored)->stored_type);
  }

  static std::string bytes_of(const std::vector<float>& values, const std::string& type) {
    if (type == "Q8_0") return q8_0_of(values);
    const PlainFormat& format = type == "F32"   ? f32_format()
                                : type == "F16" ? f16_format()
                                                : bf16_format();
    std::string out(values.size() * static_cast<std::size_t>(format.block_bytes()), '\0');
    format.narrow(values, reinterpret_cast<std::byte*>(out.data()));
    return out;
  }

  static std::string q8_0_of(const std::vector<float>& values) {
    std::string out;
    for (std::size_t i = 0; i < values.size(); i += 32) {
      float most = 0;
      for (std::size_t k = i; k < i + 32; ++k) most = std::max(most, std::abs(values[k]));
      const float scale = most / 127;
      std::byte half[2];
      f16_format().narrow({&scale, 1}, half);
      out.append(reinterpret_cast<const char*>(half), 2);
      for (std::size_t k = i; k < i + 32; ++k) {
        const float q = scale == 0 ? 0 : std::round(values[k] / scale);
        out += static_cast<char>(static_cast<std::int8_t>(q));
      }
    }
    return out;
  }

  std::filesystem::path path_;
  std::string type_;
  ModelFolder folder_;
  nlohmann::json json_;
  std::optional<GgufConfig> config_;
  std::string prefix_ = "model.";  // of the tensors of text
};

}  // namespace dendrite::test
