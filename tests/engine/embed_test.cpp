// Vectors of texts: the model's hidden states, behind its final norm.
#include <gtest/gtest.h>

#include <cmath>

#include "model/model.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::logits_of;
using test::Random;
using test::same_bits;
using test::Tokens;

class EmbedTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string device() {
    const std::string wanted = GetParam();
    return wanted == "sampling" && test::on_cuda() ? "cuda" : wanted;
  }
  std::vector<float> vector_of(const Tokens& text, const EmbedOptions& options) {
    return engine_.embed(std::span(&text, 1), options).values;
  }

  Engine engine_ = load("qwen3", {.dtype = "f32"}, device());
  Random random_{7};
};

INSTANTIATE_TEST_SUITE_P(Devices, EmbedTest, ::testing::Values("", "sampling"));

/// The output matrix makes the next token's logits of it, which goldens of transformers check; it
/// has more rows than a vector has numbers.
TEST_P(EmbedTest, TheLastTokensVectorIsWhatLogitsAreMadeOf) {
  EngineCore& core = *core_of(engine_);
  ASSERT_GT(core.info.vocab, core.info.dim);
  const Tokens text = random_.tokens(45, 256);
  const std::vector<float> vector = vector_of(text, {.normalize = false});
  ASSERT_EQ(std::ssize(vector), core.info.dim);
  const auto on_device = core.backend->make_buffer(core.info.dim);
  const auto made = core.backend->make_buffer(core.info.vocab);
  core.backend->upload(on_device->data(), vector);
  core.backend->matmul({made->data(), 1, core.info.vocab, core.info.vocab},
                       {on_device->data(), 1, core.info.dim, core.info.dim},
                       core.model->output_matrix(), nullptr, Backend::Store::kOverwrite);
  std::vector<float> logits(static_cast<std::size_t>(core.info.vocab));
  core.backend->download(logits, made->data());
  Session session(engine_);
  Branch branch = session.prefill(std::span(text));
  const std::vector<float> expected = logits_of(branch);
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-4) << i;
}

TEST_P(EmbedTest, TheMeanIsThatOfAllTokensVectors) {
  const Tokens text = random_.tokens(37, 256);
  std::vector<double> mean(static_cast<std::size_t>(engine_.info().dim));
  for (std::size_t n = 1; n <= text.size(); ++n) {
    const std::vector<float> last =
        vector_of(Tokens(text.begin(), text.begin() + std::ptrdiff_t(n)), {.normalize = false});
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += last[i] / double(text.size());
  }
  const std::vector<float> got = vector_of(text, {.pooling = Pooling::kMean, .normalize = false});
  for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(got[i], mean[i], 1e-5) << i;
}

TEST_P(EmbedTest, EachIsWhatItIsAlone) {
  std::vector<Tokens> texts;
  const Tokens common = random_.tokens(70, 256);
  for (int i = 0; i < 12; ++i) {
    Tokens text(common.begin(), common.begin() + random_.in(0, 70));
    texts.push_back(test::joined(text, random_.tokens(random_.in(1, 40), 256)));
  }
  texts.push_back(texts[3]);                                   // twice
  texts.emplace_back(texts[5].begin(), texts[5].begin() + 1);  // the beginning of others
  texts.emplace_back(common);
  for (const Pooling pooling : {Pooling::kLastToken, Pooling::kMean}) {
    for (const bool normalize : {false, true}) {
      const EmbedOptions options{.pooling = pooling, .normalize = normalize};
      const Embeddings got = engine_.embed(texts, options);
      ASSERT_EQ(got.size(), std::ssize(texts));
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const Engine fresh = load("qwen3", {.dtype = "f32", .prefix_index = false}, device());
        const Embeddings alone = fresh.embed(std::span(&texts[i], 1), options);
        EXPECT_TRUE(same_bits(got[std::int64_t(i)], alone.values)) << i;
        double square = 0;
        for (const float x : alone.values) square += double(x) * x;
        if (normalize) {
          EXPECT_NEAR(square, 1, 1e-6);
        }
      }
    }
  }
  test::expect_all_pages_free(engine_);
}

TEST_P(EmbedTest, SharesWhatTextsHaveInCommon) {
  const Tokens common = random_.tokens(64, 256);
  std::vector<Tokens> texts;
  for (Token i = 0; i < 10; ++i) texts.push_back(test::joined(common, Tokens{i, 1, 2}));
  const auto rows_of = [&](const Engine& engine, Pooling pooling) {
    std::int64_t rows = 0;
    const auto calls =
        engine.on_event(mask_of(EventKind::kCall), [&](const Event& event) { rows += event.rows; });
    engine.embed(texts, {.pooling = pooling});
    return rows;
  };
  EXPECT_EQ(rows_of(engine_, Pooling::kLastToken), 64 + 10 * 3);
  EXPECT_EQ(rows_of(engine_, Pooling::kMean), 64 + 10 * 3);
  Session session(engine_);
  const Branch prompt = session.prefill(std::span(common));
  EXPECT_EQ(rows_of(engine_, Pooling::kLastToken), 10 * 3);
  EXPECT_EQ(rows_of(engine_, Pooling::kMean), 64 + 10 * 3);  // nobody keeps hidden states
}

TEST_P(EmbedTest, MoreTextsThanThePoolHoldsComeInGroups) {
  const Engine small = load("qwen3", {.dtype = "f32", .kv_tokens = 512}, device());
  std::vector<Tokens> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(random_.tokens(60, 256));
  for (const Pooling pooling : {Pooling::kLastToken, Pooling::kMean}) {
    const Embeddings got = small.embed(texts, {.pooling = pooling});
    const Embeddings expected = engine_.embed(texts, {.pooling = pooling});
    EXPECT_TRUE(same_bits(got.values, expected.values));
  }
}

TEST_P(EmbedTest, WrongTextsAreRefused) {
  const std::vector<Tokens> empty = {{1}, {}};
  EXPECT_ERROR(engine_.embed(empty), "embed: text 1 has no tokens");
  const std::vector<Tokens> foreign = {{-1}};
  EXPECT_ERROR(engine_.embed(foreign), "-1");
  const std::vector<Tokens> longer = {random_.tokens(16385, 256)};
  EXPECT_ERROR(engine_.embed(longer), "embed: 16385 tokens; the KV pool holds 16384");
  std::stop_source stop;
  stop.request_stop();
  const std::vector<Tokens> one = {{1, 2}};
  EXPECT_ERROR(engine_.embed(one, {.cancel = stop.get_token()}), "embed: cancelled");
  EXPECT_EQ(engine_.embed(std::vector<Tokens>{}).size(), 0);
  const std::vector<std::string> texts = {"a text", "another"};
  EXPECT_EQ(engine_.embed(texts).values,
            engine_.embed(std::vector<Tokens>{engine_.encode("a text"), engine_.encode("another")})
                .values);
}

}  // namespace
}  // namespace dendrite
