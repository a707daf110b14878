// Chunks: registered once, computed once, composed often, and given up for branches.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <thread>

#include "dendrite/compose.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::joined;
using test::load;
using test::Random;
using test::same_bits;
using test::Tokens;

TEST(Chunks, AreRegisteredOnceAndComposed) {
  const Engine e = load("llama_f32");
  const Engine alone = load("llama_f32", {.prefix_index = false});
  Session session(e);
  Random random(9);
  const Tokens system = random.tokens(30, 256);
  const Tokens one = random.tokens(40, 256);
  const Tokens two = random.tokens(50, 256);
  Chunk first = session.register_chunk(std::span(one), {.prefix = system, .name = "one"});
  const std::int64_t filled = session.stats().tokens_computed;
  Session other(e);
  Chunk again = other.register_chunk(std::span(one), {.prefix = system});
  EXPECT_EQ(other.stats().tokens_computed, 0);
  EXPECT_EQ(first.key(), again.key());
  EXPECT_EQ(first.name(), "one");
  EXPECT_EQ(first.tokens(), one);
  Chunk second = session.register_chunk(std::span(two), {.prefix = system});
  EXPECT_EQ(session.stats().tokens_computed, filled + 50);  // behind the same prompt
  const std::vector<Piece> pieces = {Piece::tokens(system), Piece::chunk(first),
                                     Piece::chunk(second), Piece::tokens({5, 6, 7})};
  Composed composed = session.compose(pieces);
  // The first is a fork of what it was computed behind; the second is moved.
  EXPECT_EQ(composed.report.kept, 40);
  EXPECT_EQ(composed.report.repaired, 32);
  EXPECT_EQ(composed.report.moved, 18);
  EXPECT_EQ(session.stats().tokens_computed, filled + 50 + 32 + 3);
  const Tokens head = joined(system, one);
  Branch cut = composed.branch.at(70);
  EXPECT_TRUE(same_bits(bits_of(cut), test::replay(alone, head)));
  const Generation answer = session.generate_from_chunks(pieces, test::greedy(4));
  EXPECT_EQ(answer.ids.size(), 4U);
  // Behind a stub, which no composition has.
  Chunk stubbed = session.register_chunk(std::span(two));
  EXPECT_EQ(session.compose(std::vector<Piece>{Piece::chunk(stubbed), Piece::tokens({1})})
                .branch.tokens(),
            joined(two, Tokens{1}));
  EXPECT_ERROR(session.register_chunk(std::span<const Token>()), "no tokens");
  EXPECT_ERROR(session.compose(std::vector<Piece>{Piece::chunk({})}), "a chunk is empty");
}

TEST(Chunks, RegisteredByManyThreadsAreOne) {
  const Engine e = load("llama_f32");
  Random random(10);
  const Tokens text = random.tokens(200, 256);
  std::vector<std::string> keys(4);
  std::vector<std::int64_t> rows(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Session session(e);
      keys[i] = session.register_chunk(std::span(text), {.stub = false}).key();
      rows[i] = session.stats().tokens_computed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 1U);
  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), 200);
}

TEST(Chunks, GiveWayToBranchesAndComeBack) {
  const Engine e = load("llama_f32", {.kv_tokens = 640, .kv_debug = true});
  Session session(e);
  Random random(12);
  const Tokens text = random.tokens(100, 256);
  std::vector<Chunk> chunks;
  for (int i = 0; i < 6; ++i) chunks.push_back(session.register_chunk(random.tokens(100, 256)));
  Composed composed =
      session.compose(std::vector<Piece>{Piece::tokens(text), Piece::chunk(chunks[0])});
  const test::Bits bits = bits_of(composed.branch);
  for (int round = 0; round < 40; ++round) {
    const std::size_t i = static_cast<std::size_t>(random.below(6));
    Composed other =
        session.compose(std::vector<Piece>{Piece::chunk(chunks[i]), Piece::tokens(text)});
    EXPECT_EQ(other.branch.finish(), Finish::kRunning);
  }
  EXPECT_TRUE(same_bits(bits_of(composed.branch), bits));
  const ChunkIndexStats stats = core_of(e)->chunks->stats();
  EXPECT_EQ(stats.entries, 6);
  EXPECT_LT(stats.warm, 6);
  // What can never fit says so, and nothing is lost.
  Branch big = session.prefill(random.tokens(330, 256));
  big.hold(std::chrono::hours(1));
  Composed large = session.compose(
      std::vector<Piece>{Piece::chunk(chunks[1]), Piece::chunk(chunks[2]), Piece::tokens(text)});
  EXPECT_EQ(large.branch.finish(), Finish::kBudget);
  EXPECT_TRUE(session.shortage().has_value());
  EXPECT_EQ(large.branch.length(), 300);
  big.prune();
  EXPECT_FALSE(bits_of(large.branch).logits.empty());
}

}  // namespace
}  // namespace dendrite
