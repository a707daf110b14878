#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/model_folder.h"
#include "model/rope.h"
#include "quant/formats.h"
#include "support/gguf_tokenizer.h"
#include "support/gguf_writer.h"

namespace dendrite::test {

/// A model folder of the Llama kind as a GGUF file, as llama.cpp's converter writes it: matrices in
/// one type, vectors in f32, rows of a llama's q and k in pairs, llama3's RoPE as a tensor.
class GgufOfFolder {
 public:
  /// `type`: of matrices: F32, F16, BF16, Q8_0 or, empty, as the folder has them.
  GgufOfFolder(const std::filesystem::path& folder, std::string type)
      : path_(folder), type_(std::move(type)), folder_(ModelFolder::open(folder.string())) {
    config_ = nlohmann::json::parse(folder_.text("config.json", 1 << 20));
    const auto kind = config_["model_type"].get<std::string>();
    architecture_ = kind == "mistral" ? "llama" : kind == "qwen3_moe" ? "qwen3moe" : kind;
    head_dim_ = config_.value("head_dim", dim() / heads());
  }

  /// How many tensors go into each of the parts of split files; one part: all.
  std::vector<GgufWriter> write(std::size_t parts = 1) {
    std::vector<GgufWriter> out(parts);
    put_keys(out[0]);
    std::vector<std::string> names;
    for (const std::string_view name : folder_.names()) {
      // All experts go with the first.
      if (name.find(".experts.") == name.npos || name.find(".experts.0.") != name.npos) {
        names.emplace_back(name);
      }
    }
    for (std::size_t i = 0; i < names.size(); ++i) put_tensor(out[i % parts], names[i]);
    put_rope(out[0]);
    if (parts > 1) {
      for (std::size_t i = 0; i < parts; ++i) {
        out[i].u16("split.no", static_cast<std::uint16_t>(i));
        out[i].u16("split.count", static_cast<std::uint16_t>(parts));
        out[i].i32("split.tensors.count", static_cast<std::int32_t>(names.size()));
      }
    }
    return out;
  }

 private:
  std::int64_t dim() const { return config_.value("hidden_size", std::int64_t{4096}); }
  std::int64_t experts() const { return config_.value("num_experts", std::int64_t{0}); }
  std::int64_t heads() const { return config_.value("num_attention_heads", std::int64_t{32}); }

  void put_keys(GgufWriter& out) const {
    const auto number = [&](const std::string& key, std::int64_t value) {
      out.u32(architecture_ + "." + key, static_cast<std::uint32_t>(value));
    };
    out.text("general.architecture", architecture_);
    number("embedding_length", dim());
    number("feed_forward_length", config_["intermediate_size"].get<std::int64_t>());
    number("block_count", config_["num_hidden_layers"].get<std::int64_t>());
    number("context_length", config_["max_position_embeddings"].get<std::int64_t>());
    number("attention.head_count", heads());
    number("attention.head_count_kv", config_.value("num_key_value_heads", heads()));
    number("attention.key_length", head_dim_);
    number("attention.value_length", head_dim_);
    number("rope.dimension_count", head_dim_);
    if (architecture_ == "llama" && config_.contains("sliding_window") &&
        !config_["sliding_window"].is_null()) {
      number("attention.sliding_window", config_["sliding_window"].get<std::int64_t>());
    }
    if (architecture_ == "qwen3moe") {
      number("expert_count", experts());
      number("expert_used_count", config_["num_experts_per_tok"].get<std::int64_t>());
      number("expert_feed_forward_length", config_["moe_intermediate_size"].get<std::int64_t>());
    }
    out.f32(architecture_ + ".attention.layer_norm_rms_epsilon",
            config_["rms_norm_eps"].get<float>());
    out.f32(architecture_ + ".rope.freq_base", static_cast<float>(theta()));
    if (std::filesystem::exists(path_ / "tokenizer.json")) {
      put_tokenizer(out, path_, architecture_ == "llama" ? "gpt-2" : "qwen2",
                    config_["vocab_size"].get<std::size_t>());
    }
  }

