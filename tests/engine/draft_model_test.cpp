// A model that drafts for another: what it must not be, what it may not change, and what it shares.
#include "engine/drafts/draft_sources.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::Tokens;

Engine load(const std::string& model, const std::string& draft, EngineOptions options = {}) {
  options.draft_model = test::model_path(draft).string();
  if (options.draft_kv_tokens == 0) options.draft_kv_tokens = 16384;
  return test::load(model, options);
}

DecodeParams drawn(std::int64_t max_tokens, Speculate speculate) {
  DecodeParams params{.max_tokens = max_tokens, .temperature = 1, .ignore_eos = true};
  params.speculate = speculate;
  return params;
}

/// Whatever time drafts take.
DecodeParams drafted(std::int64_t max_tokens) {
  DecodeParams params = drawn(max_tokens, Speculate::kDraftModel);
  params.slack = std::numeric_limits<double>::infinity();
  return params;
}

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

Tokens prompt_of(std::int64_t length) {
  return test::Random(3).tokens(length, 320);
}

const Engine& model_of(const Engine& engine) {
  return static_cast<const DraftModel&>(*sources_of(*core_of(engine)).draft_model()).model();
}

std::int64_t steps_of_model(const Engine& engine) {
  return model_of(engine).stats().steps;
}

TEST(DraftModelTest, HasTheSameTokensOrIsRefused) {
  const std::string sizes = error_of([] { load("qwen3", "llama_f32"); });
  EXPECT_NE(sizes.find("its vocabulary has 272 tokens; expected 320"), std::string::npos) << sizes;
  const std::string tokens = error_of([] { load("qwen3", "dendrite-24"); });
  EXPECT_NE(tokens.find("its token 0 is"), std::string::npos) << tokens;
  EXPECT_NE(error_of([] { load("qwen3", "nowhere"); }), "none");
  EXPECT_EQ(error_of([] { load("qwen3", "llama2"); }), "none");
}

TEST(DraftModelTest, IsAskedForWhereThereIsOne) {
  const Engine engine = test::load("qwen3");
  Session session(engine);
  Branch branch = session.prefill("x");
  const std::string error = error_of([&] { session.decode(branch, drafted(4)); });
  EXPECT_NE(error.find("the engine has none"), std::string::npos) << error;
  EXPECT_EQ(speculate_of(name_of(Speculate::kDraftModel)), Speculate::kDraftModel);
  EXPECT_THROW(speculate_of("magic"), Error);
}

/// The model draws by the same numbers: one that is the model itself is always right.
TEST(DraftModelTest, DrawsWhatTheBranchWillDraw) {
  const Engine engine = load("qwen3", "qwen3");
  Session session(engine, {.seed = 5});
  Branch root = session.prefill(std::span<const Token>(prompt_of(40)));
  std::vector<Branch> branches = root.fork(3);
  const std::int64_t steps = session.stats().steps;
  DecodeParams params = drafted(85);
  params.speculate_budget = 64;  // all that it says, and what it thought of beside that
  session.decode(branches, params);
  EXPECT_EQ(session.stats().steps - steps, 5);         // of 17 tokens
  EXPECT_EQ(session.stats().tokens_accepted, 3 * 79);  // the last token is drawn, and not taken
}

TEST(DraftModelTest, ReadsAPromptOnceForAllForks) {
  const Engine engine = load("qwen3", "qwen3");
  Session session(engine);
  Branch root = session.prefill(std::span<const Token>(prompt_of(100)));
  std::vector<Branch> branches = root.fork(8);
  session.decode(branches, drafted(2));
  const EngineStats stats = model_of(engine).stats();
  EXPECT_LT(stats.rows, 130);
  std::vector<Branch> later = branches[3].fork(4);
  session.decode(later, drafted(2));
  EXPECT_LT(model_of(engine).stats().rows, 150);
}

