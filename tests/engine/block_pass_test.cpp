// A block drafter on the engine's own pages: what it says is what its formulas say, whoever has
// computed its context, and however.
#include "step/block_pass.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/branches/call_tips.h"
#include "engine/drafts/block_provider.h"
#include "engine/loop/step_loop.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::GoldenFile;
using test::joined;
using test::Tokens;

// Of ‖ours - theirs‖ / ‖theirs‖ of log-probs in f32; 4e-7 on the paths avx2 and portable.
constexpr double kTolerance = 2e-5;

Engine load(const std::string& name, const std::string& drafter, EngineOptions options = {}) {
  options.drafter = test::drafter_path(drafter).string();
  return test::load(name, std::move(options));
}

/// What the drafter says after the branches' texts, whose last tokens are not computed.
std::vector<BlockAsk> ask(const Engine& engine, std::span<Branch> branches, std::int64_t top) {
  EngineCore& core = *core_of(engine);
  const std::int64_t vocab = core.vocab();
  BlockPass pass({*core.backend, *core.drafter, *core.drafter_store, *core.tree, core.memories(),
                  core.loop->host(), core.tree_mutex, *core.workers, vocab, vocab});
  const Tokens masks(static_cast<std::size_t>(core.drafter->config().block_size - 1),
                     core.drafter->config().mask_token);
  CallTips tips(core);
  std::vector<BlockAsk> asks;
  const ComputeLock compute(core.compute);
  {
    const TreeLock lock(core.tree_mutex);
    for (const Branch& branch : branches) {
      Tip& tip = tips.fork(state_of(branch)->tip);
      core.tree->append(tip, masks);
      asks.push_back({&tip});
    }
  }
  pass.draft(asks, top, 1);
  return asks;
}

std::vector<float> by_token(const std::vector<TokenLogprob>& tokens, std::size_t vocab) {
  std::vector<float> out(vocab, 0);
  for (const TokenLogprob& token : tokens) out[static_cast<std::size_t>(token.id)] = token.logprob;
  return out;
}

bool same(const BlockAsk& a, const BlockAsk& b) {
  const auto ids = [](const BlockAsk& ask) {
    std::vector<std::pair<Token, float>> out;
    for (const auto& position : ask.positions) {
      for (const TokenLogprob& token : position) out.emplace_back(token.id, token.logprob);
    }
    return out;
  };
  return !a.positions.empty() && ids(a) == ids(b);
}

struct Pair {
  const char* drafter;
  const char* model;
  int smallest_page = 8;  // those of hybrids are of 16 tokens
};
void PrintTo(const Pair& pair, std::ostream* out) {
  *out << pair.drafter;
}

class BlockPassTest : public ::testing::TestWithParam<Pair> {
 protected:
  GoldenFile golden_{test::drafter_path(GetParam().drafter) / "golden.safetensors"};
  std::vector<std::int32_t> ids_ = golden_.ints("input_ids");
  Tokens prompt(std::int64_t length) const { return {ids_.begin(), ids_.begin() + length}; }
  Engine engine(EngineOptions options = {}) const {
    return load(GetParam().model, GetParam().drafter, std::move(options));
  }
};

INSTANTIATE_TEST_SUITE_P(Drafters, BlockPassTest,
                         ::testing::Values(Pair{"qwen3_full", "qwen3"},
                                           Pair{"tinyllama_sliding", "tinyllama"},
                                           Pair{"llama_causal", "llama_f32"},
                                           Pair{"qwen3_5_full", "qwen3_5_text", 16}));

