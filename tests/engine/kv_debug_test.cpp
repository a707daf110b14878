// Debug mode of a whole engine: planted faults end the process with a dump, honest work passes.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/engine_support.h"
#include "support/raw_pages.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

EngineOptions debug_options() {
  EngineOptions options;
  options.page_tokens = 16;
  options.prefix_index = false;
  options.kv_debug = true;
  return options;
}

/// A branch of 40 tokens in three pages: two full, one not.
class KvDebugDeath : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  Engine engine_ = load("tinyllama", debug_options());
  Session session_{engine_};
  Branch branch_ = session_.prefill(std::span<const Token>(Random(1).tokens(40, 256)));

  std::int32_t page(std::size_t i) {
    return core_of(engine_)->tree->table(state_of(branch_)->tip)[i];
  }
  KvStore::RawLayout layout() { return core_of(engine_)->store->raw_layout(); }
  /// In the page's first part: a byte `at` bytes behind its begin, or before it.
  void flip(std::int32_t page, std::int64_t at) {
    test::flip(*core_of(engine_)->store, page, layout().before + at);
  }
};

// The fault is planted inside the statement: the child process alone has it.
TEST_F(KvDebugDeath, AWritePastAPagesEnd) {
  EXPECT_DEATH(
      {
        flip(page(0), layout().bytes + 5);
        branch_.fork();
      },
      "5 bytes past its end.*KvTree: 1 segments");
}

TEST_F(KvDebugDeath, AWriteBeforeAPagesBegin) {
  EXPECT_DEATH(
      {
        flip(page(2), -1);
        branch_.fork();
      },
      "1 bytes before its begin");
}

TEST_F(KvDebugDeath, AWriteToAFreedPage) {
  EXPECT_DEATH(
      {
        const std::int32_t last = page(2);
        branch_ = branch_.at(32);  // the third page is free now
        flip(last, 100);
        session_.decode(branch_, greedy(2));
      },
      "at byte 100 while it was free");
}

TEST_F(KvDebugDeath, AChangedByteOfAFullPage) {
  EXPECT_DEATH(
      {
        flip(page(1), 9);
        branch_.fork();
      },
      "changed although it is full");
}

TEST_F(KvDebugDeath, AWrongCountOfReferences) {
  EXPECT_DEATH(
      {
        ++core_of(engine_)->tree->segment(state_of(branch_)->tip)->refs;
        branch_.append(Tokens{1});
      },
      "references, but counts");
}

TEST_F(KvDebugDeath, AStepThatWouldWriteToASharedOrFullPage) {
  EngineCore& core = *core_of(engine_);
  const std::int64_t slot = core.tree->table(state_of(branch_)->tip)[0] * std::int64_t{16} + 3;
  EXPECT_DEATH(core.kv_debug->check_write(*core.tree, slot),
               "is about to be written to, but is full");
}

TEST_F(KvDebugDeath, AByteOfAPageThatIsNotFullIsNobodysBusiness) {
  flip(page(2), layout().bytes - 1);  // a slot that holds no position
  branch_.fork().prune();
}

TEST_F(KvDebugDeath, ButNotALastHolderThatRewindsAndWritesOnInAPageThatWasFull) {
  branch_ = branch_.at(20);
  EXPECT_EQ(session_.decode(branch_, greedy(30)).ids.size(), 30u);
  EXPECT_EQ(engine_.stats().copies_on_write, 0);
}

TEST(KvDebugMode, IsSwitchedOnByOptionOrEnvironmentAndElseOff) {
  EngineOptions options;
  ASSERT_EQ(unsetenv("DENDRITE_KV_DEBUG"), 0);  // the whole program may run in debug mode
  EXPECT_EQ(core_of(load("tinyllama", options))->kv_debug, nullptr);
  ASSERT_EQ(setenv("DENDRITE_KV_DEBUG", "1", 1), 0);
  EXPECT_NE(core_of(load("tinyllama", options))->kv_debug, nullptr);
  options.kv_debug = false;
  EXPECT_EQ(core_of(load("tinyllama", options))->kv_debug, nullptr);
  ASSERT_EQ(unsetenv("DENDRITE_KV_DEBUG"), 0);
  options.kv_debug = true;
  EXPECT_NE(core_of(load("tinyllama", options))->kv_debug, nullptr);
}

/// Everything that changes the tree, on a pool that is nearly always full.
TEST(KvDebugMode, PassesARandomRunAndChangesNoResult) {
  for (const std::int64_t page_tokens : {8, 16, 32}) {
    std::vector<Tokens> results[2];
    for (const bool debug : {false, true}) {
      EngineOptions options;
      options.page_tokens = static_cast<int>(page_tokens);
      options.kv_tokens = 20 * page_tokens;
      options.kv_debug = debug;
      const Engine e = load("qwen3_swa", options);
      Session session(e);
      Random random(3);
      std::vector<Branch> branches;
      branches.reserve(32);  // references stay valid
      for (int i = 0; i < test::scaled(250); ++i) {
        if (branches.empty() || random.one_in(12)) {
          branches.push_back(
              session.prefill(std::span<const Token>(random.tokens(random.in(1, 40), 4))));
        }
        const auto any = static_cast<std::size_t>(random.below(std::ssize(branches)));
        Branch& branch = branches[any];
        switch (random.below(7)) {
          case 0:
            branches.push_back(branch.fork());
            break;
          case 1:
            branches.push_back(branch.at(random.in(1, branch.length())));
            break;
          case 2:
            branch.append(random.tokens(random.in(1, 20), 256));
            break;
          case 3:
            branch.score_tokens({{1, 2, 3}, {1, 2, 4}, {5}});
            break;
          case 4:
            for (auto& kids : session.expand(std::span(&branch, 1), {.top = 2})) {
              for (Branch& kid : kids) branches.push_back(std::move(kid));
            }
            break;
          default:
            for (const Generation& out : session.decode(branches, greedy(random.in(1, 3)))) {
              results[debug].push_back(out.ids);
            }
        }
        if (branches.size() > 8 || branch.length() > 100) {
          branches.erase(branches.begin() + static_cast<std::ptrdiff_t>(any));
        }
      }
      if (!debug) continue;
      EXPECT_GT(e.stats().evictions, 0);
      EXPECT_GT(e.stats().copies_on_write, 0);
      core_of(e)->kv_debug->check_memory();
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

}  // namespace
}  // namespace dendrite
