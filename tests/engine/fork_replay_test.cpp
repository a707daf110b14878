// fork == replay, bit for bit: what a branch computes depends on its own tokens alone. Each test
// builds a branch some way and compares its logits and all its K and V with those of the same
// tokens, prefilled from scratch by an engine that does nothing else.
#include <gtest/gtest.h>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::Bits;
using test::bits_of;
using test::greedy;
using test::joined;
using test::kv_of;
using test::load;
using test::logits_of;
using test::Random;
using test::replay;
using test::same_bits;
using test::Tokens;

/// A model and its types: full attention, sliding windows of both kinds, f32, half and K and V in
/// FP8.
struct Case {
  const char* model;
  const char* dtype;
  int ranks = 1;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " " << c.dtype;
  if (c.ranks > 1) *out << " on " << c.ranks;
}

class ForkReplay : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (test::lacks_experts(GetParam().model, GetParam().dtype)) GTEST_SKIP() << "no such experts";
  }
  Engine engine(EngineOptions options = {}) const {
    options.dtype = test::dtype_of(GetParam().dtype);
    options.kv_dtype = test::kv_dtype_of(GetParam().dtype);
    if (GetParam().ranks > 1) options.devices = test::ranks_on_one(GetParam().ranks);
    return load(GetParam().model, options);
  }
  /// The engine that replays: nothing else runs on it, and nothing is remembered.
  const Engine& alone() {
    if (!alone_) alone_ = engine({.threads = 1, .prefix_index = false});
    return *alone_;
  }
  Bits replayed(const Tokens& tokens) { return replay(alone(), tokens); }
  Tokens random(std::int64_t count) {
    return random_.tokens(count, std::min<std::int64_t>(256, alone().info().vocab));
  }

  Random random_{7};
  std::optional<Engine> alone_;
};

TEST_P(ForkReplay, HoldsAtEveryForkPoint) {
  for (const int page_tokens : test::page_sizes(GetParam().model)) {
    const Engine e = engine({.page_tokens = page_tokens});
    for (const std::int64_t point :
         {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257}) {
      SCOPED_TRACE("page of " + std::to_string(page_tokens) + ", fork at " + std::to_string(point));
      const Tokens trunk = random(point);
      Session session(e);
      Branch parent = session.prefill(std::span(trunk));
      Branch child = parent.fork();
      const Tokens ours = random(5);
      const Tokens theirs = random(40);
      parent.append(ours);
      child.append(theirs);
      EXPECT_TRUE(same_bits(bits_of(child), replayed(joined(trunk, theirs))));
      EXPECT_TRUE(same_bits(bits_of(parent), replayed(joined(trunk, ours))));
    }
  }
}

TEST_P(ForkReplay, HoldsForRewindsToEveryPoint) {
  for (const int page_tokens : test::page_sizes(GetParam().model)) {
    const Engine e = engine({.page_tokens = page_tokens});
    const Tokens trunk = random(300);
    Session session(e);
    Branch parent = session.prefill(std::span(trunk));
    for (const std::int64_t point :
         {1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257, 299, 300}) {
      SCOPED_TRACE("page of " + std::to_string(page_tokens) + ", at " + std::to_string(point));
      const Tokens prefix(trunk.begin(), trunk.begin() + point);
      Branch back = parent.at(point);
      EXPECT_EQ(back.tokens(), prefix);
      const Tokens more = random(3);
      Branch longer = back.fork();
      longer.append(more);
      EXPECT_TRUE(same_bits(bits_of(longer), replayed(joined(prefix, more))));
      EXPECT_TRUE(same_bits(bits_of(back), replayed(prefix)));
    }
    EXPECT_TRUE(same_bits(bits_of(parent), replayed(trunk)));
  }
}

