// Models with recurrent layers: what is kept of their states, what it costs to come back to a token
// of which nothing is kept, and what they refuse. (fork_replay_test, random_tree_test and
// golden_test have such models among others.)
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

using test::bits_of;
using test::greedy;
using test::joined;
using test::load;
using test::Random;
using test::replay;
using test::same_bits;
using test::Tokens;

class RecurrentLayers : public ::testing::TestWithParam<const char*> {
 protected:
  static Engine engine(EngineOptions options = {}) { return load(GetParam(), std::move(options)); }
  static test::Bits replayed(const Tokens& tokens) {
    return replay(engine({.prefix_index = false}), tokens);
  }
  static std::int64_t rows(const Engine& engine) { return engine.stats().rows; }
};

TEST_P(RecurrentLayers, AreToldWithTheMemoryOfTheirStates) {
  const EngineInfo info = engine().info();
  EXPECT_GT(info.recurrent_layers, 0);
  EXPECT_LT(info.recurrent_layers, info.layers);
  EXPECT_GT(info.state_bytes, info.state_token_bytes);
  EXPECT_GE(info.states, 4);
  EXPECT_GE(info.state_tokens, 64);
  EXPECT_EQ(info.graphs, test::on_cuda() ? "none: recurrent layers" : "");
  const EngineInfo empty = engine({.weights = false}).info();
  EXPECT_EQ(empty.state_bytes, info.state_bytes);
  EXPECT_EQ(empty.states, 0);
  const EngineInfo other = load("tinyllama").info();
  EXPECT_EQ(other.recurrent_layers + other.state_bytes + other.states, 0);
}

TEST_P(RecurrentLayers, KeepWhatBranchesGoOnFrom) {
  const Engine e = engine();
  Session session(e);
  Random random(1);
  const Tokens prompt = random.tokens(90, 256);
  Branch root = session.prefill(std::span(prompt));
  EXPECT_EQ(rows(e), 90);
  EXPECT_EQ(e.stats().states_used, 1);         // behind 80
  EXPECT_EQ(e.stats().state_tokens_used, 10);  // of the last chunk
  std::vector<Branch> children = root.fork(8);
  session.decode(children, greedy(20));
  EXPECT_EQ(rows(e), 90 + 8 * 19);  // (nobody asked for what follows the last tokens)
  for (Branch& child : children) {
    EXPECT_TRUE(same_bits(bits_of(child), replayed(child.tokens())));
  }
}

TEST_P(RecurrentLayers, ComeBackToAnyTokenFromTheLastStateBefore) {
  const Engine e = engine();
  Session session(e);
  Random random(2);
  const Tokens prompt = random.tokens(1500, 256);
  Branch root = session.prefill(std::span(prompt));
  for (const auto& [point, again] :
       {std::pair{1500, 0}, {1497, 0}, {1300, 1300 - 1024}, {1301, 1}, {1024, 0}, {40, 40}}) {
    SCOPED_TRACE("at " + std::to_string(point));
    const std::int64_t before = rows(e);
    Branch branch = root.at(point);
    branch.append(random.tokens(3, 256));
    session.decode(branch, greedy(1));
    // (The last token's distribution is there; that of the drawn one is not asked for.)
    EXPECT_EQ(rows(e) - before, again + 3);
    EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
  }
}

TEST_P(RecurrentLayers, AgainstLittleMemoryOnlyTimeIsLost) {
  const EngineInfo info = engine({.weights = false}).info();
  const std::int64_t least = 4 * (info.state_bytes + 16 * info.state_token_bytes);
  const Engine e = engine({.state_bytes = least});
  Session session(e);
  Random random(3);
  std::vector<Branch> branches;
  for (int i = 0; i < 12; ++i) {
    const Tokens prompt = random.tokens(20 + 7 * i, 256);
    branches.push_back(session.prefill(std::span(prompt)));
  }
  session.decode(branches, greedy(30));
  for (Branch& branch : branches) {
    EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
  }
  EXPECT_EQ(e.stats().states_used, e.info().states);
  EXPECT_GT(e.stats().rows_redundant, 0);
}

