// A composition of chunks that is asked for again is found by its pieces, and is what it would be
// if it were not.
#include <gtest/gtest.h>

#include "dendrite/compose.h"
#include "engine/branches/known_compositions.h"
#include "engine/context/chunk_hold.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::greedy;
using test::load;
using test::Random;
using test::same_bits;
using test::Tokens;

class KnownComposition : public ::testing::Test {
 protected:
  Tokens random(std::int64_t count) { return random_.tokens(count, 256); }
  std::vector<Piece> pieces() const {
    return {Piece::chunk(one_), Piece::chunk(two_), Piece::tokens(query_)};
  }
  EngineCore& core() const { return *core_of(engine_); }
  /// Whether the composition of these pieces is found, by what a session makes of them.
  bool is_known(const std::vector<Piece>& pieces, Repair repair = {}) const {
    std::vector<PlainPiece> plain;
    const TreeLock lock(core().tree_mutex);
    for (const Piece& piece : pieces) {
      PlainPiece& added = plain.emplace_back();
      added.first = repair.first;
      added.last = repair.last.value_or(0);
      if (const auto* tokens = std::get_if<Tokens>(&piece.content())) {
        added.tokens = *tokens;
        continue;
      }
      ChunkEntry& entry = *Internals::hold(std::get<Chunk>(piece.content()))->entry;
      added.source = entry.lineage();
      added.at = {std::ssize(entry.left()), entry.length()};
    }
    return core().known_compositions->find(plain) != nullptr;
  }

  Random random_{31};
  Engine engine_ = load("llama_f32", {.kv_tokens = 2048, .kv_debug = true});
  Session session_{engine_};
  Chunk one_ = session_.register_chunk(random(60));
  Chunk two_ = session_.register_chunk(random(80));
  Tokens query_ = random(9);
};

TEST_F(KnownComposition, IsFoundByItsPiecesAndNoOthers) {
  EXPECT_FALSE(is_known(pieces()));
  const Composed composed = session_.compose(pieces());
  EXPECT_TRUE(is_known(pieces()));
  EXPECT_FALSE(is_known(pieces(), {.first = 4}));
  EXPECT_FALSE(is_known(pieces(), {.last = 1}));
  EXPECT_FALSE(is_known({Piece::chunk(two_), Piece::chunk(one_), Piece::tokens(query_)}));
  EXPECT_FALSE(is_known({Piece::chunk(one_), Piece::chunk(two_)}));
  EXPECT_FALSE(is_known({Piece::chunk(one_), Piece::chunk(two_), Piece::tokens(random(9))}));
  // The same text in other pieces is the same composition: it is found by those of the last time.
  const Tokens head(query_.begin(), query_.begin() + 4);
  const Tokens tail(query_.begin() + 4, query_.end());
  const std::vector<Piece> cut = {Piece::chunk(one_), Piece::chunk(two_), Piece::tokens(head),
                                  Piece::tokens(tail)};
  session_.compose(cut);
  EXPECT_TRUE(is_known(cut));
  EXPECT_FALSE(is_known(pieces()));
  // Spans of branches are looked at anew each time, and what is exact is no composition.
  const std::vector<Piece> spans = {Piece::span(composed.branch, 3, 50), Piece::tokens(query_)};
  session_.compose(spans);
  session_.compose(pieces(), {.mode = ComposeParams::Mode::kExact});
  EXPECT_EQ(engine_.stats().compositions, 4);
}

TEST_F(KnownComposition, IsTheSameBranchAgain) {
  Composed first = session_.compose(pieces());
  const test::Bits bits = bits_of(first.branch);
  const std::int64_t rows = session_.stats().tokens_computed;
  const std::int64_t hits = engine_.stats().composed_hits;
  Composed again = session_.compose(pieces());
  EXPECT_EQ(session_.stats().tokens_computed, rows);
  EXPECT_EQ(engine_.stats().composed_hits, hits + 1);
  EXPECT_EQ(again.branch.tokens(), first.branch.tokens());
  EXPECT_TRUE(same_bits(bits_of(again.branch), bits));
  EXPECT_EQ(again.report.moved, first.report.moved);
  EXPECT_EQ(again.report.repaired, first.report.repaired);
  EXPECT_EQ(again.report.computed, first.report.computed);
  EXPECT_EQ(again.report.moves, 1);
  EXPECT_EQ(again.branch.prompt_length(), 149);
  // Its stream is that of the same composition made by a session that knows none, the second time.
  Session other(load("llama_f32"));
  const Chunk one = other.register_chunk(one_.tokens());
  const Chunk two = other.register_chunk(two_.tokens());
  const std::vector<Piece> there = {Piece::chunk(one), Piece::chunk(two), Piece::tokens(query_)};
  EXPECT_EQ(other.compose(there).branch.stream(), first.branch.stream());
  core_of(other)->engine->memories().clear();
  EXPECT_EQ(other.compose(there).branch.stream(), again.branch.stream());
  EXPECT_NE(first.branch.stream(), again.branch.stream());
}

TEST_F(KnownComposition, ThatLostItsPagesIsMadeAgain) {
  for (const bool kept : {false, true}) {
    SCOPED_TRACE(kept);
    Composed composed = session_.compose(pieces());
    const test::Bits bits = bits_of(composed.branch);
    if (!kept) composed.branch.prune();
    EXPECT_TRUE(is_known(pieces()));
    for (int i = 0; i < 3; ++i) session_.prefill(random(1800));
    EXPECT_FALSE(is_known(pieces()));
    Composed again = session_.compose(pieces());
    EXPECT_EQ(again.branch.finish(), Finish::kRunning);
    EXPECT_TRUE(same_bits(bits_of(again.branch), bits));
    EXPECT_TRUE(is_known(pieces()));
    core().memories().clear();
    EXPECT_FALSE(is_known(pieces()));
  }
}

TEST_F(KnownComposition, GoesOnApartFromOthers) {
  Composed first = session_.compose(pieces());
  Composed again = session_.compose(pieces());
  first.branch.append(random(5));
  const Generation drawn = session_.decode(again.branch, greedy(5));
  const Tokens expected = drawn.ids;
  Composed third = session_.compose(pieces());
  EXPECT_EQ(session_.decode(third.branch, greedy(5)).ids, expected);
}

}  // namespace
}  // namespace dendrite