TEST_P(ForkReplay, HoldsAroundSuperBlocksInCompany) {
  const Engine e = engine();
  Session session(e);
  const Tokens trunk = random(2100);
  Branch parent = session.prefill(std::span(trunk));
  std::vector<Branch> branches;
  std::vector<Tokens> expected;
  for (const std::int64_t point :
       {5, 255, 256, 257, 1000, 1023, 1024, 1025, 1151, 1152, 1153, 2047, 2048, 2049, 2100}) {
    const Tokens more = random(random_.in(1, 150));
    branches.push_back(parent.at(point));
    branches.back().append(more);
    expected.push_back(joined(Tokens(trunk.begin(), trunk.begin() + point), more));
  }
  // All in one batch, prefills and single tokens together.
  const std::vector<Generation> out = session.decode(branches, greedy(3));
  for (std::size_t i = 0; i < branches.size(); ++i) {
    SCOPED_TRACE("branch of " + std::to_string(branches[i].length()) + " tokens");
    EXPECT_EQ(branches[i].tokens(), joined(expected[i], out[i].ids));
    EXPECT_TRUE(same_bits(bits_of(branches[i]), replayed(joined(expected[i], out[i].ids))));
  }
}

TEST_P(ForkReplay, DoesNotDependOnCompany) {
  const Engine e = engine();
  Session session(e);
  const Tokens prompt = random(70);
  Branch root = session.prefill(std::span(prompt));
  Branch lone = root.fork();
  const Generation expected = session.decode(lone, greedy(40));
  for (const int company : {1, 2, 7, 15, 16, 40}) {
    SCOPED_TRACE(std::to_string(company) + " others");
    std::vector<Branch> batch;
    for (int i = 0; i < company; ++i) {
      if (i % 3 == 0) {  // a prompt of its own, computed in the same steps
        batch.push_back(root.at(1));
        batch.back().append(random(random_.in(1, 200)));
      } else {
        batch.push_back(root.at(random_.in(1, 70)));
        batch.back().append(random(random_.in(1, 3)));
      }
    }
    const auto place = static_cast<std::ptrdiff_t>(random_.below(company + 1));
    batch.insert(batch.begin() + place, root.fork());
    const std::vector<Generation> out = session.decode(batch, greedy(40));
    EXPECT_EQ(out[static_cast<std::size_t>(place)].ids, expected.ids);
    Branch& branch = batch[static_cast<std::size_t>(place)];
    EXPECT_TRUE(same_bits(bits_of(branch), replayed(joined(prompt, expected.ids))));
  }
}

TEST_P(ForkReplay, DoesNotDependOnHowAPromptIsCutIntoSteps) {
  const Tokens prompt = random(1100);
  const Bits expected = replayed(prompt);
  const Engine e = engine({.prefix_index = false});
  for (const std::int64_t rows : {1, 3, 16, 100, 127, 128, 129, 511}) {
    SCOPED_TRACE(std::to_string(rows) + " rows a step");
    const std::int64_t count = rows == 1 ? 140 : 1100;
    Session session(e);
    // The session's budget of tokens cuts a step; what is left is computed by the next call.
    std::int64_t& budget = core_of(session)->options.budget.tokens;
    budget = rows;
    Branch branch = session.prefill(std::span(prompt).first(static_cast<std::size_t>(count)));
    while (branch.finish() == Finish::kBudget) {
      budget += rows;
      branch.score_tokens({{0}});
      if (session.stats().tokens_computed >= count) break;
    }
    EXPECT_GE(session.stats().steps, count / rows);
    budget = 0;
    EXPECT_TRUE(same_bits(
        bits_of(branch),
        count == 1100 ? expected : replayed(Tokens(prompt.begin(), prompt.begin() + count))));
  }
}

TEST_P(ForkReplay, HoldsWhereAStepEndsInsideTokensThatBranchesShare) {
  const Engine e = engine({.prefix_index = false});
  for (std::int64_t rows = 1; rows <= 34; ++rows) {
    SCOPED_TRACE(std::to_string(rows) + " rows in the first step");
    const Tokens prompt = random(10);
    const Tokens shared = random(20);
    Session session(e);
    Branch root = session.prefill(std::span(prompt));
    root.append(shared);  // not computed when the others fork
    std::vector<Branch> branches = root.fork(2);
    branches[0].append(random(5));
    branches[1].append(random(9));
    core_of(session)->options.budget.tokens = 10 + rows;
    session.score_tokens(branches, {{1}});
    core_of(session)->options.budget.tokens = 0;
    for (Branch& branch : branches)
      EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
    EXPECT_TRUE(same_bits(bits_of(root), replayed(joined(prompt, shared))));
  }
}

