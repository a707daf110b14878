// Hybrids of tests/data/models against Hugging Face transformers, on every instruction path: a pass
// over a Decoder, with pages and states of one path.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "dendrite/error.h"
#include "io/model_folder.h"
#include "model/loader.h"
#include "step/attention_planner.h"
#include "support/golden_fixture.h"
#include "support/paths.h"
#include "support/recurrent_path.h"

namespace dendrite {
namespace {

using test::distance;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kPageTokens = 16;
constexpr std::int64_t kPositions = 256;

/// A model and one text of it, computed in as many passes as are asked for.
class Text {
 public:
  Text(const ModelLoader& loader, Backend& backend, Model& model)
      : backend_(backend), model_(model), vocab_(loader.info().vocab) {
    KvShape shape = loader.info().kv;
    shape.pages = kPositions / kPageTokens;
    shape.page_tokens = kPageTokens;
    shape.format = backend.numerics().kv;
    kv_ = backend.make_kv_store(shape);
    states_ = std::make_unique<test::RecurrentPath>(backend, *loader.info().state, kPositions);
    pages_.resize(static_cast<std::size_t>(shape.pages));
    std::iota(pages_.begin(), pages_.end(), 0);
    std::reverse(pages_.begin(), pages_.end());
  }

  /// The logits of all these tokens, which follow those before. [tokens, vocab]
  std::vector<float> append(std::span<const std::int32_t> tokens) {
    Batch batch;
    const auto rows = static_cast<std::int32_t>(tokens.size());
    for (std::int32_t i = 0; i < rows; ++i) {
      const std::int64_t at = length_ + i;
      batch.tokens.push_back(tokens[static_cast<std::size_t>(i)]);
      batch.positions.push_back(at);
      batch.slots.push_back(pages_[static_cast<std::size_t>(at / kPageTokens)] * kPageTokens +
                            at % kPageTokens);
      batch.logit_rows.push_back(i);
    }
    const PlanSequence sequence{pages_, length_, rows};
    for (const AttentionWindow& window : model_.windows()) {
      AttentionPlanner(kPageTokens).build({&sequence, 1}, window, batch.plans.emplace_back());
    }
    batch.recurrence = states_->next(rows);
    length_ += rows;
    const Tensor logits = model_.forward(batch, {*kv_, nullptr, &states_->store()});
    std::vector<float> out(tokens.size() * static_cast<std::size_t>(vocab_));
    backend_.download(out, logits.data);
    return out;
  }

 private:
  Backend& backend_;
  Model& model_;
  std::int64_t vocab_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<test::RecurrentPath> states_;
  std::vector<std::int32_t> pages_;
  std::int64_t length_ = 0;
};

class HybridGolden : public test::GoldenTest {
 protected:
  struct Loaded {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Model> model;
  };
  Loaded load(const std::string& path, const Numerics& numerics = Numerics::kF32,
              int threads = 1) const {
    Loaded out;
    out.backend = test::make_backend(numerics, threads, path);
    out.model = loader->load(*out.backend, {.max_rows = kPositions});
    return out;
  }
  Text text(const Loaded& on) const { return {*loader, *on.backend, *on.model}; }

