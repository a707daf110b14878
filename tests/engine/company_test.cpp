#include <algorithm>

#include "support/engine_support.h"

namespace dendrite::test {
namespace {

/// What a branch generated, to the bit.
struct Output {
  Tokens ids;
  std::vector<float> logprobs;
  bool operator==(const Output&) const = default;
};

Output output_of(const Generation& generation) {
  Output out{generation.ids, {}};
  for (const ChosenToken& token : generation.logprobs) out.logprobs.push_back(token.logprob);
  return out;
}

DecodeParams sampled() {
  DecodeParams params;
  params.max_tokens = 24;
  params.temperature = 0.9;
  params.ignore_eos = true;
  params.top_logprobs = 0;
  return params;
}

class Company : public ::testing::TestWithParam<std::string> {};

// A sampled branch gives the same tokens and log-probs whoever is in its batch, in whichever place,
// however much of its prompt was found in the prefix index, and however the rest was cut into
// steps.
TEST_P(Company, OneOutputWhateverIsRandomAroundIt) {
  const Engine engine = load(GetParam());
  const std::int64_t vocab = engine.info().vocab;
  Random random(11);
  const Tokens prompt = random.tokens(300, vocab);
  std::uint64_t stream = 0;
  Output expected;
  {
    Session session(engine, {.seed = 5});
    Branch branch = session.prefill(std::span(prompt));
    stream = branch.stream();
    expected = output_of(session.decode(branch, sampled()));
  }
  for (int run = 0; run < scaled(20); ++run) {
    SCOPED_TRACE("run " + std::to_string(run));
    if (random.one_in(2)) core_of(engine)->prefix_index->clear();
    Session session(engine, {.seed = 5});
    std::vector<Branch> batch;
    for (std::int64_t i = random.below(random.one_in(4) ? 100 : 12); i > 0; --i) {
      const std::int64_t shared = random.below(300);
      Tokens tokens(prompt.begin(), prompt.begin() + shared);
      tokens = joined(tokens, random.tokens(random.in(1, 60), vocab));
      batch.push_back(session.prefill(std::span(tokens)));
    }
    std::int64_t& budget = core_of(session)->options.budget.tokens;
    if (random.one_in(2)) budget = session.stats().tokens_computed + random.in(1, 150);
    Branch branch = session.prefill(std::span(prompt), {.stream = stream});
    budget = 0;
    const auto place =
        static_cast<std::ptrdiff_t>(random.below(static_cast<std::int64_t>(batch.size()) + 1));
    batch.insert(batch.begin() + place, std::move(branch));
    const std::vector<Generation> out = session.decode(batch, sampled());
    EXPECT_TRUE(output_of(out[static_cast<std::size_t>(place)]) == expected);
  }
}

std::string name_of_model(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Company, ::testing::Values("tinyllama", "qwen3", "dendrite-24"),
                         name_of_model);

class Devices : public ::testing::TestWithParam<std::string> {};

// In f32 every device and path takes the token that the portable path of the CPU takes, unless that
// one's two likeliest tokens are about equal; log-probs of the same tokens agree everywhere.
TEST_P(Devices, GreedyTokensInF32AreThoseOfThePortablePath) {
  const Engine reference =
      Engine::load(model_path(GetParam()).string(),
                   {.dtype = "f32", .threads = 1, .kv_tokens = 4096, .kernels = "portable"});
  const Engine engine = load(GetParam(), {.dtype = "f32"});
  constexpr float kTolerance = 1e-3F;
  Random random(3);
  for (int run = 0; run < 4; ++run) {
    const Tokens prompt = random.tokens(random.in(1, 200), engine.info().vocab);
    DecodeParams params = greedy(48);
    params.top_logprobs = 2;
    Session reference_session(reference);
    Branch wanted = reference_session.prefill(std::span(prompt));
    const Generation expected = reference_session.decode(wanted, params);
    Session session(engine);
    Branch branch = session.prefill(std::span(prompt));
    const Score score = branch.score_tokens({expected.ids})[0];
    for (std::size_t i = 0; i < expected.ids.size(); ++i) {
      EXPECT_NEAR(score.tokens[i], expected.logprobs[i].logprob, kTolerance);
    }
    const Generation got = session.decode(branch, params);
    const auto first = std::mismatch(expected.ids.begin(), expected.ids.end(), got.ids.begin());
    if (first.first == expected.ids.end()) continue;
    const auto at = static_cast<std::size_t>(first.first - expected.ids.begin());
    const std::vector<TokenLogprob>& top = expected.logprobs[at].top;
    EXPECT_LE(top[0].logprob - top[1].logprob, kTolerance) << "token " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Devices,
                         ::testing::Values("tinyllama", "qwen2", "qwen3", "mistral_swa",
                                           "llama_yarn", "dendrite-24"),
                         name_of_model);

}  // namespace
}  // namespace dendrite::test