/// Each has two anchors and two chunks of journals where it goes from one chunk to the next.
TEST_P(RecurrentLayers, BranchesThatGoOnTogetherLoseNothingWhereThereIsRoomForTwoChunksOfEach) {
  const EngineInfo info = engine({.weights = false}).info();
  constexpr std::int64_t kOfPrompt = 6;
  const std::int64_t chunks = 2 * 8 + kOfPrompt;
  const Engine e =
      engine({.state_bytes = chunks * (info.state_bytes + 16 * info.state_token_bytes)});
  Session session(e);
  Random random(6);
  const Tokens prompt = random.tokens(40, 256);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches;
  for (Token first = 0; first < 8; ++first) {
    branches.push_back(root.fork());
    branches.back().append(Tokens{40 + first});
  }
  session.decode(branches, greedy(100));
  EXPECT_EQ(e.stats().rows_redundant, 0);
}

TEST_P(RecurrentLayers, FindPromptsAndGoOnBehindThem) {
  const Engine e = engine();
  Session session(e);
  Random random(4);
  const Tokens prompt = random.tokens(70, 256);
  { const Branch first = session.prefill(std::span(prompt)); }
  const Tokens longer = joined(prompt, random.tokens(9, 256));
  const std::int64_t before = rows(e);
  Branch second = session.prefill(std::span(longer));
  EXPECT_EQ(rows(e) - before, 9);
  EXPECT_TRUE(same_bits(bits_of(second), replayed(longer)));
}

TEST_P(RecurrentLayers, SnapshotsComeBackToTheBit) {
  const Engine e = engine();
  Random random(5);
  const Tokens prompt = random.tokens(100, 256);
  Session session(e);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(std::span(prompt)));
  branches.push_back(branches[0].fork());
  session.decode(branches, greedy(9));
  const TemporaryFolder folder;
  const auto file = folder.path() / "session.dendrite";
  session.save(file, branches);
  Restored restored = engine().restore(file);
  restored.session.decode(restored.branches, greedy(12));
  for (Branch& branch : restored.branches) {
    EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
  }
}

TEST_P(RecurrentLayers, SnapshotsGoOnWithoutRowsTwice) {
  Random random(8);
  const TemporaryFolder folder;
  const auto file = folder.path() / "session.dendrite";
  for (const int length : {1500, 1503, 1504, 1505}) {  // 1504: a multiple of a chunk
    SCOPED_TRACE(length);
    const Engine e = engine();
    const Tokens prompt = random.tokens(length - 1, 256);
    Session session(e);
    std::vector<Branch> branches;
    branches.push_back(session.prefill(std::span(prompt)));
    branches[0].append(Tokens{7});
    session.decode(branches, greedy(1));  // (whose token is not computed)
    branches.push_back(branches[0].at(length));
    branches.push_back(branches[0].at(length));
    branches[2].append(random.tokens(5, 256));
    session.save(file, branches);
    const Engine other = engine();
    Restored restored = other.restore(file);
    const std::int64_t before = rows(other);  // those that were saved count
    restored.session.decode(std::span(restored.branches).subspan(2), greedy(1));
    EXPECT_EQ(rows(other) - before, 5);
    restored.session.decode(std::span(restored.branches).first(2), greedy(3));
    // The token that was pending, and the distribution that is not saved.
    EXPECT_EQ(rows(other) - before, 5 + 2 * 3);
    for (Branch& branch : restored.branches) {
      EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
    }
  }
}

TEST_P(RecurrentLayers, SnapshotsKeepTheStateBehindAPromptOfWholeChunks) {
  Random random(10);
  const TemporaryFolder folder;
  const auto file = folder.path() / "session.dendrite";
  const Engine e = engine();
  Session session(e);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(random.tokens(160, 256)));
  session.save(file);
  const Engine other = engine();
  Restored restored = other.restore(file);
  const std::int64_t before = rows(other);
  restored.branches[0].append(random.tokens(5, 256));
  restored.session.decode(restored.branches, greedy(1));
  EXPECT_EQ(rows(other) - before, 5);
  EXPECT_TRUE(same_bits(bits_of(restored.branches[0]), replayed(restored.branches[0].tokens())));
}