TEST_P(ForkReplay, DoesNotDependOnAppendSizes) {
  const Tokens prompt = random(600);
  const Bits expected = replayed(prompt);
  const Engine e = engine({.prefix_index = false});
  for (int round = 0; round < 4; ++round) {
    Session session(e);
    std::int64_t length = random_.in(1, 40);
    Branch branch = session.prefill(std::span(prompt).first(static_cast<std::size_t>(length)));
    while (length < 600) {
      const std::int64_t count =
          std::min<std::int64_t>(600 - length, random_.in(1, round == 0 ? 3 : 120));
      branch.append(std::span(prompt).subspan(static_cast<std::size_t>(length),
                                              static_cast<std::size_t>(count)));
      length += count;
      if (random_.one_in(2)) logits_of(branch);
    }
    EXPECT_TRUE(same_bits(bits_of(branch), expected));
  }
}

TEST_P(ForkReplay, DoesNotDependOnThreadsPageSizeOrPrefixIndex) {
  const Tokens trunk = random(1050);
  const Tokens tail = random(200);
  const Bits expected = replayed(joined(trunk, tail));
  for (const int threads : {1, 2, 3}) {
    for (const int page_tokens : test::page_sizes(GetParam().model)) {
      for (const bool index : {true, false}) {
        if (threads != 2 && page_tokens != 16) continue;
        SCOPED_TRACE(std::to_string(threads) + " threads, pages of " + std::to_string(page_tokens) +
                     (index ? ", index" : ""));
        Session session(
            engine({.threads = threads, .page_tokens = page_tokens, .prefix_index = index}));
        Branch root = session.prefill(std::span(trunk));
        std::vector<Branch> branches = root.fork(3);
        for (Branch& branch : branches) branch.append(tail);
        branches[1].append(random(3));
        session.decode(branches, greedy(2));
        Branch branch = branches[0].at(1250);
        EXPECT_TRUE(same_bits(bits_of(branch), expected));
      }
    }
  }
}

TEST_P(ForkReplay, PromptsFoundInThePrefixIndexAreAsIfComputed) {
  const Engine e = engine({.prefix_index = true});
  Session session(e);
  const Tokens first = random(400);
  Branch branch = session.prefill(std::span(first));
  session.decode(branch, greedy(5));
  for (const std::int64_t common : {1, 15, 16, 17, 128, 200, 399, 400}) {
    SCOPED_TRACE(std::to_string(common) + " tokens in common");
    const std::int64_t reused = session.stats().tokens_reused;
    const Tokens prompt =
        joined(Tokens(first.begin(), first.begin() + common), random(common == 400 ? 0 : 37));
    Branch again = session.prefill(std::span(prompt));
    EXPECT_GE(session.stats().tokens_reused - reused, common);
    EXPECT_TRUE(same_bits(bits_of(again), replayed(prompt)));
  }
  branch.prune();
  Branch full = session.prefill(std::span(first));  // only the index held it
  EXPECT_TRUE(same_bits(bits_of(full), replayed(first)));
}

TEST_P(ForkReplay, HoldsAfterPrunesAroundIt) {
  const Engine e = engine({.kv_tokens = 2048, .prefix_index = false});
  Session session(e);
  const Tokens prompt = random(50);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(10);
  session.decode(branches, {.max_tokens = 30, .temperature = 1.0, .ignore_eos = true});
  root.prune();
  for (std::size_t i = 0; i < branches.size(); i += 2) branches[i].prune();
  // Others write into the pages that came back.
  std::vector<Branch> late;
  for (std::size_t i = 1; i < branches.size(); i += 2) late.push_back(branches[i].at(55));
  session.decode(late, greedy(40));
  for (std::size_t i = 1; i < branches.size(); i += 2) {
    EXPECT_TRUE(same_bits(bits_of(branches[i]), replayed(branches[i].tokens())));
  }
  for (Branch& branch : late) EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
}

