#include "fuzz/model.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "dendrite/error.h"

namespace dendrite::fuzz {
namespace {

using Json = nlohmann::ordered_json;

void write(const std::filesystem::path& file, const Json& value) {
  std::ofstream out(file);
  out << value.dump(1) << '\n';
  if (!out.flush()) throw Error(file.string() + ": cannot be written");
}

/// A byte as byte-level tokenizers spell it: printable ones as they are, the others from U+0100 on.
std::string spelled(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

Json tokenizer() {
  const char* const kSpecial[] = {"<s>", "</s>", "<turn>", "<pad>"};
  const std::pair<const char*, const char*> kMerges[] = {
      {"t", "h"}, {"th", "e"}, {"i", "n"}, {"e", "r"}, {"a", "n"}, {"1", "0"}, {"in", "g"}};
  Json added = Json::array();
  Json vocab;
  int id = 0;
  for (const char* text : kSpecial) {
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[text] = id++;
  }
  for (int byte = 0; byte < 256; ++byte) vocab[spelled(byte)] = id++;
  Json merges = Json::array();
  for (const auto& [left, right] : kMerges) {
    merges.push_back(std::string(left).append(" ").append(right));
    vocab[std::string(left).append(right)] = id++;
  }
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", merges}}}};
}

/// A family by what sets it apart from Qwen3.
struct TinyFamily {
  const char* name;
  Json own;
  bool only_exact = false;  // its layers differ in how they rotate K
  bool scales = false;      // embeddings and logits, which no drafter reads so
  bool recurrent = false;   // some of its layers
};

const std::vector<TinyFamily>& families() {
  const Json two = {{"num_hidden_layers", 2}, {"head_dim", 8}};
  const auto of = [](Json all, const Json& own) {
    all.update(own);
    return all;
  };
  const auto with = [&](const Json& own) { return of(two, own); };
  const Json routed = {
      {"n_routed_experts", 8}, {"num_experts_per_tok", 3}, {"moe_intermediate_size", 24},
      {"n_group", 4},          {"topk_group", 2},          {"routed_scaling_factor", 1.5}};
  // Two layers have their own K and V, and two take theirs.
  const Json gemma4 = {
      {"head_dim", 8},
      {"global_head_dim", 16},
      {"num_hidden_layers", 4},
      {"layer_types",
       {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
      {"sliding_window", 20},
      {"num_kv_shared_layers", 2},
      {"hidden_size_per_layer_input", 8},
      {"vocab_size_per_layer_input", 300},
      {"hidden_activation", "gelu_pytorch_tanh"}};
  const auto convolving = [](const Json& own = Json::object()) {
    Json all = {{"num_hidden_layers", 3}, {"layer_types", {"conv", "full_attention", "conv"}}};
    all.update(own);
    return all;
  };
  const auto mamba = [](const Json& own = Json::object()) {
    Json all = {{"model_type", "granitemoehybrid"},
                {"num_hidden_layers", 3},
                {"layer_types", {"mamba", "attention", "mamba"}},
                {"shared_intermediate_size", 40},
                {"num_local_experts", 0},
                {"mamba_n_heads", 4},
                {"mamba_d_state", 12},
                {"residual_multiplier", 0.4},
                {"logits_scaling", 2.0}};
    all.update(own);
    return all;
  };
  static const std::vector<TinyFamily> kFamilies = {
      {"smollm3", with({{"no_rope_layers", {1, 0}}}), true},
      {"granite",
       with({{"embedding_multiplier", 3.0},
             {"attention_multiplier", 0.2},
             {"residual_multiplier", 0.4},
             {"logits_scaling", 2.0}}),
       false, true},
      {"phi3", with({{"partial_rotary_factor", 0.5}, {"sliding_window", 20}})},
      {"ministral3", with({{"rope_parameters",
                            {{"rope_type", "yarn"},
                             {"factor", 4.0},
                             {"rope_theta", 10000.0},
                             {"original_max_position_embeddings", 16},
                             {"mscale", 1.0},
                             {"mscale_all_dim", 1.0},
                             {"llama_4_scaling_beta", 0.3}}}})},
      {"glm4", with({{"partial_rotary_factor", 0.5}})},
      {"olmo2", two},
      {"olmo3", with({{"sliding_window", 20}, {"rope_theta", 20000.0}}), true},
      {"gemma2",
       with({{"sliding_window", 20},
             {"query_pre_attn_scalar", 8},
             {"attn_logit_softcapping", 2.0},
             {"final_logit_softcapping", 5.0},
             {"hidden_activation", "gelu_pytorch_tanh"}}),
       false, true},
      {"gemma3_text",
       with({{"sliding_window", 20},
             {"sliding_window_pattern", 2},
             {"rope_theta", 50000.0},
             {"hidden_activation", "gelu_pytorch_tanh"}}),
       true, true},
      {"gemma4_text", gemma4, true, true},
      {"gemma4_experts",
       of(gemma4, {{"model_type", "gemma4_text"},
                   {"num_kv_shared_layers", 0},
                   {"hidden_size_per_layer_input", 0},
                   {"attention_k_eq_v", true},
                   {"num_global_key_value_heads", 1},
                   {"enable_moe_block", true},
                   {"num_experts", 5},
                   {"top_k_experts", 2},
                   {"moe_intermediate_size", 24}}),
       true, true},
      {"glm4_moe", with(routed)},
      {"deepseek_v3", with({{"n_routed_experts", 6},
                            {"num_experts_per_tok", 2},
                            {"moe_intermediate_size", 24},
                            {"n_group", 1},
                            {"topk_group", 1},
                            {"first_k_dense_replace", 1},
                            {"q_lora_rank", 12},
                            {"kv_lora_rank", 16},
                            {"qk_nope_head_dim", 8},
                            {"qk_rope_head_dim", 8},
                            {"v_head_dim", 12}})},
      {"gpt_oss",
       with({{"sliding_window", 20}, {"num_local_experts", 6}, {"num_experts_per_tok", 2}})},
      {"llama4_text",
       of(two, {{"num_hidden_layers", 3},
                {"no_rope_layers", {1, 0, 1}},
                {"attention_chunk_size", 44},
                {"floor_scale", 16},
                {"attn_scale", 0.3},
                {"intermediate_size", 24},
                {"intermediate_size_mlp", 40},
                {"interleave_moe_layer_step", 2},
                {"num_local_experts", 5}}),
       true},
      {"lfm2", convolving(), false, false, true},
      {"lfm2_moe",
       convolving({{"num_dense_layers", 1},
                   {"num_experts", 6},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"conv_bias", true}}),
       false, false, true},
      {"lfm3",
       convolving({{"head_dim", 8},
                   {"layer_types", {"conv", "sliding_attention", "conv"}},
                   {"sliding_window", 20}}),
       false, false, true},
      {"granite_hybrid", mamba(), false, true, true},
      {"granite_hybrid_moe",
       mamba({{"num_local_experts", 6}, {"num_experts_per_tok", 2}, {"intermediate_size", 24}}),
       false, true, true},
      {"nemotron_h",
       {{"hybrid_override_pattern", "M-*E"},
        {"num_hidden_layers", 4},
        {"n_routed_experts", 6},
        {"num_experts_per_tok", 2},
        {"moe_intermediate_size", 24},
        {"moe_shared_expert_intermediate_size", 24},
        {"head_dim", 8},
        {"mamba_num_heads", 4},
        {"mamba_head_dim", 12},
        {"n_groups", 2},
        {"ssm_state_size", 12}},
       false,
       false,
       true},
      {"kimi_linear",
       {{"num_hidden_layers", 3},
        {"linear_attn_config",
         {{"kda_layers", {1, 3}},
          {"full_attn_layers", {2}},
          {"num_heads", 3},
          {"head_dim", 12},
          {"short_conv_kernel_size", 4}}},
        {"kv_lora_rank", 16},
        {"qk_nope_head_dim", 8},
        {"qk_rope_head_dim", 8},
        {"v_head_dim", 12},
        {"num_experts", 6},
        {"num_experts_per_token", 2},
        {"moe_intermediate_size", 24}},
       false,
       false,
       true},
  };
  return kFamilies;
}

const TinyFamily* find_family(const std::string& name) {
  const auto found = std::ranges::find(families(), name, &TinyFamily::name);
  return found == families().end() ? nullptr : &*found;
}

Json config(const TinyModel& kind) {
  Json out = {{"hidden_size", 32},        {"intermediate_size", 48},
              {"num_attention_heads", 4}, {"num_key_value_heads", 2},
              {"vocab_size", 300},        {"max_position_embeddings", 8192},
              {"rms_norm_eps", 1e-6},     {"rope_theta", 10000.0},
              {"hidden_act", "silu"},     {"tie_word_embeddings", false},
              {"bos_token_id", 0},        {"eos_token_id", 1},
              {"torch_dtype", "bfloat16"}};
  if (const TinyFamily* const family = find_family(kind.family)) {
    out["model_type"] = family->name;
    out.update(family->own);
    return out;
  }
  const Json own =
      kind.recurrent
          ? Json{{"model_type", kind.experts ? "qwen3_5_moe_text" : "qwen3_5_text"},
                 {"head_dim", 16},
                 {"num_hidden_layers", 3},
                 {"layer_types", {"linear_attention", "full_attention", "linear_attention"}},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 8},
                 {"linear_value_head_dim", 8},
                 {"linear_conv_kernel_dim", 4},
                 {"mtp_num_hidden_layers", 1}}
          : Json{{"model_type", kind.experts ? "qwen3_moe" : "qwen3"},
                 {"head_dim", 8},
                 {"num_hidden_layers", 2},
                 {"use_sliding_window", true},
                 {"sliding_window", 20}};
  out.update(own);
  if (!kind.recurrent && !kind.experts) {  // (whose windows are all layers')
    out["layer_types"] = {"full_attention", "sliding_attention"};
  }
  if (kind.experts) {
    out.update(Json{{"num_experts", 6},
                    {"num_experts_per_tok", 2},
                    {"moe_intermediate_size", 24},
                    {"shared_expert_intermediate_size", 16},
                    {"norm_topk_prob", true}});
  }
  return out;
}

}  // namespace

std::vector<std::string> tiny_families() {
  std::vector<std::string> names;
  for (const TinyFamily& family : families()) names.emplace_back(family.name);
  return names;
}

bool is_only_exact(const std::string& model_type) {
  const TinyFamily* const family = find_family(model_type);
  return family != nullptr && family->only_exact;
}

bool is_recurrent(const TinyModel& kind) {
  const TinyFamily* const family = find_family(kind.family);
  return family != nullptr ? family->recurrent : kind.recurrent;
}

void write_tiny_model(const std::filesystem::path& folder, const TinyModel& kind) {
  const Json model = config(kind);
  write(folder / "config.json", model);
  // Many ends of sequence, so that branches do end. Bytes that no character has, so that there is a
  // token for any text: without, constraints would leave no token without a choice.
  write(folder / "generation_config.json", {{"eos_token_id", {1, 196, 197, 250, 254, 258}}});
  write(folder / "tokenizer.json", tokenizer());
  const TinyFamily* const family = find_family(kind.family);
  if (family != nullptr && family->scales) return;
  // A block drafter for it.
  std::filesystem::create_directory(drafter_of(folder));
  write(drafter_of(folder) / "config.json",
        {{"architectures", {"DFlashDraftModel"}},
         {"hidden_size", 32},
         {"intermediate_size", 40},
         {"num_hidden_layers", 2},
         {"num_attention_heads", 2},
         {"num_key_value_heads", 1},
         {"head_dim", 16},
         {"block_size", 7},
         {"num_target_layers", model.at("num_hidden_layers")},
         {"layer_types", {"sliding_attention", "full_attention"}},
         {"sliding_window", 30},
         {"rms_norm_eps", 1e-6},
         {"rope_theta", 10000.0},
         {"dflash_config", {{"mask_token_id", 3}, {"target_layer_ids", {0, 1}}}}});
}

std::filesystem::path drafter_of(const std::filesystem::path& folder) {
  return folder / "drafter";
}

}  // namespace dendrite::fuzz