  std::span<const float> row(const std::vector<float>& logits, std::int64_t i) const {
    const auto vocab = static_cast<std::size_t>(loader->info().vocab);
    return std::span(logits).subspan(static_cast<std::size_t>(i) * vocab, vocab);
  }
  /// Those at the golden's positions, of logits of all.
  std::vector<float> chosen(const std::vector<float>& logits) const {
    std::vector<float> out;
    for (const std::int32_t position : positions) {
      const auto one = row(logits, position);
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  const test::GoldenFile golden{test::model_data() / GetParam() / "golden.safetensors"};
  const double tolerance = test::golden_tolerance(GetParam());
  const Tokens ids = golden.ints("input_ids");
  const Tokens positions = golden.ints("positions");
  const std::vector<float> expected = golden.floats("logits_f32");
  const ModelFolder folder = ModelFolder::open(test::model_path(GetParam()).string());
  const std::unique_ptr<ModelLoader> loader = make_loader(folder);
};

TEST_P(HybridGolden, HasTheLogitsOfTransformersInF32) {
  for (const std::string& path : cpu_kernel_paths()) {
    SCOPED_TRACE(path);
    const Loaded on = load(path);
    const std::vector<float> logits = text(on).append(ids);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      EXPECT_LE(distance(row(logits, positions[i]), row(expected, static_cast<std::int64_t>(i))),
                tolerance)
          << positions[i] + 1 << " tokens";
    }
    const Tensor hidden = on.model->hidden();
    std::vector<float> states(static_cast<std::size_t>(hidden.rows * hidden.cols));
    on.backend->download(states, hidden.data);
    const auto dim = static_cast<std::size_t>(hidden.cols);
    const std::vector<float> theirs = golden.floats("hidden_f32");  // [layers + 2, positions, dim]
    EXPECT_LE(distance(std::span(states).last(dim), std::span(theirs).last(dim)), tolerance);
  }
}

TEST_P(HybridGolden, HasTheSameBitsInAnyPasses) {
  for (const std::string& path : cpu_kernel_paths()) {
    SCOPED_TRACE(path);
    const Loaded on = load(path);
    const std::vector<float> whole = text(on).append(ids);
    const Loaded on_more = load(path, Numerics::kF32, 2);
    for (const std::size_t count : {1, 5, 15, 16, 17, 33, 64}) {
      const Loaded& loaded = count == 17 ? on_more : on;
      Text cut = text(loaded);
      std::vector<float> logits;
      for (std::size_t at = 0; at < ids.size(); at += count) {
        const auto some = cut.append(std::span(ids).subspan(at, std::min(count, ids.size() - at)));
        logits.insert(logits.end(), some.begin(), some.end());
      }
      EXPECT_EQ(logits, whole) << "passes of " << count;
    }
  }
}

TEST_P(HybridGolden, ChoosesTheTokensOfTransformersInF32) {
  const Tokens greedy = golden.ints("greedy_ids");
  const std::int64_t length = test::golden_json(GetParam()).at("greedy").at("prompt_tokens");
  const Loaded on = load("");
  Text text = HybridGolden::text(on);
  std::vector<float> logits = text.append(std::span(ids).first(static_cast<std::size_t>(length)));
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    const auto last = std::span(logits).last(static_cast<std::size_t>(loader->info().vocab));
    ASSERT_EQ(std::ranges::max_element(last) - last.begin(), greedy[i]) << "step " << i;
    logits = text.append(std::span(greedy).subspan(i, 1));
  }
}

TEST_P(HybridGolden, IsAsCloseToF32InHalfPrecisionAsTransformersOwn) {
  const double theirs = test::golden_json(GetParam()).at("half_error");
  for (const std::string& path : cpu_kernel_paths()) {
    SCOPED_TRACE(path);
    const Loaded on = load(path, Numerics::kBF16);
    const double error = distance(chosen(text(on).append(ids)), expected);
    EXPECT_LE(error, 1.25 * theirs);
    EXPECT_GT(error, 0);
  }
}

TEST_P(HybridGolden, KeepsNoTokenApartFromThoseBeforeIt) {
  const Loaded on = load("");
  EXPECT_NE(on.model->why_not_move().find("recurrent layers"), std::string::npos);
  const KvShape shape = loader->info().kv;
  EXPECT_LT(shape.layers, loader->info().sizes.layers);
  KvShape pages = shape;
  pages.pages = 1;
  pages.page_tokens = kPageTokens;
  const auto kv = on.backend->make_kv_store(pages);
  EXPECT_THROW(on.model->move({}, *kv), Error);
  EXPECT_THROW(on.model->fill({}, *kv, 1), Error);
}

INSTANTIATE_TEST_SUITE_P(Models, HybridGolden, ::testing::ValuesIn(test::goldens(/*hybrids=*/true)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dendrite