  double theta() const {
    const auto rope = config_.value("rope_parameters", nlohmann::json::object());
    return rope.is_object() && rope.contains("rope_theta") ? rope["rope_theta"].get<double>()
                                                           : config_.value("rope_theta", 10000.0);
  }

  void put_rope(GgufWriter& out) const {
    const auto rope = config_.value("rope_parameters", nlohmann::json());
    if (!rope.is_object() || rope.value("rope_type", "") != "llama3") return;
    RopeConfig stretched{.type = RopeType::kLlama3,
                         .theta = theta(),
                         .factor = rope["factor"],
                         .original_positions = rope["original_max_position_embeddings"],
                         .low_freq_factor = rope["low_freq_factor"],
                         .high_freq_factor = rope["high_freq_factor"]};
    const auto slow = inv_freq(stretched, head_dim_);
    const auto fast = inv_freq({.theta = theta()}, head_dim_);
    std::string bytes;
    for (std::size_t i = 0; i < slow.size(); ++i) {
      const float factor = fast[i] / slow[i];
      bytes.append(reinterpret_cast<const char*>(&factor), 4);
    }
    out.tensor("rope_freqs.weight", 0, {head_dim_ / 2}, bytes);
  }

  static std::string name_of(const std::string& name) {
    static const std::map<std::string, std::string> kNames{
        {"model.embed_tokens", "token_embd"},
        {"model.norm", "output_norm"},
        {"lm_head", "output"},
        {"input_layernorm", "attn_norm"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"},
        {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"},
        {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"mlp.gate", "ffn_gate_inp"},
        {"mlp.experts.0.gate_proj", "ffn_gate_exps"},
        {"mlp.experts.0.up_proj", "ffn_up_exps"},
        {"mlp.experts.0.down_proj", "ffn_down_exps"}};
    const std::string kind = name.substr(name.rfind('.'));
    std::string part = name.substr(0, name.rfind('.'));
    const std::string layers = "model.layers.";
    std::string prefix;
    if (part.starts_with(layers)) {
      const auto dot = part.find('.', layers.size());
      prefix = "blk." + part.substr(layers.size(), dot - layers.size()) + ".";
      part = part.substr(dot + 1);
    }
    return prefix + kNames.at(part) + kind;
  }

  void put_tensor(GgufWriter& out, const std::string& name) const {
    const TensorInfo& tensor = *folder_.find(name);
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    std::vector<float> values = numbers_of(tensor);
    std::vector<std::int64_t> shape = tensor.shape;
    const std::string first = ".experts.0.";
    if (const auto at = name.find(first); at != name.npos) {
      shape.insert(shape.begin(), experts());
      for (std::int64_t expert = 1; expert < experts(); ++expert) {
        std::string other = name;
        other.replace(at, first.size(), ".experts." + std::to_string(expert) + ".");
        const std::vector<float> more = numbers_of(*folder_.find(other));
        values.insert(values.end(), more.begin(), more.end());
      }
    }
    const bool paired = architecture_ == "llama" && (name.find(".q_proj.") != std::string::npos ||
                                                     name.find(".k_proj.") != std::string::npos);
    if (paired) values = in_pairs(values, rows, cols);
    const bool vector = tensor.shape.size() == 1;
    const bool router = name.ends_with(".mlp.gate.weight");
    const std::string type = vector || router ? "F32"
                             : type_.empty()  ? std::string(tensor.stored_type)
                                              : type_;
    static const std::map<std::string, std::uint32_t> kIds{
        {"F32", 0}, {"F16", 1}, {"BF16", 30}, {"Q8_0", 8}};
    out.tensor(name_of(name), kIds.at(type), shape, bytes_of(values, type));
  }

  /// Row i of half h of a head becomes its row 2i + h.
  std::vector<float> in_pairs(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols) const {
    std::vector<float> out(values.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t in_head = row % head_dim_;
      const std::int64_t half = in_head / (head_dim_ / 2);
      const std::int64_t to = row - in_head + in_head % (head_dim_ / 2) * 2 + half;
      std::copy_n(values.begin() + row * cols, cols, out.begin() + to * cols);
    }
    return out;
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
  nlohmann::json config_;
  std::string architecture_;
  std::int64_t head_dim_ = 0;
};

}  // namespace dendrite::test
