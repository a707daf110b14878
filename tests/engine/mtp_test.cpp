// The MTP head of a model's own files: what it says is what its modules say, whoever has computed
// its context, and however; and it is heard.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/branches/call_tips.h"
#include "engine/loop/step_loop.h"
#include "sample/distribution.h"
#include "step/mtp_pass.h"
#include "support/engine_support.h"
#include "support/gguf_of_folder.h"
#include "support/mtp_model.h"

namespace dendrite {
namespace {

using test::GoldenFile;
using test::MtpModel;
using test::Tokens;

// Of ‖ours - theirs‖ / ‖theirs‖ of logits in f32; 5e-7 on the paths avx2 and portable.
constexpr double kTolerance = 2e-5;

Engine load(const MtpModel& model, EngineOptions options = {}) {
  options.drafter = "mtp";
  return test::load(model.path(), std::move(options));
}

struct Said {
  Tokens tokens;
  std::vector<float> logits;  // of all of them
};

/// What the head says after the branches' texts, whose last tokens are not computed. It goes on
/// with the `given` tokens, or with the likeliest.
std::vector<Said> ask(const Engine& engine, std::span<Branch> branches, std::int64_t count,
                      std::span<const std::int32_t> given = {}) {
  EngineCore& core = *core_of(engine);
  MtpPass pass({*core.backend, *core.mtp, *core.drafter_store, *core.tree, core.memories(),
                core.loop->host(), core.tree_mutex, *core.workers, core.vocab()});
  CallTips tips(core);
  std::vector<MtpAsk> asks;
  std::vector<Said> said(branches.size());
  const ComputeLock compute(core.compute);
  {
    const TreeLock lock(core.tree_mutex);
    for (std::size_t i = 0; i < branches.size(); ++i) {
      MtpAsk& ask = asks.emplace_back();
      ask.tip = &tips.fork(state_of(branches[i])->tip);
      core.tree->append(*ask.tip, Tokens(static_cast<std::size_t>(count), 0));
      ask.choose = [&out = said[i], given = given.empty() ? given : given.subspan(i * count)](
                       std::span<const float> logits, std::span<const ChosenToken> chain) {
        out.logits.insert(out.logits.end(), logits.begin(), logits.end());
        const Token token = given.empty() ? argmax(logits) : given[chain.size()];
        out.tokens.push_back(token);
        return std::optional(ChosenToken{token, 0, {}});
      };
    }
  }
  pass.draft(asks, count);
  return said;
}

class MtpTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const bool mixture = std::string(GetParam()).find("_moe") != std::string::npos;
    if (test::on_cuda() && mixture) GTEST_SKIP() << "in bf16 alone on a GPU";
  }

  const MtpModel model_{GetParam()};
  const GoldenFile golden_{test::mtp_path(GetParam()) / "golden.safetensors"};
  const std::vector<std::int32_t> ids_ = golden_.ints("input_ids");
  const std::vector<std::int32_t> anchors_ = golden_.ints("anchors");
  Tokens prompt(std::int64_t length) const { return {ids_.begin(), ids_.begin() + length}; }

