#include "models.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/dtype.h"
#include "tests/support/temporary_folder.h"
#include "text/tokenizer.h"

namespace dendrite::bench {
namespace {

using Json = nlohmann::ordered_json;

enum class Family { kLlama, kMistral, kQwen3, kQwen35, kGptOss, kGlmFlash, kGemma4 };

struct Shape {
  const char* name;
  Family family;
  std::int64_t dim, ffn_dim, layers, heads, kv_heads, head_dim, vocab;
  bool tied;
  std::int64_t max_positions;
  double rope_theta;
  std::int64_t window = 0;  // 0: full attention
  std::int64_t eos = 2;
  std::int64_t value_heads = 0;  // of recurrent layers, three of four of kQwen35
  std::int64_t experts = 0;  // 0: an MLP in each layer; else mixtures of experts of ffn_dim each
  bool mxfp4 = false;        // those experts, where weights are made in memory

  /// Nothing here writes its checkpoint.
  bool in_memory() const {
    return mxfp4 || family == Family::kGlmFlash || family == Family::kGemma4;
  }
};

constexpr std::int64_t kChosenExperts = 8;  // of gpt-oss half of them

// Of those layers.
constexpr std::int64_t kKeyHeads = 16;
constexpr std::int64_t kRecurrentDim = 128;
constexpr std::int64_t kTaps = 4;

bool is_recurrent(const Shape& shape, std::int64_t layer) {
  return shape.family == Family::kQwen35 && (layer + 1) % 4 != 0;
}

constexpr Shape kShapes[] = {
    {"tiny", Family::kMistral, 64, 128, 1, 2, 1, 32, 320, true, 1 << 20, 1e4, 128},
    {"135m", Family::kLlama, 576, 1536, 30, 9, 3, 64, 49152, true, 32768, 1e4},
    {"250m", Family::kLlama, 1024, 2816, 16, 16, 4, 64, 32000, false, 32768, 1e4},
    {"1.1b", Family::kLlama, 2048, 5632, 22, 32, 4, 64, 32000, false, 32768, 1e4},
    // Llama 3.2 1B, Llama 3 8B and 70B and Qwen3 8B, with room for long prefixes.
    {"1b", Family::kLlama, 2048, 8192, 16, 32, 8, 64, 128256, true, 65536, 5e5},
    {"8b", Family::kLlama, 4096, 14336, 32, 32, 8, 128, 128256, false, 65536, 5e5},
    {"70b", Family::kLlama, 8192, 28672, 80, 64, 8, 128, 128256, false, 65536, 5e5},
    {"qwen3-8b", Family::kQwen3, 4096, 12288, 36, 32, 8, 128, 151936, false, 40960, 1e6},
    // Qwen3.5.
    {"qwen3.5-0.8b", Family::kQwen35, 1024, 3584, 24, 8, 2, 256, 248320, true, 262144, 1e7, 0, 2,
     16},
    {"qwen3.5-9b", Family::kQwen35, 4096, 12288, 32, 16, 4, 256, 248320, false, 262144, 1e7, 0, 2,
     32},
    {"qwen3.5-27b", Family::kQwen35, 5120, 17408, 64, 24, 4, 256, 248320, false, 262144, 1e7, 0, 2,
     48},
    // Qwen3-30B-A3B, and Qwen3.5 and 3.6-35B-A3B with a shared expert as wide as the others.
    {"30b-a3b", Family::kQwen3, 2048, 768, 48, 32, 4, 128, 151936, false, 40960, 1e6, 0, 2, 0, 128},
    {"35b-a3b", Family::kQwen35, 2048, 512, 40, 16, 2, 256, 248320, false, 262144, 1e7, 0, 2, 32,
     256},
    {"gpt-oss-20b", Family::kGptOss, 2880, 2880, 24, 64, 8, 64, 201088, false, 131072, 150000, 128,
     2, 0, 32},
    // As they are published; the larger one takes 73 GB.
    {"gpt-oss-20b-mxfp4", Family::kGptOss, 2880, 2880, 24, 64, 8, 64, 201088, false, 131072, 150000,
     128, 2, 0, 32, true},
    {"gpt-oss-120b-mxfp4", Family::kGptOss, 2880, 2880, 36, 64, 8, 64, 201088, false, 131072,
     150000, 128, 2, 0, 128, true},
    // GLM-4.7-Flash: attention through a latent; 64 is what is rotated.
    {"glm-4.7-flash", Family::kGlmFlash, 2048, 1536, 47, 20, 20, 64, 154880, false, 202752, 1e6, 0,
     1, 0, 64},
    // Gemma 3 12B's sizes in Gemma 4's layers: one of six has heads of 512, two of which are kept.
    {"gemma-4", Family::kGemma4, 3840, 15360, 48, 16, 8, 256, 262144, true, 131072, 1e6, 1024, 1},
};

const Shape& find_shape(const std::string& name) {
  std::string known;
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + std::string(shape.name);
  }
  throw Error("shape is \"" + name + "\"; expected one of " + known);
}

/// A small fast generator (xorshift64*); what counts is only that the bytes are the same each time.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }

 private:
  std::uint64_t state_;
};

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t count() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

void add_attention(const Shape& s, const std::string& layer, std::vector<Tensor>& out) {
  const std::int64_t gates = s.family == Family::kQwen35 ? 2 : 1;  // a head's, behind its queries
  out.push_back({layer + "self_attn.q_proj.weight", {gates * s.heads * s.head_dim, s.dim}});
  out.push_back({layer + "self_attn.k_proj.weight", {s.kv_heads * s.head_dim, s.dim}});
  out.push_back({layer + "self_attn.v_proj.weight", {s.kv_heads * s.head_dim, s.dim}});
  out.push_back({layer + "self_attn.o_proj.weight", {s.dim, s.heads * s.head_dim}});
  if (s.family == Family::kGptOss) {
    out.push_back({layer + "self_attn.q_proj.bias", {s.heads * s.head_dim}});
    out.push_back({layer + "self_attn.k_proj.bias", {s.kv_heads * s.head_dim}});
    out.push_back({layer + "self_attn.v_proj.bias", {s.kv_heads * s.head_dim}});
    out.push_back({layer + "self_attn.o_proj.bias", {s.dim}});
    out.push_back({layer + "self_attn.sinks", {s.heads}});
  }
  if (s.family == Family::kQwen3 || s.family == Family::kQwen35) {
    out.push_back({layer + "self_attn.q_norm.weight", {s.head_dim}});
    out.push_back({layer + "self_attn.k_norm.weight", {s.head_dim}});
  }
}

void add_delta_net(const Shape& s, const std::string& layer, std::vector<Tensor>& out) {
  const std::string prefix = layer + "linear_attn.";
  const std::int64_t values = s.value_heads * kRecurrentDim;
  const std::int64_t channels = 2 * kKeyHeads * kRecurrentDim + values;
  out.push_back({prefix + "in_proj_qkv.weight", {channels, s.dim}});
  out.push_back({prefix + "in_proj_z.weight", {values, s.dim}});
  out.push_back({prefix + "in_proj_b.weight", {s.value_heads, s.dim}});
  out.push_back({prefix + "in_proj_a.weight", {s.value_heads, s.dim}});
  out.push_back({prefix + "conv1d.weight", {channels, 1, kTaps}});
  out.push_back({prefix + "A_log", {s.value_heads}});
  out.push_back({prefix + "dt_bias", {s.value_heads}});
  out.push_back({prefix + "norm.weight", {kRecurrentDim}});
  out.push_back({prefix + "out_proj.weight", {s.dim, values}});
}

void add_mlp(const Shape& s, const std::string& prefix, std::vector<Tensor>& out) {
  out.push_back({prefix + "gate_proj.weight", {s.ffn_dim, s.dim}});
  out.push_back({prefix + "up_proj.weight", {s.ffn_dim, s.dim}});
  out.push_back({prefix + "down_proj.weight", {s.dim, s.ffn_dim}});
}

