// What can be seen of registered chunks: the view of the registry, counters, and who holds pages.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dendrite/compose.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::Random;
using test::Tokens;

std::vector<Piece> behind(const Tokens& text, const Chunk& chunk) {
  return {Piece::tokens(text), Piece::chunk(chunk)};
}

TEST(ChunkView, TellsWhatTheRegistryHolds) {
  const Engine e = load("llama_f32", {.page_tokens = 16});
  EXPECT_TRUE(e.chunks().empty());
  Session session(e);
  Random random(1);
  const Tokens tokens = random.tokens(40, 256);
  const Chunk first = session.register_chunk(std::span(tokens), {.name = "first"});
  { const Chunk gone = session.register_chunk(random.tokens(10, 256), {.name = "second"}); }
  const Chunk again = session.register_chunk(std::span(tokens), {.name = "other"});
  const Composed composed = session.compose(behind(random.tokens(7, 256), first));
  const std::vector<ChunkInfo> chunks = e.chunks();
  ASSERT_EQ(chunks.size(), 2U);
  const ChunkInfo& one = chunks[0];
  EXPECT_EQ(one.name, "first");
  EXPECT_EQ(one.key, first.key());
  EXPECT_TRUE(one.id.starts_with(one.key + "-"));
  EXPECT_EQ(one.beginning, Tokens(tokens.begin(), tokens.begin() + 16));
  EXPECT_EQ(one.left_tokens, 4);
  EXPECT_EQ(one.tokens, 40);
  EXPECT_EQ(one.tokens_held, 40);
  EXPECT_STREQ(name_of(one.state), "warm");
  EXPECT_EQ(one.uses, 2);
  EXPECT_EQ(one.hits, 1);
  EXPECT_EQ(one.reads, 1);
  EXPECT_EQ(one.read_hits, 1);
  EXPECT_DOUBLE_EQ(one.hit_rate(), 2.0 / 3);
  EXPECT_GT(one.fill_ms, 0);
  EXPECT_EQ(one.pages, 3);
  EXPECT_EQ(chunks[1].name, "second");
  EXPECT_EQ(chunks[1].uses, 0);
  EXPECT_EQ(chunks[1].hit_rate(), 0);
  EXPECT_LT(chunks[1].last_use, one.last_use);
}

TEST(ChunkView, HasTheBeginningOfTexts) {
  const Engine e = load("llama2");
  Session session(e);
  const Chunk chunk = session.register_chunk("Once upon a time");
  const std::vector<ChunkInfo> chunks = e.chunks();
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].text, e.decode(chunks[0].beginning));
  EXPECT_TRUE(chunks[0].text.starts_with("Once")) << chunks[0].text;
}

TEST(ChunkView, IsEmptyWithoutWeights) {
  EXPECT_TRUE(load("tinyllama", {.weights = false}).chunks().empty());
}

TEST(ChunkView, KnowsWhoseKAndVWentToMakeRoom) {
  const Engine e = load("llama_f32", {.kv_tokens = 320});
  Session session(e);
  Random random(2);
  const Chunk held = session.register_chunk(random.tokens(100, 256));
  session.register_chunk(random.tokens(100, 256));
  const Branch large = session.prefill(random.tokens(300, 256));
  const std::vector<ChunkInfo> chunks = e.chunks();
  ASSERT_EQ(chunks.size(), 2U);
  for (const ChunkInfo& chunk : chunks) {
    EXPECT_STREQ(name_of(chunk.state), "cold");
    EXPECT_LT(chunk.tokens_held, 100);
  }
  const EngineStats stats = e.stats();
  EXPECT_EQ(stats.chunk_warm, 0);
  EXPECT_EQ(stats.chunk_evictions, 1);  // the other one was held: it gave way as branches do
  EXPECT_EQ(stats.chunk_tokens, 200);
  // A composition computes it again.
  const Composed composed = session.compose(behind(random.tokens(5, 256), held));
  EXPECT_EQ(composed.branch.finish(), Finish::kRunning);
  EXPECT_EQ(e.chunks()[0].reads, 1);
  EXPECT_EQ(e.chunks()[0].read_hits, 0);
}

TEST(ChunkCounters, AreThoseOfAllSessions) {
  const Engine e = load("llama_f32", {.page_tokens = 16, .chunk_tokens = 100});
  Random random(3);
  const Tokens text = random.tokens(40, 256);
  const Tokens before = random.tokens(9, 256);
  for (int round = 0; round < 2; ++round) {
    Session session(e);
    const Chunk chunk = session.register_chunk(std::span(text));
    session.compose(behind(before, chunk), {.repair = {.first = 4}});
  }
  const EngineStats stats = e.stats();
  EXPECT_EQ(stats.compositions, 2);
  EXPECT_EQ(stats.composed_hits, 1);
  EXPECT_EQ(stats.composed_entries, 1);
  EXPECT_EQ(stats.tokens_moved, 35);  // once: the second time they were there
  EXPECT_EQ(stats.tokens_repaired, 10);
  EXPECT_EQ(stats.chunk_lookups, 2);
  EXPECT_EQ(stats.chunk_hits, 1);
  EXPECT_EQ(stats.chunk_hit_tokens, 40);
  EXPECT_EQ(stats.chunk_reads, 2);
  EXPECT_EQ(stats.chunk_read_hits, 2);
  EXPECT_EQ(stats.chunk_fills, 1);
  EXPECT_GT(stats.chunk_fill_seconds, 0);
  EXPECT_EQ(stats.chunk_entries, 1);
  EXPECT_EQ(stats.chunk_warm, 1);
  EXPECT_EQ(stats.chunk_tokens, 40);
  EXPECT_EQ(stats.chunk_pages, 3);
  // Beyond the limit the oldest one is forgotten.
  Session session(e);
  session.register_chunk(random.tokens(90, 256));
  EXPECT_EQ(e.stats().chunks_forgotten, 1);
  EXPECT_EQ(e.stats().chunk_tokens, 90);
  const nlohmann::json json = nlohmann::json::parse(to_json(e.stats()));
  EXPECT_EQ(json["chunk_lookups"], 3);
  EXPECT_EQ(json["chunks_forgotten"], 1);
  EXPECT_EQ(json["tokens_moved"], 35);
  const std::string text_format = to_prometheus(e.stats());
  EXPECT_NE(text_format.find("\ndendrite_chunk_hits_total 1\n"), std::string::npos);
  EXPECT_NE(text_format.find("\ndendrite_chunk_entries 1\n"), std::string::npos);
}