TEST_P(ForkReplay, WritingThroughOneBranchLeavesTheBytesOfOthers) {
  const Engine e = engine();
  Session session(e);
  for (const std::int64_t length : {15, 16, 17, 40}) {
    const Tokens prompt = random(length);
    Branch root = session.prefill(std::span(prompt));
    std::vector<Branch> kids = root.fork(4);
    session.decode(kids[0], greedy(3));
    const std::vector<float> root_bytes = kv_of(root);
    const std::vector<float> kid_bytes = kv_of(kids[0]);
    session.decode(kids[1], {.max_tokens = 25, .temperature = 2.0, .ignore_eos = true});
    Branch back = kids[1].at(length - 3);
    back.append(random(30));
    logits_of(back);
    session.decode(root, greedy(20));
    EXPECT_TRUE(same_bits(kv_of(root, length), root_bytes));
    EXPECT_TRUE(same_bits(kv_of(kids[0]), kid_bytes));
    EXPECT_TRUE(same_bits(kv_of(kids[1], length), root_bytes));
    EXPECT_TRUE(same_bits(kv_of(kids[3]), root_bytes));
  }
}

TEST_P(ForkReplay, ScoringLeavesTheBranchAsItWas) {
  const Engine e = engine();
  Session session(e);
  const Tokens prompt = random(45);
  Branch branch = session.prefill(std::span(prompt));
  Branch twin = branch.fork();
  const Bits before = bits_of(branch);
  const std::uint64_t stream = branch.stream();
  std::vector<Tokens> continuations;
  for (int i = 0; i < 20; ++i) continuations.push_back(random(random_.in(1, 30)));
  const std::vector<Score> scores = branch.score_tokens(continuations);
  EXPECT_EQ(branch.tokens(), prompt);
  EXPECT_EQ(branch.stream(), stream);
  EXPECT_TRUE(same_bits(bits_of(branch), before));
  EXPECT_EQ(session.decode(branch, greedy(20)).ids, session.decode(twin, greedy(20)).ids);
  // ... and gives what the branch would have given by itself, to the bit.
  for (std::size_t i = 0; i < continuations.size(); ++i) {
    Session other(alone());
    Branch lone = other.prefill(std::span(prompt));
    for (std::size_t j = 0; j < continuations[i].size(); ++j) {
      const Token token = continuations[i][j];
      DecodeParams forced = greedy(1);
      forced.logit_bias = {{token, 1e30f}};
      forced.top_logprobs = 0;
      const Generation out = other.decode(lone, forced);
      ASSERT_EQ(out.ids, Tokens{token});
      EXPECT_EQ(out.logprobs[0].logprob, scores[i].tokens[j])
          << "continuation " << i << ", token " << j;
    }
  }
}