void add_experts(const Shape& s, const std::string& prefix, std::vector<Tensor>& out) {
  if (s.family == Family::kGptOss) {
    out.push_back({prefix + "router.weight", {s.experts, s.dim}});
    out.push_back({prefix + "router.bias", {s.experts}});
    out.push_back({prefix + "experts.gate_up_proj", {s.experts, s.dim, 2 * s.ffn_dim}});
    out.push_back({prefix + "experts.gate_up_proj_bias", {s.experts, 2 * s.ffn_dim}});
    out.push_back({prefix + "experts.down_proj", {s.experts, s.ffn_dim, s.dim}});
    out.push_back({prefix + "experts.down_proj_bias", {s.experts, s.dim}});
    return;
  }
  out.push_back({prefix + "gate.weight", {s.experts, s.dim}});
  for (std::int64_t i = 0; i < s.experts; ++i) {
    add_mlp(s, prefix + "experts." + std::to_string(i) + ".", out);
  }
  if (s.family != Family::kQwen35) return;
  add_mlp(s, prefix + "shared_expert.", out);
  out.push_back({prefix + "shared_expert_gate.weight", {1, s.dim}});
}

std::vector<Tensor> tensors_of(const Shape& s) {
  std::vector<Tensor> out{{"model.embed_tokens.weight", {s.vocab, s.dim}}};
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    out.push_back({layer + "input_layernorm.weight", {s.dim}});
    if (is_recurrent(s, i)) {
      add_delta_net(s, layer, out);
    } else {
      add_attention(s, layer, out);
    }
    out.push_back({layer + "post_attention_layernorm.weight", {s.dim}});
    if (s.experts > 0) {
      add_experts(s, layer + "mlp.", out);
    } else {
      add_mlp(s, layer + "mlp.", out);
    }
  }
  out.push_back({"model.norm.weight", {s.dim}});
  if (!s.tied) out.push_back({"lm_head.weight", {s.vocab, s.dim}});
  return out;
}

/// The sum of the four 16-bit parts of a random word is near enough to normal.
void fill(const Tensor& tensor, std::uint64_t seed, std::vector<BF16>& out) {
  out.resize(static_cast<std::size_t>(tensor.count()));
  if (tensor.shape.size() == 1) {
    std::fill(out.begin(), out.end(), to_bf16(1.0f));
    return;
  }
  Random random(seed);
  const float unit = std::sqrt(3.0f) / 65536.0f;  // four uniforms of variance 1/12 each
  const float scale = unit / std::sqrt(static_cast<float>(tensor.shape.back()));
  for (BF16& value : out) {
    const std::uint64_t r = random.next();
    const auto sum =
        static_cast<float>((r & 0xFFFF) + (r >> 16 & 0xFFFF) + (r >> 32 & 0xFFFF) + (r >> 48));
    value = to_bf16((sum - 2.0f * 65535.0f) * scale);
  }
}

Json config_of(const Shape& s) {
  const bool mistral = s.family == Family::kMistral;
  const bool qwen3 = s.family == Family::kQwen3;
  const bool qwen35 = s.family == Family::kQwen35;
  const bool gpt_oss = s.family == Family::kGptOss;
  const bool glm_flash = s.family == Family::kGlmFlash;
  const bool gemma4 = s.family == Family::kGemma4;
  const bool mixed = s.experts > 0;
  Json config{{"model_type", gpt_oss     ? "gpt_oss"
                             : glm_flash ? "glm4_moe_lite"
                             : gemma4    ? "gemma4_unified_text"
                             : mistral   ? "mistral"
                             : qwen3     ? mixed ? "qwen3_moe" : "qwen3"
                             : qwen35    ? mixed ? "qwen3_5_moe_text" : "qwen3_5_text"
                                         : "llama"},
              {"hidden_size", s.dim},
              {"intermediate_size", s.ffn_dim},
              {"num_hidden_layers", s.layers},
              {"num_attention_heads", s.heads},
              {"num_key_value_heads", s.kv_heads},
              {"head_dim", s.head_dim},
              {"vocab_size", s.vocab},
              {"max_position_embeddings", s.max_positions},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", s.rope_theta},
              {"hidden_act", "silu"},
              {"tie_word_embeddings", s.tied},
              {"bos_token_id", 1},
              {"eos_token_id", s.eos},
              {"torch_dtype", "bfloat16"}};
  if (gemma4) {
    config.erase("rope_theta");
    config.erase("hidden_act");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["attention_k_eq_v"] = true;
    config["num_global_key_value_heads"] = 2;
    config["final_logit_softcapping"] = 30.0;
  }
  if (mistral || gpt_oss || gemma4) config["sliding_window"] = s.window;
  if (s.mxfp4) config["quantization_config"] = {{"quant_method", "mxfp4"}};
  if (glm_flash) {  // what else there is, a file need not say
    config.erase("intermediate_size");
    config["moe_intermediate_size"] = s.ffn_dim;
    config["n_routed_experts"] = s.experts;
  } else if (gpt_oss) {
    config["num_local_experts"] = s.experts;
    config["num_experts_per_tok"] = kChosenExperts / 2;
  } else if (mixed) {
    config["num_experts"] = s.experts;
    config["num_experts_per_tok"] = kChosenExperts;
    config["moe_intermediate_size"] = config["shared_expert_intermediate_size"] = s.ffn_dim;
    config["norm_topk_prob"] = true;
  }
  if (qwen35) {
    config["linear_num_key_heads"] = kKeyHeads;
    config["linear_num_value_heads"] = s.value_heads;
    config["linear_key_head_dim"] = config["linear_value_head_dim"] = kRecurrentDim;
    config["linear_conv_kernel_dim"] = kTaps;
  }
  return config;
}