TEST_P(BlockPassTest, SaysWhatTheFormulasSay) {
  const std::vector<float> logits = golden_.floats("logits");
  const std::vector<std::int32_t> anchors = golden_.ints("anchors");
  for (const std::string& path : test::kernel_paths()) {
    for (const int page_tokens : {16, GetParam().smallest_page}) {
      SCOPED_TRACE(path + ", pages of " + std::to_string(page_tokens));
      const Engine e =
          engine({.dtype = "f32", .page_tokens = page_tokens, .kv_tokens = 2048, .kernels = path});
      const auto vocab = static_cast<std::size_t>(e.info().vocab);
      const std::int64_t places = core_of(e)->drafter->config().block_size - 1;
      Session session(e);
      std::vector<Branch> branches;
      for (const std::int32_t anchor : anchors) {
        branches.push_back(session.prefill(std::span<const Token>(prompt(anchor))));
        branches.back().append(Tokens{ids_[static_cast<std::size_t>(anchor)]});
      }
      const std::vector<BlockAsk> asks = ask(e, branches, e.info().vocab);
      std::size_t row = 0;
      for (std::size_t i = 0; i < asks.size(); ++i) {
        ASSERT_EQ(std::ssize(asks[i].positions), places);
        for (const auto& position : asks[i].positions) {
          const std::span<const float> expected = std::span(logits).subspan(row++ * vocab, vocab);
          double sum = 0;
          for (const float logit : expected) sum += std::exp(double{logit});
          const std::vector<float> got = by_token(position, vocab);
          double off = 0;
          double size = 0;
          for (std::size_t t = 0; t < vocab; ++t) {
            if (got[t] == 0) continue;  // the mask
            const double logprob = double{expected[t]} - std::log(sum);
            off += std::pow(got[t] - logprob, 2);
            size += logprob * logprob;
          }
          EXPECT_EQ(std::ssize(position), e.info().vocab - 1);
          EXPECT_LE(std::sqrt(off / size), kTolerance) << "anchor " << anchors[i];
        }
      }
    }
  }
}

TEST_P(BlockPassTest, ForksKnowWhatReplaysKnow) {
  const Engine e = engine();
  Session session(e, {.seed = 3});
  Branch root = session.prefill(std::span<const Token>(prompt(37)));
  session.decode(root, {.max_tokens = 30, .temperature = 1, .ignore_eos = true});
  std::vector<Branch> forks;
  std::vector<Tokens> texts;
  for (const std::int64_t length : {5, 16, 17, 40, 63, 67}) {
    Branch fork = root.at(length);
    session.decode(fork, {.max_tokens = 9, .temperature = 1, .ignore_eos = true});
    Branch grandchild = fork.fork();
    session.decode(grandchild, {.max_tokens = 3, .temperature = 1, .ignore_eos = true});
    for (Branch* branch : {&fork, &grandchild}) {
      test::logits_of(*branch);  // all of it is computed
      branch->append(Tokens{11});
      texts.push_back(branch->tokens());
      forks.push_back(std::move(*branch));
    }
  }
  const std::vector<BlockAsk> asks = ask(e, forks, 8);
  for (std::size_t i = 0; i < forks.size(); ++i) {
    const Engine other = engine({.prefix_index = false});
    Session replays(other);
    std::vector<Branch> replay;
    replay.push_back(replays.prefill(std::span(texts[i]).first(texts[i].size() - 1)));
    replay.back().append(Tokens{11});
    EXPECT_TRUE(same(asks[i], ask(other, replay, 8).front())) << i;
  }
}

TEST_P(BlockPassTest, LeavesNoTrace) {
  const Engine e = engine({.kv_debug = true});
  Session session(e);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(std::span<const Token>(prompt(37))));
  branches.push_back(branches.front().fork());
  for (Branch& branch : branches) branch.append(Tokens{9});
  const std::int64_t pages = session.stats().pages_used;
  const std::vector<BlockAsk> before = ask(e, branches, 8);
  EXPECT_TRUE(same(before[0], before[1]));
  const std::vector<BlockAsk> again = ask(e, branches, 8);
  EXPECT_TRUE(same(before[0], again[0]));
  // The last token's page is the branch's, and it may have it by now.
  EXPECT_LE(session.stats().pages_used, pages + 2);
  const Engine plain = test::load(GetParam().model);
  Session others(plain);
  Branch same_text = others.prefill(std::span<const Token>(prompt(37)));
  same_text.append(Tokens{9});
  EXPECT_EQ(test::logits_of(branches[0]), test::logits_of(same_text));
}

TEST_P(BlockPassTest, ProposesNothingWherePagesAreShort) {
  const Engine e = engine({.page_tokens = GetParam().smallest_page, .kv_tokens = 64});
  Session session(e);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(std::span<const Token>(prompt(63))));
  branches.back().append(Tokens{9});
  EXPECT_TRUE(ask(e, branches, 8).front().positions.empty());
  EXPECT_EQ(test::logits_of(branches[0]).size(), static_cast<std::size_t>(e.info().vocab));
}

}  // namespace
}  // namespace dendrite
