#include "peers/llama_cpp/gguf_writer.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/dtype.h"
#include "dendrite/error.h"
#include "io/model_folder.h"
#include "model/config_reader.h"
#include "text/tokenizer.h"

namespace dendrite::bench {
namespace {

enum class Kind : std::uint8_t { kMatrix, kNorm };

/// Where a GGUF tensor comes from. `heads` > 0: rows of each head go from half-split RoPE order
/// (i, i + d/2) to the interleaved one (2i, 2i + 1) that llama.cpp's "llama" computes with.
struct Entry {
  std::string name;
  std::string source;
  Kind kind = Kind::kMatrix;
  std::int64_t heads = 0;
};

std::vector<Entry> entries_of(const DecoderConfig& config) {
  std::vector<Entry> out{{"token_embd.weight", "model.embed_tokens.weight"},
                         {"output_norm.weight", "model.norm.weight", Kind::kNorm}};
  if (!config.tie_embeddings) out.push_back({"output.weight", "lm_head.weight"});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string to = "blk." + std::to_string(i) + ".";
    const std::string from = "model.layers." + std::to_string(i) + ".";
    out.push_back({to + "attn_norm.weight", from + "input_layernorm.weight", Kind::kNorm});
    out.push_back(
        {to + "attn_q.weight", from + "self_attn.q_proj.weight", Kind::kMatrix, config.heads});
    out.push_back(
        {to + "attn_k.weight", from + "self_attn.k_proj.weight", Kind::kMatrix, config.kv_heads});
    out.push_back({to + "attn_v.weight", from + "self_attn.v_proj.weight"});
    out.push_back({to + "attn_output.weight", from + "self_attn.o_proj.weight"});
    out.push_back({to + "ffn_norm.weight", from + "post_attention_layernorm.weight", Kind::kNorm});
    out.push_back({to + "ffn_gate.weight", from + "mlp.gate_proj.weight"});
    out.push_back({to + "ffn_up.weight", from + "mlp.up_proj.weight"});
    out.push_back({to + "ffn_down.weight", from + "mlp.down_proj.weight"});
  }
  return out;
}

/// Round to nearest even. Requires |value| < 65504.
std::uint16_t to_f16(float value) {
  const auto sign = static_cast<std::uint32_t>(std::signbit(value)) << 15;
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) {  // subnormal: a multiple of 2^-24
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

class Writer {
 public:
  explicit Writer(const std::filesystem::path& path) : file_(path, std::ios::binary), path_(path) {}

  template <typename T>
  void value(T v) {
    file_.write(reinterpret_cast<const char*>(&v), sizeof v);
    written_ += static_cast<std::int64_t>(sizeof v);
  }
  void bytes(const void* data, std::size_t size) {
    file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    written_ += static_cast<std::int64_t>(size);
  }
  void text(const std::string& s) {
    value<std::uint64_t>(s.size());
    bytes(s.data(), s.size());
  }
  void key(const std::string& name, const std::string& v) {
    text(name);
    value<std::uint32_t>(8);
    text(v);
    ++keys;
  }
  void key(const std::string& name, std::int64_t v) {
    text(name);
    value<std::uint32_t>(4);
    value(static_cast<std::uint32_t>(v));
    ++keys;
  }
  void key(const std::string& name, float v) {
    text(name);
    value<std::uint32_t>(6);
    value(v);
    ++keys;
  }
  /// Arrays of texts and of numbers.
  void key(const std::string& name, const std::vector<std::string>& v) {
    array(name, 8, v.size());
    for (const std::string& element : v) text(element);
  }
  void key(const std::string& name, const std::vector<std::int32_t>& v) {
    array(name, 5, v.size());
    bytes(v.data(), v.size() * sizeof v[0]);
  }
  void align() {
    while (written_ % 32 != 0) value<char>(0);
  }
  void finish() {
    file_.flush();
    if (!file_) throw Error(path_.string() + ": cannot be written; expected room for the weights");
  }

  std::uint64_t keys = 0;

 private:
  void array(const std::string& name, std::uint32_t type, std::size_t size) {
    text(name);
    value<std::uint32_t>(9);
    value(type);
    value<std::uint64_t>(size);
    ++keys;
  }

  std::ofstream file_;
  std::filesystem::path path_;
  std::int64_t written_ = 0;
};

/// Of a byte-level tokenizer, for grammars: which text each token is. Texts are not encoded by it,
/// so there are no merges.
void write_tokens(Writer& out, const std::filesystem::path& folder, std::int64_t vocab) {
  enum : std::int32_t { kNormal = 1, kControl = 3, kUnused = 5 };
  const Tokenizer tokenizer = Tokenizer::open(folder);
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  for (std::int32_t id = 0; id < vocab; ++id) {
    const std::optional<std::string> token = tokenizer.id_to_token(id);
    tokens.push_back(token.value_or("[unused " + std::to_string(id) + "]"));
    types.push_back(!token ? kUnused : tokenizer.is_special(id) ? kControl : kNormal);
  }
  out.key("tokenizer.ggml.model", std::string("gpt2"));
  out.key("tokenizer.ggml.pre", std::string("default"));
  out.key("tokenizer.ggml.tokens", tokens);
  out.key("tokenizer.ggml.token_type", types);
  out.key("tokenizer.ggml.merges", std::vector<std::string>());
  out.key("tokenizer.ggml.eos_token_id", std::int64_t{tokenizer.eos_id().value_or(0)});
}

void write_keys(Writer& out, const std::filesystem::path& folder, const DecoderConfig& config,
                bool bf16) {
  out.key("general.architecture", std::string("llama"));
  out.key("general.name", std::string("random"));
  out.key("general.file_type", std::int64_t{bf16 ? 32 : 1});
  out.key("llama.vocab_size", config.vocab);
  out.key("llama.context_length", config.max_positions);
  out.key("llama.embedding_length", config.dim);
  out.key("llama.block_count", config.layers);
  out.key("llama.feed_forward_length", config.ffn_dim);
  out.key("llama.attention.head_count", config.heads);
  out.key("llama.attention.head_count_kv", config.kv_heads);
  out.key("llama.attention.key_length", config.head_dim);
  out.key("llama.attention.value_length", config.head_dim);
  out.key("llama.attention.layer_norm_rms_epsilon", config.norm_eps);
  out.key("llama.rope.dimension_count", config.rotary_dim);
  out.key("llama.rope.freq_base", static_cast<float>(config.rope.theta));
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    write_tokens(out, folder, config.vocab);
  } else {
    out.key("tokenizer.ggml.model", std::string("no_vocab"));
  }
}

float element(const TensorInfo& tensor, std::int64_t index) {
  BF16 bits;
  std::memcpy(&bits, tensor.data + 2 * index, sizeof bits);
  return to_f32(bits);
}

void write_data(Writer& out, const Entry& entry, const TensorInfo& tensor, bool bf16) {
  if (entry.kind == Kind::kNorm) {
    for (std::int64_t i = 0; i < tensor.shape[0]; ++i) out.value(element(tensor, i));
    return;
  }
  const std::int64_t rows = tensor.shape[0];
  const std::int64_t cols = tensor.shape[1];
  const std::int64_t head_dim = entry.heads > 0 ? rows / entry.heads : 1;
  std::vector<std::uint16_t> row(static_cast<std::size_t>(cols));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t in_head = r % head_dim;
    const std::int64_t from =
        entry.heads > 0 ? r - in_head + in_head / 2 + (in_head % 2) * (head_dim / 2) : r;
    if (bf16) {
      out.bytes(tensor.data + 2 * from * cols, static_cast<std::size_t>(2 * cols));
      continue;
    }
    for (std::int64_t c = 0; c < cols; ++c) {
      row[static_cast<std::size_t>(c)] = to_f16(element(tensor, from * cols + c));
    }
    out.bytes(row.data(), row.size() * 2);
  }
}

}  // namespace