TEST_P(RecurrentLayers, SnapshotsWithoutStatesAndPlacesWithoutRoomLoseTimeAlone) {
  Random random(9);
  const TemporaryFolder folder;
  const auto file = folder.path() / "session.dendrite";
  const auto old_file = folder.path() / "old.dendrite";
  const Engine e = engine();
  Session session(e);
  std::vector<Branch> branches;
  for (int i = 0; i < 8; ++i) {
    const Tokens prompt = random.tokens(60 + 9 * i, 256);
    branches.push_back(session.prefill(std::span(prompt)));
  }
  session.save(file);
  {
    const TreeLock lock(core_of(e)->tree_mutex);
    core_of(e)->tree->states()->clear();
  }
  session.save(old_file);  // as those before states were kept
  const EngineInfo info = e.info();
  const std::int64_t anchors = (60 + 8 * 9) / 16;
  EXPECT_GT(fs::file_size(file), fs::file_size(old_file) + 8 * info.state_bytes);
  EXPECT_LT(fs::file_size(file),
            fs::file_size(old_file) + anchors * info.state_bytes + 8 * 16 * info.state_token_bytes);
  const std::int64_t least = 4 * (info.state_bytes + 16 * info.state_token_bytes);
  for (const auto& [path, options] : {std::pair{file, EngineOptions{.state_bytes = least}},
                                      std::pair{old_file, EngineOptions{}}}) {
    const Engine other = engine(options);
    Restored restored = other.restore(path);
    EXPECT_TRUE(restored.kv_restored);
    const std::int64_t before = rows(other);
    restored.session.decode(restored.branches, greedy(4));
    EXPECT_GT(rows(other) - before, 8 * 4);
    for (Branch& branch : restored.branches) {
      EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
    }
  }
}

TEST_P(RecurrentLayers, DraftsDrawTheTokensOfPlainDecoding) {
  Random random(6);
  const Tokens prompt = random.tokens(30, 256);
  DecodeParams params = greedy(60);
  Session plain(engine());
  Branch expected = plain.prefill(std::span(prompt));
  plain.decode(expected, params);
  params.speculate = Speculate::kDraftModel;
  params.speculate_budget = 16;
  params.slack = std::numeric_limits<double>::infinity();  // whatever time they take
  const Engine e = engine({.draft_model = test::model_path(GetParam()).string()});
  Session session(e);
  Branch branch = session.prefill(std::span(prompt));
  session.decode(branch, params);
  EXPECT_EQ(branch.tokens(), expected.tokens());
  EXPECT_GT(e.stats().tokens_accepted, 0);
  EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
}

TEST_P(RecurrentLayers, RefuseWhatTheyCannotDo) {
  EXPECT_ERROR(engine({.page_tokens = 8}), "pages have 8 tokens; expected 16");
  EXPECT_ERROR(engine({.state_bytes = 1000}), "state_bytes is 1000 bytes");
  EXPECT_ERROR(engine({.state_bytes = -1}), "state_bytes is -1; expected 0 (automatic)");
  Session session(engine());
  Random random(7);
  const Tokens text = random.tokens(100, 256);
  Branch branch = session.prefill(std::span(text));
  EXPECT_ERROR(
      session.compose(std::vector<Piece>{Piece::span(branch, 40, 100), Piece::tokens(text)}),
      "recurrent layers");
}

// Delta networks; short convolutions, of which an anchor is less than the journals of a chunk;
// Mamba-2; Kimi Delta Attention beside attention through a latent.
INSTANTIATE_TEST_SUITE_P(Models, RecurrentLayers,
                         ::testing::Values("qwen3_5", "qwen3_5_heads", "lfm2", "lfm3",
                                           "granitemoehybrid", "nemotron_h", "kimi_linear"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace dendrite