  void expect_golden(const Engine& engine, std::span<Branch> branches) const {
    const std::vector<float> logits = golden_.floats("logits");
    const std::vector<std::int32_t> drafted = golden_.ints("drafted");
    const std::size_t count = drafted.size() / anchors_.size();
    const std::vector<Said> said = ask(engine, branches, static_cast<std::int64_t>(count), drafted);
    const std::size_t size = count * static_cast<std::size_t>(engine.info().vocab);
    for (std::size_t i = 0; i < said.size(); ++i) {
      ASSERT_EQ(said[i].logits.size(), size) << "anchor " << anchors_[i];
      double off = 0;
      double norm = 0;
      for (std::size_t at = 0; at < size; ++at) {
        const double expected = logits[i * size + at];
        off += std::pow(said[i].logits[at] - expected, 2);
        norm += expected * expected;
      }
      EXPECT_LE(std::sqrt(off / norm), kTolerance) << "anchor " << anchors_[i];
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Models, MtpTest, ::testing::Values("qwen3_5_text", "qwen3_5_moe_text"));

TEST_P(MtpTest, SaysWhatItsModulesSay) {
  for (const std::string& path : test::kernel_paths()) {
    SCOPED_TRACE(path);
    const Engine engine = load(model_, {.dtype = "f32", .kv_tokens = 2048, .kernels = path});
    Session session(engine);
    std::vector<Branch> branches;
    for (const std::int32_t anchor : anchors_) {
      branches.push_back(session.prefill(std::span<const Token>(prompt(anchor))));
      branches.back().append(Tokens{ids_[static_cast<std::size_t>(anchor)]});
    }
    expect_golden(engine, branches);
  }
}

TEST_P(MtpTest, SaysItFromAGgufFile) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "model.gguf";
  test::GgufOfFolder(model_.path(), "").write()[0].write(file);
  std::vector<Said> said;
  for (const std::string& path : {model_.path(), file.string()}) {
    const Engine engine = test::load(path, {.dtype = "f32", .kv_tokens = 2048, .drafter = "mtp"});
    EXPECT_EQ(engine.info().mtp_layers, 1);
    EXPECT_EQ(engine.info().warnings.size(), test::on_cuda() ? 1U : 0U);  // that f32 is slow
    Session session(engine);
    std::vector<Branch> branch;
    branch.push_back(session.prefill(std::span<const Token>(prompt(100))));
    branch.back().append(Tokens{ids_[100]});
    said.push_back(ask(engine, branch, 3).front());
  }
  EXPECT_EQ(said[0].tokens, said[1].tokens);
  EXPECT_EQ(said[0].logits, said[1].logits);
}

/// Steps of few rows, whose first rows follow rows of steps before; and rows one by one.
TEST_P(MtpTest, SaysItHoweverItsContextCame) {
  for (const std::int64_t rows : {1, 7, 16}) {
    SCOPED_TRACE(rows);
    const Engine engine = load(model_, {.dtype = "f32", .kv_tokens = 2048, .prefix_index = false});
    core_of(engine)->step_rows = rows;
    Session session(engine);
    std::vector<Branch> branches;
    for (const std::int32_t anchor : anchors_) {
      branches.push_back(session.prefill(std::span<const Token>(prompt(anchor))));
      branches.back().append(Tokens{ids_[static_cast<std::size_t>(anchor)]});
    }
    expect_golden(engine, branches);
  }
}

/// Of one branch that has all, forks where others would end, their pages copied and shared.
TEST_P(MtpTest, SaysItToForks) {
  const Engine engine = load(model_, {.dtype = "f32", .kv_tokens = 2048});
  Session session(engine);
  Branch root = session.prefill(std::span<const Token>(prompt(anchors_.back())));
  std::vector<Branch> branches;
  for (const std::int32_t anchor : anchors_) {
    const Token last = ids_[static_cast<std::size_t>(anchor)];
    Branch other = root.at(anchor);
    other.append(Tokens{static_cast<Token>((last + 1) % 200), 5});
    test::logits_of(other);  // in a copy of the page
    branches.push_back(root.at(anchor));
    branches.back().append(Tokens{last});
  }
  expect_golden(engine, branches);
}

TEST_P(MtpTest, ForksKnowWhatReplaysKnow) {
  const Engine engine = load(model_);
  Session session(engine, {.seed = 3});
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
  const std::vector<Said> said = ask(engine, forks, 4);
  for (std::size_t i = 0; i < forks.size(); ++i) {
    const Engine other = load(model_, {.prefix_index = false});
    Session replays(other);
    std::vector<Branch> replay;
    replay.push_back(replays.prefill(std::span(texts[i]).first(texts[i].size() - 1)));
    replay.back().append(Tokens{11});
    const Said expected = ask(other, replay, 4).front();
    EXPECT_FALSE(expected.tokens.empty());
    EXPECT_EQ(said[i].tokens, expected.tokens) << i;
    EXPECT_EQ(said[i].logits, expected.logits) << i;
  }
}

// --- a head that is right by construction

/// The model is its embeddings, of 1 and -1, and one layer of attention; the head is that layer
/// over the same embeddings. `blind`: but for what it attends to.
void make_right(MtpModel::Tensors& tensors, bool blind) {
  const auto find = [&](const std::string& name) -> MtpModel::Tensor& {
    return *std::ranges::find(tensors, name, &MtpModel::Tensor::name);
  };
  const auto scale = [&](const std::string& name, float factor) {
    std::vector<float> values = find(name).values();
    for (float& value : values) value *= factor;
    find(name).set(values);
  };
  for (MtpModel::Tensor& tensor : tensors) {
    if (tensor.name.find("embed_tokens") != tensor.name.npos) {
      std::vector<float> values = tensor.values();
      for (float& value : values) value = value < 0 ? -1.0F : 1.0F;
      tensor.set(values);
    }
    const bool is_last = tensor.name.starts_with("model.layers.2.");
    const bool gives = tensor.name.find("o_proj") != tensor.name.npos ||
                       tensor.name.find("out_proj") != tensor.name.npos ||
                       tensor.name.find("down_proj") != tensor.name.npos;
    if (tensor.name.starts_with("model.layers.") && gives) scale(tensor.name, is_last ? 2 : 0);
  }
  for (MtpModel::Tensor& tensor : tensors) {
    const std::string layer = "mtp.layers.0.";
    if (tensor.name.starts_with(layer)) {
      tensor.bytes = find("model.layers.2." + tensor.name.substr(layer.size())).bytes;
    }
    if (tensor.name.starts_with("mtp.pre_fc_norm")) scale(tensor.name, 0);
  }
  find("mtp.norm.weight").bytes = find("model.norm.weight").bytes;
  const auto dim = static_cast<std::size_t>(find("mtp.fc.weight").shape[0]);
  std::vector<float> join(2 * dim * dim);
  for (std::size_t i = 0; i < dim; ++i) join[i * 2 * dim + i] = 1;
  find("mtp.fc.weight").set(join);
  if (blind) scale("mtp.layers.0.self_attn.o_proj.weight", 0);
}

/// Steps for 4 times 60 tokens, with drafts of 8 tokens and without.
double steps_saved(const Engine& engine, double temperature) {
  const auto steps = [&](Speculate method) {
    Session session(engine, {.seed = 7});
    std::string prompt;
    for (int i = 1; i < 12; ++i) prompt += std::to_string(i) + " and two are so many; ";
    Branch root = session.prefill(prompt);
    std::vector<Branch> branches = root.fork(4);
    const std::int64_t before = session.stats().steps;
    DecodeParams params{.max_tokens = 60, .temperature = temperature, .ignore_eos = true};
    params.speculate = method;
    params.slack = std::numeric_limits<double>::infinity();
    Tokens all;
    for (const Generation& out : session.decode(branches, params)) {
      all.insert(all.end(), out.ids.begin(), out.ids.end());
    }
    return std::pair(session.stats().steps - before, all);
  };
  const auto [plain, tokens] = steps(Speculate::kOff);
  const auto [drafted, same] = steps(Speculate::kMtp);
  EXPECT_EQ(tokens, same);
  return static_cast<double>(plain) / static_cast<double>(drafted);
}

TEST(MtpHeadTest, OneThatIsRightIsBelieved) {
  const MtpModel right("qwen3_5_text", [](auto& tensors) { make_right(tensors, false); });
  const MtpModel blind("qwen3_5_text", [](auto& tensors) { make_right(tensors, true); });
  const Engine sees = load(right, {.dtype = "f32"});
  const Engine guesses = load(blind, {.dtype = "f32"});
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_GT(steps_saved(sees, temperature), 3) << temperature;
    EXPECT_LT(steps_saved(guesses, temperature), 2) << temperature;
  }
}