TEST_P(ForkReplay, SampledBranchesReplayByTheirStream) {
  const DecodeParams params{
      .max_tokens = 30, .temperature = 0.9, .top_k = 50, .top_p = 0.95, .ignore_eos = true};
  const Engine e = engine();
  Session session(e, {.seed = 11});
  const Tokens prompt = random(33);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(6);
  branches.push_back(root.at(20));
  branches.push_back(branches[2].fork());
  std::vector<Tokens> starts;
  for (const Branch& branch : branches) starts.push_back(branch.tokens());
  const std::vector<Generation> out = session.decode(branches, params);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    SCOPED_TRACE("branch " + std::to_string(i));
    Session other(alone(), {.seed = 11});
    Branch again = other.prefill(std::span(starts[i]), {.stream = branches[i].stream()});
    EXPECT_EQ(other.decode(again, params).ids, out[i].ids);
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(out[i].ids, out[j].ids);
    // From the middle, too: a draw depends on the position, not on how many came before it.
    const auto middle = out[i].ids.begin() + 12;
    const Tokens begun = joined(starts[i], Tokens(out[i].ids.begin(), middle));
    Branch resumed = other.prefill(std::span(begun), {.stream = branches[i].stream()});
    DecodeParams rest = params;
    rest.max_tokens = 18;
    EXPECT_EQ(other.decode(resumed, rest).ids, Tokens(middle, out[i].ids.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ForkReplay,
    ::testing::Values(Case{"mistral", "bf16", 2}, Case{"llama_defaults", "f32", 4},
                      Case{"tinyllama", "f32"}, Case{"tinyllama", "bf16"},
                      Case{"qwen3_swa", "bf16"}, Case{"mistral_swa", "f32"},
                      Case{"llama_f16", "f16"}, Case{"qwen3_swa", "bf16_fp8"},
                      Case{"qwen3_5", "f32"}, Case{"qwen3_5_text", "bf16"},
                      Case{"qwen3_5_heads", "bf16"}, Case{"qwen3_moe", "bf16"},
                      Case{"qwen3_5_moe", "bf16"},
                      // Norms around parts and caps; two kinds of RoPE; sinks;
                      // queries that grow; one latent a token.
                      Case{"gemma2", "bf16"}, Case{"gemma3_text", "f32"}, Case{"gpt_oss", "bf16"},
                      Case{"ministral3", "f32"}, Case{"deepseek_v3", "bf16"},
                      // Heads of two sizes: shared K and V; experts beside.
                      Case{"gemma4_text", "bf16_fp8"}, Case{"gemma4", "bf16"},
                      // Chunks of positions, experts whose inputs are weighed.
                      Case{"llama4_text", "f32"}, Case{"llama4", "bf16"},
                      // Short convolutions: of 3 taps, in a mixture, of 7.
                      Case{"lfm2", "f32"}, Case{"lfm2_moe", "bf16"}, Case{"lfm3", "bf16"},
                      // Mamba-2: in a mixture, in layers of one part.
                      Case{"granitemoehybrid", "f32"}, Case{"granitemoehybrid_moe", "bf16"},
                      Case{"nemotron_h", "bf16"}, Case{"nemotron_h_moe", "bf16"},
                      // Channels that decay by themselves, and one latent a token.
                      Case{"kimi_linear", "f32"}, Case{"kimi_linear", "bf16"}),
    [](const auto& info) { return std::string(info.param.model) + "_" + info.param.dtype; });

TEST(ForkReplayOnEachPath, HoldsInCompanyAndAcrossBlocks) {
  Random random(3);
  const Tokens trunk = random.tokens(1030, 256);
  for (const std::string& path : test::kernel_paths()) {
    for (const char* dtype : {"f32", "bf16"}) {
      SCOPED_TRACE(path + " " + dtype);
      const EngineOptions options{.dtype = dtype, .kernels = path, .prefix_index = false};
      const Engine alone = load("tinyllama", options);
      Session session(load("tinyllama", options));
      Branch root = session.prefill(std::span(trunk));
      std::vector<Branch> branches;
      for (const std::int64_t point : {3, 126, 129, 700, 1023, 1030}) {
        branches.push_back(root.at(point));
        branches.back().append(random.tokens(random.in(1, 9), 256));
      }
      session.decode(branches, greedy(4));
      for (Branch& branch : branches) {
        EXPECT_TRUE(same_bits(bits_of(branch), replay(alone, branch.tokens())));
      }
    }
  }
}

TEST(ForkReplayOnEachPath, DeepChainsOfForks) {
  Random random(4);
  const Engine e = load("tinyllama", {.kv_tokens = 4096});
  const Engine alone = load("tinyllama", {.prefix_index = false});
  Session session(e);
  Tokens expected = random.tokens(10, 256);
  Branch branch = session.prefill(std::span(expected));
  std::vector<Branch> ancestors;
  for (int depth = 0; depth < 100; ++depth) {
    Branch child = branch.fork();
    ancestors.push_back(std::move(branch));
    branch = std::move(child);
    const Tokens more = random.tokens(random.in(1, 3), 256);
    branch.append(more);
    expected = joined(expected, more);
    if (depth % 3 == 0) logits_of(branch);
  }
  EXPECT_TRUE(same_bits(bits_of(branch), replay(alone, expected)));
  for (std::size_t i = 0; i < ancestors.size(); i += 2) ancestors[i].prune();
  EXPECT_TRUE(same_bits(bits_of(ancestors[51]), replay(alone, ancestors[51].tokens())));
  ancestors.clear();
  session.decode(branch, greedy(20));
  EXPECT_TRUE(same_bits(bits_of(branch), replay(alone, branch.tokens())));
  branch.prune();
  test::expect_all_pages_free(e);
}

}  // namespace
}  // namespace dendrite