Shape with_tokenizer(Shape shape, const std::filesystem::path& folder) {
  if (folder.empty()) return shape;
  const Tokenizer tokenizer = Tokenizer::open(folder);
  shape.vocab = (tokenizer.vocab_size() + 127) / 128 * 128;
  shape.eos = tokenizer.eos_id().value_or(0);
  return shape;
}

/// All but the weights.
void write_folder(const Shape& shape, const std::filesystem::path& tokenizer,
                  const std::filesystem::path& folder) {
  std::ofstream(folder / "config.json") << config_of(shape).dump(1) << "\n";
  if (tokenizer.empty()) return;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(tokenizer / file, folder / file,
                               std::filesystem::copy_options::overwrite_existing);
  }
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> out;
  for (const Shape& shape : kShapes) out.emplace_back(shape.name);
  return out;
}

Engine load_shape(const std::string& shape, EngineOptions options,
                  const std::filesystem::path& tokenizer) {
  const TemporaryFolder folder;
  write_folder(with_tokenizer(find_shape(shape), tokenizer), tokenizer, folder.path());
  options.load_format = "dummy";
  return Engine::load(folder.path().string(), options);
}

void write_checkpoint(const std::string& name, const std::filesystem::path& folder,
                      const std::filesystem::path& tokenizer) {
  const Shape shape = with_tokenizer(find_shape(name), tokenizer);
  if (shape.in_memory()) {
    throw Error("shape is " + name + ", which is made in memory alone; expected another");
  }
  const std::filesystem::path target = folder / "model.safetensors";
  if (std::filesystem::exists(target)) return;
  std::filesystem::create_directories(folder);
  write_folder(shape, tokenizer, folder);

  const std::vector<Tensor> tensors = tensors_of(shape);
  Json header = Json::object();
  std::int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const std::int64_t end = offset + 2 * tensor.count();
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::filesystem::path partial = folder / "model.safetensors.partial";
  std::ofstream file(partial, std::ios::binary);
  const std::uint64_t size = text.size();  // little-endian, as this machine must be for bf16 bytes
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file << text;
  std::vector<BF16> values;
  std::uint64_t seed = 0;
  for (const Tensor& tensor : tensors) {
    fill(tensor, ++seed, values);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof values[0]));
  }
  file.flush();
  if (!file)
    throw Error(partial.string() + ": cannot be written; expected room for " +
                std::to_string(offset) + " bytes");
  file.close();
  std::filesystem::rename(partial, target);
}

std::vector<Token> random_tokens(std::int64_t count, std::int64_t vocab, std::uint64_t seed) {
  Random random(seed + 17);
  std::vector<Token> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(static_cast<Token>((random.next() >> 16) % static_cast<std::uint64_t>(vocab)));
  }
  return out;
}

}  // namespace dendrite::bench