/// Whose entries are in 8 bits then, too.
TEST(MtpHeadTest, DraftsFromPagesIn8Bits) {
  const MtpModel right("qwen3_5_text", [](auto& tensors) { make_right(tensors, false); });
  EXPECT_GT(steps_saved(load(right, {.dtype = "bf16", .kv_dtype = "fp8"}), 0), 2);
}

// --- files

TEST(MtpHeadTest, IsToldOfAndLoadedIfItIsAskedFor) {
  const MtpModel model("qwen3_5_text");
  const Engine plain = test::load(model.path());
  EXPECT_EQ(plain.info().mtp_layers, 1);
  EXPECT_EQ(core_of(plain)->mtp, nullptr);
  EXPECT_EQ(test::load("qwen3_5_text").info().mtp_layers, 0);
  Session session(plain);
  Branch branch = session.prefill("x");
  DecodeParams params;
  params.speculate = Speculate::kMtp;
  EXPECT_ERROR(session.decode(branch, params), "the engine has no MTP head");
  EXPECT_ERROR(test::load("qwen3_5_text", {.drafter = "mtp"}), "has no MTP head");
  EXPECT_ERROR(test::load("qwen3", {.drafter = "mtp"}), "has no MTP head");
}

TEST(MtpHeadTest, WhatItLacksIsNamed) {
  for (const char* name :
       {"mtp.fc.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.self_attn.k_proj.weight"}) {
    const MtpModel model("qwen3_5_text", [&](MtpModel::Tensors& tensors) {
      std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; });
    });
    EXPECT_EQ(test::load(model.path()).info().mtp_layers, 1);
    EXPECT_ERROR(load(model), name);
  }
}

TEST(MtpHeadTest, OfSeveralLayersIsNotLoaded) {
  const MtpModel model("qwen3_5_text", [](MtpModel::Tensors& tensors) {
    for (std::size_t i = 0, count = tensors.size(); i < count; ++i) {
      if (!tensors[i].name.starts_with("mtp.layers.0.")) continue;
      MtpModel::Tensor more = tensors[i];
      more.name.replace(0, 13, "mtp.layers.1.");
      tensors.push_back(std::move(more));
    }
  });
  const EngineInfo info = test::load(model.path()).info();
  EXPECT_EQ(info.mtp_layers, 2);
  const auto tells = [](const std::string& line) { return line.find("MTP head") != line.npos; };
  EXPECT_EQ(std::ranges::count_if(info.warnings, tells), 1);
  EXPECT_ERROR(load(model), "has an MTP head of 2 layers");
}

}  // namespace
}  // namespace dendrite
