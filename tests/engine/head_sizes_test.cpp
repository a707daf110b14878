// fork == replay, and no influence of company, for sizes and groups of heads that attention's
// kernels have ways of their own for.
#include <gtest/gtest.h>

#include "support/engine_support.h"
#include "support/tiny_model.h"

namespace dendrite::test {
namespace {

class HeadSizes : public ::testing::TestWithParam<std::tuple<TinyAttention, std::string>> {
 protected:
  Engine engine(EngineOptions options = {}) const {
    options.dtype = "bf16";
    options.kv_dtype = std::get<1>(GetParam());
    return load(model_.path(), options);
  }

  TinyModel model_{std::get<0>(GetParam())};
  Random random_{5};
};

TEST_P(HeadSizes, BranchesOfATreeEqualTheirReplays) {
  const Engine e = engine();
  const Engine alone = engine({.prefix_index = false});
  const Tokens trunk = random_.tokens(300, 256);
  Session session(e);
  std::vector<Branch> branches;
  std::vector<Tokens> tokens;
  branches.push_back(session.prefill(std::span(trunk)));
  tokens.push_back(trunk);
  for (int i = 0; i < 20; ++i) {
    const auto parent =
        static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(branches.size())));
    const Tokens own = random_.tokens(random_.in(1, 60), 256);
    branches.push_back(branches[parent].fork());
    branches.back().append(own);
    tokens.push_back(joined(tokens[parent], own));
  }
  const std::vector<Generation> drawn = session.decode(branches, greedy(8));
  for (std::size_t i = 0; i < branches.size(); ++i) {
    SCOPED_TRACE("branch " + std::to_string(i));
    EXPECT_TRUE(same_bits(bits_of(branches[i]), replay(alone, joined(tokens[i], drawn[i].ids))));
  }
}

TEST_P(HeadSizes, ABranchDrawsTheSameAloneAndInCompany) {
  const Engine e = engine({.prefix_index = false});
  const Tokens prompt = random_.tokens(200, 256);
  DecodeParams params = greedy(24);
  params.temperature = 0.9;
  Session session(e, {.seed = 5});
  Branch first = session.prefill(std::span(prompt));
  const std::uint64_t stream = first.stream();
  const Generation alone = session.decode(first, params);
  for (const int company : {3, 60}) {
    SCOPED_TRACE(std::to_string(company) + " others");
    std::vector<Branch> batch;
    for (int i = 0; i < company; ++i) {
      const Tokens other = random_.tokens(random_.in(1, 150), 256);
      batch.push_back(session.prefill(std::span(other)));
    }
    batch.push_back(session.prefill(std::span(prompt), {.stream = stream}));
    const std::vector<Generation> together = session.decode(batch, params);
    expect_same({together.back()}, {alone});
  }
}

std::string name_of(const ::testing::TestParamInfo<HeadSizes::ParamType>& info) {
  const auto& [a, kv_dtype] = info.param;
  return std::string(a.model_type) + "_" + std::to_string(a.head_dim) + "_" +
         std::to_string(a.heads) + "_" + std::to_string(a.kv_heads) + "_" + kv_dtype;
}

/// A CPU widens pages in FP8 before its kernels of a head size see them.
std::vector<std::string> kv_dtypes() {
  return on_cuda() ? std::vector<std::string>{"bf16", "fp8"} : std::vector<std::string>{"bf16"};
}

INSTANTIATE_TEST_SUITE_P(Models, HeadSizes,
                         ::testing::Combine(::testing::Values(TinyAttention{"mistral", 64, 71, 1},
                                                              TinyAttention{"mistral", 80, 6, 2},
                                                              TinyAttention{"mistral", 96, 5, 1},
                                                              TinyAttention{"qwen3", 128, 14, 2},
                                                              TinyAttention{"mistral", 192, 3, 1},
                                                              TinyAttention{"qwen3", 256, 12, 2},
                                                              TinyAttention{"mistral", 256, 40, 1},
                                                              // Capped scores.
                                                              TinyAttention{"gemma2", 128, 4, 2},
                                                              TinyAttention{"gemma2", 256, 8, 4}),
                                            ::testing::ValuesIn(kv_dtypes())),
                         name_of);

}  // namespace
}  // namespace dendrite::test