void write_gguf(const std::filesystem::path& folder_path, const std::string& type,
                const std::filesystem::path& target) {
  if (type != "bf16" && type != "f16")
    throw Error("gguf type is \"" + type + "\"; expected bf16 or f16");
  if (std::filesystem::exists(target)) return;
  const bool bf16 = type == "bf16";
  const ModelFolder folder = ModelFolder::open(folder_path.string());
  const DecoderConfig config = load_config(folder);
  const std::vector<Entry> entries = entries_of(config);
  const std::filesystem::path partial = target.string() + ".partial";
  {
    // The number of keys comes before them.
    Writer count("/dev/null");
    write_keys(count, folder_path, config, bf16);
    Writer out(partial);
    out.bytes("GGUF", 4);
    out.value<std::uint32_t>(3);
    out.value<std::uint64_t>(entries.size());
    out.value<std::uint64_t>(count.keys);
    write_keys(out, folder_path, config, bf16);
    std::uint64_t offset = 0;
    for (const Entry& entry : entries) {
      const TensorInfo* tensor = folder.find(entry.source);
      if (tensor == nullptr || tensor->stored_type != "BF16") {
        throw Error(folder_path.string() + ": \"" + entry.source + "\" is not there in bf16");
      }
      out.text(entry.name);
      out.value(static_cast<std::uint32_t>(tensor->shape.size()));
      for (auto dim = tensor->shape.rbegin(); dim != tensor->shape.rend(); ++dim) {
        out.value(static_cast<std::uint64_t>(*dim));
      }
      const bool norm = entry.kind == Kind::kNorm;
      out.value<std::uint32_t>(norm ? 0 : bf16 ? 30 : 1);
      out.value(offset);
      const auto size =
          static_cast<std::uint64_t>(norm ? 2 * tensor->size_bytes : tensor->size_bytes);
      offset += (size + 31) / 32 * 32;
    }
    out.align();
    for (const Entry& entry : entries) {
      write_data(out, entry, *folder.find(entry.source), bf16);
      out.align();
    }
    out.finish();
  }
  std::filesystem::rename(partial, target);
}

}  // namespace dendrite::bench
