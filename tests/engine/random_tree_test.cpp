// Any order of operations on a session: every live branch is, to the last bit, what its tokens
// alone give.
#include <gtest/gtest.h>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::joined;
using test::load;
using test::replay;
using test::same_bits;
using test::Tokens;

struct Setting {
  const char* model;
  const char* dtype;
  int page_tokens;
  int threads;
  bool prefix_index;
  std::int64_t kv_tokens;  // small pools run out and take pages back from the index
  /// Of states of recurrent layers, as multiples of what a branch needs; 0: what is free.
  std::int64_t branches_of_states = 0;
  int ranks = 1;
};

/// Branches beside plain lists of tokens.
class RandomTree {
 public:
  RandomTree(std::uint32_t seed, const Setting& setting)
      : random_(seed),
        engine_(load(setting.model, {.devices = test::ranks_on_one(setting.ranks),
                                     .dtype = test::dtype_of(setting.dtype),
                                     .kv_dtype = test::kv_dtype_of(setting.dtype),
                                     .threads = setting.threads,
                                     .page_tokens = setting.page_tokens,
                                     .kv_tokens = setting.kv_tokens,
                                     .state_bytes = state_bytes(setting),
                                     .prefix_index = setting.prefix_index})),
        alone_(load(setting.model, {.devices = test::ranks_on_one(setting.ranks),
                                    .dtype = test::dtype_of(setting.dtype),
                                    .kv_dtype = test::kv_dtype_of(setting.dtype),
                                    .threads = 1,
                                    .prefix_index = false})),
        session_(engine_, {.seed = 99}) {}

  static std::int64_t state_bytes(const Setting& setting) {
    const EngineInfo info =
        load(setting.model, {.dtype = test::dtype_of(setting.dtype), .weights = false}).info();
    return setting.branches_of_states * (info.state_bytes + 16 * info.state_token_bytes);
  }

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operate();
      ASSERT_TRUE(sound()) << "after operation " << i;
      ASSERT_FALSE(::testing::Test::HasFailure()) << "operation " << i << ": " << log_;
      if (i % 5 == 0) check(any());
      ASSERT_FALSE(::testing::Test::HasFailure()) << "after operation " << i << ": " << log_;
    }
    for (std::size_t i = 0; i < branches_.size(); ++i) check(i);
    branches_.clear();
    tokens_.clear();
    test::expect_all_pages_free(engine_);
    EXPECT_GT(checked_, 0);
  }

 private:
  std::size_t any() {
    if (branches_.empty()) prefill();
    return static_cast<std::size_t>(random_.below(std::ssize(branches_)));
  }
  Tokens some(std::int64_t most) {
    return random_.tokens(random_.in(1, most), std::min<std::int64_t>(256, engine_.info().vocab));
  }
  void add(Branch branch, Tokens tokens) {
    branches_.push_back(std::move(branch));
    tokens_.push_back(std::move(tokens));
  }

  void operate() {
    if (branches_.empty()) return prefill();
    if (branches_.size() > 24) return prune();
    switch (random_.below(14)) {
      case 0:
        return prefill();
      case 1:
      case 2:
        return fork();
      case 3:
        return append();
      case 4:
        return rewind();
      case 5:
      case 6:
        return prune();
      case 7:
        return score();
      case 8:
        return expand();
      case 9:
        return drain();
      default:
        return decode();
    }
  }

  void prefill() {
    // Often a prompt that begins like one before.
    Tokens prompt;
    if (!tokens_.empty() && random_.one_in(2)) {
      const Tokens& known = tokens_[static_cast<std::size_t>(random_.below(std::ssize(tokens_)))];
      prompt.assign(known.begin(), known.begin() + random_.in(0, std::ssize(known)));
    }
    prompt = joined(prompt, some(random_.one_in(6) ? 300 : 40));
    log_ = "prefill of " + std::to_string(prompt.size());
    add(session_.prefill(std::span(prompt)), prompt);
  }

  void fork() {
    const std::size_t i = any();
    const int count = static_cast<int>(random_.in(1, 4));
    log_ = "fork";
    for (Branch& child : branches_[i].fork(count)) add(std::move(child), tokens_[i]);
  }

  void append() {
    const std::size_t i = any();
    const Tokens more = some(random_.one_in(4) ? 120 : 6);
    log_ = "append";
    branches_[i].append(more);
    tokens_[i] = joined(tokens_[i], more);
  }

  void rewind() {
    const std::size_t i = any();
    const std::int64_t length = random_.in(1, std::ssize(tokens_[i]));
    log_ = "at " + std::to_string(length);
    add(branches_[i].at(length), Tokens(tokens_[i].begin(), tokens_[i].begin() + length));
  }

  void prune() {
    const std::size_t i = any();
    log_ = "prune";
    std::swap(branches_[i], branches_.back());
    std::swap(tokens_[i], tokens_.back());
    if (random_.one_in(2)) branches_.back().prune();
    branches_.pop_back();
    tokens_.pop_back();
  }

  void decode() {
    DecodeParams params;
    params.max_tokens = random_.in(1, 12);
    params.temperature = random_.one_in(3) ? 0.0 : 0.8;
    if (random_.one_in(2)) params.top_k = random_.in(1, 20);
    if (random_.one_in(3)) params.top_p = 0.9;
    if (random_.one_in(3)) params.repetition_penalty = 1.2;
    params.ignore_eos = random_.one_in(2);
    // A random set of branches: moved into the call's span and back.
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      if (random_.one_in(2)) chosen.push_back(i);
    }
    if (chosen.empty()) chosen.push_back(any());
    log_ = "decode of " + std::to_string(chosen.size()) + " branches";
    std::vector<Branch> batch;
    for (const std::size_t i : chosen) batch.push_back(std::move(branches_[i]));
    const std::vector<Generation> out = session_.decode(batch, params);
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      tokens_[chosen[j]] = joined(tokens_[chosen[j]], out[j].ids);
      branches_[chosen[j]] = std::move(batch[j]);
      EXPECT_NE(out[j].finish, Finish::kRunning);
    }
  }

  void score() {
    log_ = "score";
    std::vector<Tokens> continuations;
    for (std::int64_t n = random_.in(1, 5); n > 0; --n) {
      Tokens continuation = some(8);
      if (!continuations.empty() && random_.one_in(2)) {
        continuation = joined(continuations.back(), continuation);  // a trie
      }
      continuations.push_back(continuation);
    }
    const std::vector<Score> scores = branches_[any()].score_tokens(continuations);
    EXPECT_EQ(scores.size(), continuations.size());
  }

  void expand() {
    const std::size_t i = any();
    log_ = "expand";
    auto children = session_.expand(std::span(&branches_[i], 1), {.top = 3});
    for (Branch& child : children[0]) {
      Tokens tokens = child.tokens();
      EXPECT_EQ(Tokens(tokens.begin(), tokens.end() - 1), tokens_[i]);
      add(std::move(child), std::move(tokens));
    }
  }

  /// Pending tokens of several branches, some of them each other's ancestors, computed in one call
  /// that is cut short by a budget of tokens.
  void drain() {
    log_ = "a cut call";
    std::int64_t& budget = core_of(session_)->options.budget.tokens;
    budget = session_.stats().tokens_computed + random_.in(1, 30);
    session_.score_tokens(branches_, {{1}});
    budget = 0;
  }

  ::testing::AssertionResult sound() {
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      if (branches_[i].tokens() != tokens_[i]) {
        return ::testing::AssertionFailure()
               << "branch " << i << " has other tokens than it was given";
      }
    }
    return test::tree_is_sound(engine_, {std::span(branches_)});
  }

  void check(std::size_t i) {
    if (test::logits_of(branches_[i]).empty()) return;  // the pool is full
    ++checked_;
    EXPECT_TRUE(same_bits(bits_of(branches_[i]), replay(alone_, tokens_[i])))
        << "branch of " << tokens_[i].size() << " tokens";
  }

  test::Random random_;
  Engine engine_;
  Engine alone_;
  Session session_;
  std::vector<Branch> branches_;
  std::vector<Tokens> tokens_;
  std::string log_;
  int checked_ = 0;
};

