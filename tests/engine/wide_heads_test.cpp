// fork == replay with heads as wide as published models have: one latent a token for all heads, and
// layers of two sizes. The models are small otherwise, and their weights random.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::Random;
using test::replay;
using test::same_bits;
using test::Tokens;

/// What every configuration says.
const std::string kCommon = R"(
  "hidden_size": 64, "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
  "torch_dtype": "bfloat16",)";

std::string latent(int rank) {
  return kCommon +
         R"("model_type": "deepseek_v3", "num_hidden_layers": 2, "num_attention_heads": 20,
    "num_key_value_heads": 20, "first_k_dense_replace": 2, "q_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64,
    "v_head_dim": 40, "kv_lora_rank": )" +
         std::to_string(rank);
}

const std::string kTwoSizes = kCommon + R"("model_type": "gemma4_unified_text",
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
  "global_head_dim": 512, "sliding_window": 100, "hidden_activation": "gelu_pytorch_tanh",
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"])";

struct Case {
  const char* name;
  std::string config;
  const char* kv_dtype;
};

class WideHeads : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::ofstream(folder_.path() / "config.json") << "{" << GetParam().config << "}";
  }
  Engine engine(bool prefix_index) const {
    EngineOptions options;
    if (test::on_cuda()) options.device = "cuda";
    options.dtype = "bf16";
    options.kv_dtype = GetParam().kv_dtype;
    options.kv_tokens = 16384;
    options.load_format = "dummy";
    options.prefix_index = prefix_index;
    return Engine::load(folder_.path().string(), options);
  }

  TemporaryFolder folder_;
};

TEST_P(WideHeads, BranchesOfPromptsAndOfRecordedStepsReplay) {
  const Engine e = engine(true);
  const Engine alone = engine(false);
  if (test::on_cuda()) {
    EXPECT_EQ(e.info().attention, "tensor cores");
    EXPECT_TRUE(e.info().graphs.starts_with("passes of")) << e.info().graphs;
  }
  Random random(5);
  Session session(e);
  const Tokens trunk = random.tokens(700, 320);
  Branch root = session.prefill(std::span(trunk));
  std::vector<Branch> branches;
  for (const std::int64_t point : {1, 17, 128, 511, 513, 640, 700}) {
    branches.push_back(root.at(point));
    branches.back().append(random.tokens(random.in(1, 40), 320));
  }
  while (branches.size() < 20) branches.push_back(root.fork());
  session.decode(branches, {.max_tokens = 9, .temperature = 1.0, .ignore_eos = true});
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(same_bits(bits_of(branches[i]), replay(alone, branches[i].tokens()))) << i;
  }
}

TEST_P(WideHeads, PagesHoldALatentOnce) {
  const std::string name = GetParam().name;
  if (!name.starts_with("latent")) GTEST_SKIP() << "of latents";
  const EngineInfo info = engine(false).info();
  const std::int64_t kept = 64 + (name == "latent_of_256" ? 256 : 512);
  EXPECT_EQ(info.kv_token_bytes, 2 * (info.kv_dtype == "fp8" ? kept + 1 : 2 * kept));
}

INSTANTIATE_TEST_SUITE_P(Models, WideHeads,
                         ::testing::Values(Case{"latent_of_512", latent(512), "bf16"},
                                           Case{"latent_of_256", latent(256), "bf16"},
                                           Case{"latent_of_512_fp8", latent(512), "fp8"},
                                           Case{"two_sizes", kTwoSizes, "bf16"},
                                           Case{"two_sizes_fp8", kTwoSizes, "fp8"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace dendrite