/// All pages of the pool are somebody's, or free.
void expect_sum(const KvShortage& s) {
  EXPECT_EQ(s.pages_held + s.pages_of_branches + s.pages_of_chunks + s.pages_of_sources +
                s.pages_of_calls + s.pages_free,
            s.pages_total);
}

TEST(Shortage, TellsHowLargeAPoolAComposedBranchAndItsSourcesNeed) {
  Random random(4);
  const Tokens text = random.tokens(160, 256);
  const Tokens before = random.tokens(10, 256);
  Engine e = load("llama_f32", {.kv_tokens = 320});
  Session session(e);
  const Chunk chunk = session.register_chunk(std::span(text));
  const Composed composed = session.compose(behind(before, chunk));
  EXPECT_EQ(composed.branch.finish(), Finish::kBudget);
  const std::optional<KvShortage> shortage = session.shortage();
  ASSERT_TRUE(shortage.has_value());
  expect_sum(*shortage);
  EXPECT_EQ(shortage->pages_free, shortage->pages_total);  // the chunk gave way, to no avail
  EXPECT_NE(shortage->message().find("make the pool larger (kv_tokens >= "), std::string::npos)
      << shortage->message();
  const Engine larger = load("llama_f32", {.kv_tokens = shortage->kv_tokens_needed()});
  Session other(larger);
  const Chunk same = other.register_chunk(std::span(text));
  EXPECT_EQ(other.compose(behind(before, same)).branch.finish(), Finish::kRunning);
}

TEST(Shortage, TellsWhatCompositionsHold) {
  const Engine e = load("llama_f32", {.kv_tokens = 640});
  Session session(e);
  Random random(5);
  const Chunk chunk = session.register_chunk(random.tokens(100, 256));
  Composed composed = session.compose(behind(random.tokens(50, 256), chunk));
  composed.branch.hold(std::chrono::hours(1));
  Branch plain = session.prefill(random.tokens(64, 256));
  plain.hold(std::chrono::hours(1));
  const Branch refused = session.prefill(random.tokens(500, 256));
  EXPECT_EQ(refused.finish(), Finish::kBudget);
  const std::optional<KvShortage> shortage = session.shortage();
  ASSERT_TRUE(shortage.has_value());
  expect_sum(*shortage);
  EXPECT_EQ(shortage->pages_of_compositions, shortage->pages_of_branches - 4);
  EXPECT_GE(shortage->pages_of_compositions, 10);
  EXPECT_EQ(shortage->pages_of_chunks, 0);  // it had gone
  EXPECT_EQ(shortage->pages_of_calls, 0);
}

TEST(Shortage, TellsWhatIsKeptForCompositionsThatWait) {
  const Engine e = load("llama_f32", {.kv_tokens = 640});
  Session session(e);
  Random random(6);
  std::vector<Piece> pieces = {Piece::tokens(random.tokens(10, 256))};
  for (int i = 0; i < 3; ++i) {
    pieces.push_back(Piece::chunk(session.register_chunk(random.tokens(100, 256))));
  }
  Branch plain = session.prefill(random.tokens(100, 256));
  plain.hold(std::chrono::hours(1));
  session.prefill(random.tokens(600, 256));  // takes what the chunks have
  EXPECT_EQ(e.stats().chunk_warm, 0);
  Composed waits = session.compose(pieces);
  EXPECT_EQ(waits.branch.finish(), Finish::kBudget);
  waits.branch.hold(std::chrono::hours(1));
  pieces.pop_back();
  session.compose(pieces).branch.prune();  // what it was moved from, the other one waits for, too
  const Branch refused = session.prefill(random.tokens(500, 256));
  EXPECT_EQ(refused.finish(), Finish::kBudget);
  const std::optional<KvShortage> shortage = session.shortage();
  ASSERT_TRUE(shortage.has_value());
  expect_sum(*shortage);
  EXPECT_EQ(shortage->pages_of_chunks, 0);
  EXPECT_EQ(shortage->pages_of_sources, 14) << shortage->message();
  EXPECT_EQ(shortage->pages_on_hold, 14 + 7);  // those, and the plain branch's
  EXPECT_EQ(shortage->pages_of_calls, 0);
}

}  // namespace
}  // namespace dendrite