TEST(DraftModelTest, DraftsForAllCallsAtOnce) {
  const Engine engine = load("qwen3", "qwen2");
  const auto steps_with = [&](int sessions) {
    const std::int64_t before = steps_of_model(engine);
    std::vector<Session> all;
    std::vector<PendingDecode> calls;
    for (int i = 0; i < sessions; ++i) {
      all.emplace_back(engine, SessionOptions{.seed = static_cast<std::uint64_t>(i)});
      Branch branch = all.back().prefill(std::span<const Token>(prompt_of(20)));
      calls.push_back(all.back().submit_decode(std::move(branch), drafted(12)));
    }
    while (engine.step()) {
    }
    return steps_of_model(engine) - before;
  };
  const std::int64_t one = steps_with(1);
  EXPECT_GT(one, 10);
  EXPECT_LT(steps_with(4), 2 * one);
}

/// By the clock, with whatever it says: the text is the same, with any draft model.
TEST(DraftModelTest, TimeDecidesAboutNoToken) {
  for (const char* draft : {"qwen3", "qwen2", "mistral_swa"}) {
    const Engine engine = load("qwen3", draft);
    const auto texts = [&](Speculate speculate) {
      Session session(engine, {.seed = 9});
      Branch root = session.prefill(std::span<const Token>(prompt_of(30)));
      std::vector<Branch> branches = root.fork(5);
      std::vector<Tokens> out;
      for (int call = 0; call < 4; ++call) {
        for (Generation& one : session.decode(branches, drawn(60, speculate))) {
          out.push_back(std::move(one.ids));
        }
        branches.push_back(branches[1].fork());
        branches.push_back(branches[2].at(40 + call, {.stream = 77}));
        branches[0].append(prompt_of(20));
      }
      return out;
    };
    EXPECT_EQ(texts(Speculate::kDraftModel), texts(Speculate::kOff)) << draft;
  }
}

TEST(DraftModelTest, FewPagesAreEnough) {
  const Engine plain = test::load("qwen3");
  const auto texts = [&](const Engine& engine, const DecodeParams& params) {
    Session session(engine, {.seed = 9});
    Branch root = session.prefill(std::span<const Token>(prompt_of(60)));
    std::vector<Branch> branches = root.fork(6);
    std::vector<Tokens> out;
    for (Generation& one : session.decode(branches, params)) out.push_back(std::move(one.ids));
    return out;
  };
  const std::vector<Tokens> expected = texts(plain, drawn(60, Speculate::kOff));
  for (const std::int64_t kv_tokens : {16, 64, 96, 160, 320}) {
    EngineOptions options;
    options.draft_kv_tokens = kv_tokens;
    const Engine engine = load("qwen3", "qwen3", options);
    EXPECT_EQ(texts(engine, drafted(60)), expected) << kv_tokens;
  }
}

TEST(DraftModelTest, GoesNoFurtherThanItsPositions) {
  const Engine engine = load("llama_f32", "llama_dynamic");  // 512 and 256
  ASSERT_TRUE(core_of(model_of(engine))->model_info.positions.hard);
  Session session(engine);
  Branch branch = session.prefill(std::span<const Token>(test::Random(3).tokens(200, 272)));
  session.decode(branch, drafted(30));
  EXPECT_GT(session.stats().tokens_drafted, 0);
  const std::int64_t before = steps_of_model(engine);
  EXPECT_EQ(session.decode(branch, drafted(100)).ids.size(), 100U);
  EXPECT_LT(steps_of_model(engine) - before, 30 * 16);
}

TEST(DraftModelTest, ThreadsForkAndDropMeanwhile) {
  const Engine engine = load("qwen3", "qwen2");
  const auto work = [&](std::uint64_t seed, Speculate speculate) {
    std::vector<Tokens> out;
    Session session(engine, {.seed = seed});
    Branch root = session.prefill(std::span<const Token>(prompt_of(30)));
    for (int i = 0; i < 4; ++i) {
      DecodeParams params = drawn(20, speculate);
      if (i % 2 == 0) params.slack = std::numeric_limits<double>::infinity();
      std::vector<Branch> branches = root.fork(3);
      for (Generation& one : session.decode(branches, params)) out.push_back(std::move(one.ids));
      root = std::move(branches[1]);
    }
    return out;
  };
  std::vector<std::vector<Tokens>> got(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < got.size(); ++i) {
      threads.emplace_back([&, i] { got[i] = work(i, Speculate::kDraftModel); });
    }
  }
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], work(i, Speculate::kOff)) << i;
}

}  // namespace
}  // namespace dendrite