class RandomOperations : public ::testing::TestWithParam<Setting> {};

void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.model;
}

TEST_P(RandomOperations, LeaveEveryBranchEqualToItsReplay) {
  if (test::lacks_experts(GetParam().model, GetParam().dtype)) GTEST_SKIP() << "no such experts";
  const int seeds = test::scaled(8);
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomTree(static_cast<std::uint32_t>(seed), GetParam()).run(300);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, RandomOperations,
                         ::testing::Values(Setting{"mistral", "bf16_fp8", 8, 2, true, 900, 0, 2},
                                           Setting{"tinyllama", "f32", 16, 1, true, 8192},
                                           Setting{"tinyllama", "bf16", 8, 2, true, 8192},
                                           Setting{"tinyllama", "bf16", 16, 1, true, 900},
                                           Setting{"qwen3_swa", "f32", 16, 1, false, 8192},
                                           Setting{"qwen3_swa", "bf16", 32, 1, true, 1600},
                                           Setting{"mistral_swa", "bf16", 8, 3, true, 8192},
                                           Setting{"llama_f16", "f16", 16, 1, true, 8192},
                                           Setting{"tinyllama", "bf16_fp8", 8, 2, true, 900},
                                           Setting{"qwen3_5", "f32", 16, 1, true, 8192},
                                           Setting{"qwen3_5", "f32", 16, 2, true, 900, 4},
                                           Setting{"qwen3_5_text", "bf16", 16, 1, true, 1600, 9},
                                           Setting{"qwen3_5_heads", "bf16", 16, 2, true, 1600, 9},
                                           Setting{"qwen3_moe", "bf16", 8, 2, true, 900},
                                           Setting{"qwen3_5_moe", "bf16", 16, 2, true, 1200, 6},
                                           Setting{"gpt_oss", "bf16", 16, 2, true, 900},
                                           Setting{"llama4_text", "bf16", 8, 2, true, 900},
                                           Setting{"mistral4", "f32", 8, 1, true, 900},
                                           Setting{"lfm2", "f32", 16, 2, true, 900, 4},
                                           Setting{"lfm2_moe", "bf16", 16, 1, true, 1600, 9},
                                           Setting{"lfm3", "bf16", 16, 2, true, 1200, 6},
                                           Setting{"granitemoehybrid", "f32", 16, 2, true, 900, 4},
                                           Setting{"granitemoehybrid_moe", "bf16", 16, 1, true,
                                                   1600, 9},
                                           Setting{"nemotron_h", "bf16", 16, 2, true, 1200, 6},
                                           Setting{"kimi_linear", "bf16", 16, 2, true, 1200, 6}),
                         [](const auto& info) {
                           const Setting& s = info.param;
                           return std::string(s.model) + "_" + s.dtype + "_page" +
                                  std::to_string(s.page_tokens) + (s.prefix_index ? "_index" : "") +
                                  "_pool" + std::to_string(s.kv_tokens) + "_states" +
                                  std::to_string(s.branches_of_states);
                         });

}  // namespace
}  // namespace dendrite
