// Compositions that were submitted: they share steps, give what those that are waited for give, and
// need nothing of what they were made from afterwards.
#include <gtest/gtest.h>

#include "dendrite/compose.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::expect_all_pages_free;
using test::greedy;
using test::joined;
using test::load;
using test::Random;
using test::same_bits;
using test::Tokens;

class SubmittedCompose : public ::testing::Test {
 protected:
  Tokens random(std::int64_t count) { return random_.tokens(count, 256); }
  std::vector<Piece> pieces() {
    return {Piece::span(a_, 0, 50), Piece::span(b_, 10, 60), Piece::tokens(query_)};
  }
  static void expect_same(Composed got, Composed expected) {
    EXPECT_EQ(got.branch.tokens(), expected.branch.tokens());
    EXPECT_EQ(got.branch.finish(), Finish::kRunning);
    EXPECT_TRUE(same_bits(bits_of(got.branch), bits_of(expected.branch)));
    EXPECT_EQ(got.report.kept, expected.report.kept);
    EXPECT_EQ(got.report.moved, expected.report.moved);
    EXPECT_EQ(got.report.repaired, expected.report.repaired);
    EXPECT_EQ(got.report.computed, expected.report.computed);
    EXPECT_EQ(got.report.dropped, expected.report.dropped);
    EXPECT_EQ(got.report.note, expected.report.note);
  }

  Random random_{21};
  Engine engine_ = load("llama_f32", {.step_target_ms = 1e6});
  Session session_{engine_};
  Tokens query_ = random(9);
  Branch a_ = session_.prefill(random(60));
  Branch b_ = session_.prefill(random(80));
};

TEST_F(SubmittedCompose, GiveWhatWaitingForThemGives) {
  const std::vector<Edit> edits = {{{20, 30}, {}}, {{40, 42}, {Piece::tokens(query_)}}};
  const std::vector<Span> keep = {{0, 10}, {30, 60}};
  const std::vector<const Branch*> siblings = {&a_, &b_};
  const std::vector<std::vector<const Branch*>> groups = {{&a_, &b_}, {&b_, &a_}};
  PendingCompose composed = session_.submit_compose(pieces());
  PendingCompose edited = session_.submit_edit(a_, edits);
  PendingCompose compacted = session_.submit_compact(a_, keep);
  PendingCompose joins_two = session_.submit_join(siblings);
  PendingJoins joins = session_.submit_join_many(groups);
  PendingPrefill settled = session_.submit_settle(a_);
  EXPECT_FALSE(composed.done());
  const Engine other = load("llama_f32");
  Session alone(other);
  const Branch a = alone.prefill(a_.tokens());
  const Branch b = alone.prefill(b_.tokens());
  const std::vector<const Branch*> twins = {&a, &b};
  expect_same(composed.get(),
              alone.compose(std::vector<Piece>{Piece::span(a, 0, 50), Piece::span(b, 10, 60),
                                               Piece::tokens(query_)}));
  expect_same(edited.get(), alone.edit(a, edits));
  expect_same(compacted.get(), alone.compact(a, keep));
  expect_same(joins_two.get(), alone.join(twins));
  std::vector<Composed> both = joins.get();
  ASSERT_EQ(both.size(), 2U);
  expect_same(std::move(both[0]), alone.join(twins));
  expect_same(std::move(both[1]), alone.join(std::vector<const Branch*>{&b, &a}));
  EXPECT_EQ(settled.get().tokens(), a_.tokens());
}

TEST_F(SubmittedCompose, AtOnceAreOneBatch) {
  const std::int64_t steps = engine_.stats().steps;
  std::vector<PendingCompose> calls;
  for (int i = 0; i < 4; ++i) {
    query_ = random(9);
    calls.push_back(session_.submit_compose(pieces()));
  }
  PendingDecode decode = session_.submit_decode(a_.fork(), greedy(1));
  for (PendingCompose& call : calls) EXPECT_EQ(call.get().branch.finish(), Finish::kRunning);
  EXPECT_EQ(decode.get().front().ids.size(), 1U);
  EXPECT_EQ(engine_.stats().steps - steps, 1);
}

/// The engine's first one, before which it checks what moves give: between the turns of the thread
/// that is in the callback.
TEST_F(SubmittedCompose, ComeFromACallback) {
  std::optional<PendingCompose> call;
  DecodeParams params = greedy(3);
  params.on_token = [&](const TokenEvent&) {
    if (!call) call = session_.submit_compose(pieces(), {.repair = {.first = 4, .top = 0.3}});
  };
  PendingDecode decode = session_.submit_decode(a_.fork(), params);
  EXPECT_EQ(decode.get().front().ids.size(), 3U);
  ASSERT_TRUE(call.has_value());
  const Composed composed = call->get();
  EXPECT_EQ(composed.branch.finish(), Finish::kRunning);
  EXPECT_GT(composed.report.repaired, 4);
}

TEST_F(SubmittedCompose, NeedNothingOfTheirSources) {
  Composed expected = session_.compose(pieces());
  const test::Bits bits = bits_of(expected.branch);
  const Tokens tokens = expected.branch.tokens();
  PendingCompose call;
  {
    Session session(load("llama_f32", {.prefix_index = false}));
    const Branch a = session.prefill(a_.tokens());
    const Branch b = session.prefill(b_.tokens());
    call = session.submit_compose(
        std::vector<Piece>{Piece::span(a, 0, 50), Piece::span(b, 10, 60), Piece::tokens(query_)});
  }
  Composed composed = call.get();
  EXPECT_EQ(composed.branch.tokens(), tokens);
  EXPECT_TRUE(same_bits(bits_of(composed.branch), bits));
}

TEST_F(SubmittedCompose, CancelledHoldTheirTokens) {
  PendingCompose call = session_.submit_compose(pieces());
  std::stop_source stop;
  PendingCompose stopped = session_.submit_compose(pieces(), {.cancel = stop.get_token()});
  call.cancel();
  stop.request_stop();
  Composed composed = call.get();
  EXPECT_EQ(composed.branch.finish(), Finish::kCancelled);
  EXPECT_EQ(stopped.get().branch.finish(), Finish::kCancelled);
  EXPECT_EQ(composed.branch.length(), 109);
  EXPECT_EQ(composed.report.moved, 18);
  Composed whole = session_.compose(pieces());
  EXPECT_TRUE(same_bits(bits_of(composed.branch), bits_of(whole.branch)));
}

TEST_F(SubmittedCompose, WithoutRoomSaySo) {
  const Engine engine = load("llama_f32", {.kv_tokens = 512, .prefix_index = false});
  Session session(engine);
  const Branch source = session.prefill(random(160));
  Branch large = session.prefill(random(300));
  large.hold(std::chrono::hours(1));
  PendingCompose call = session.submit_compose(
      std::vector<Piece>{Piece::span(source, 100, 160), Piece::tokens(random(100))});
  Composed composed = call.get();
  EXPECT_EQ(composed.branch.finish(), Finish::kBudget);
  EXPECT_EQ(composed.branch.length(), 160);
  EXPECT_TRUE(session.shortage().has_value());
  large.prune();
  EXPECT_FALSE(bits_of(composed.branch).logits.empty());
}

TEST_F(SubmittedCompose, DroppedFreeAllPages) {
  const Engine engine = load("llama_f32", {.prefix_index = false});
  const Tokens text = random(200);
  for (const int steps : {0, 1, 2}) {
    SCOPED_TRACE(steps);
    Session session(engine);
    {
      const Branch branch = session.prefill(text);
      const std::vector<const Branch*> siblings = {&branch, &branch};
      PendingCompose edit = session.submit_edit(branch, std::vector<Edit>{{{10, 20}, {}}});
      PendingJoins joins = session.submit_join_many(std::vector{siblings, siblings});
      PendingChunk chunk = session.submit_register_chunk(std::span(text));
      for (int i = 0; i < steps && engine.step(); ++i) {
      }
    }
    while (engine.step()) {
    }
    EXPECT_EQ(session.stats().branches_live, 0);
    expect_all_pages_free(engine);
  }
}

TEST_F(SubmittedCompose, MistakesAreThrownWhereTheyAreMade) {
  EXPECT_ERROR(session_.submit_compose(pieces(), {.target_kl = 0.5}),
               "compose: target_kl is 0.500000 for a call that is submitted");
  EXPECT_ERROR(session_.submit_compose(std::vector<Piece>{}), "the composition has no tokens");
  EXPECT_ERROR(session_.submit_edit(a_, std::vector<Edit>{{{70, 80}, {}}}), "edit: span [70, 80)");
  EXPECT_ERROR(session_.submit_compact(a_, std::vector<Span>{{70, 80}}), "compact: span [70, 80)");
  EXPECT_ERROR(session_.submit_join({}), "join: no branches");
  EXPECT_ERROR(session_.submit_register_chunk(Tokens{}), "register_chunk: the chunk has no tokens");
  EXPECT_FALSE(engine_.step());
  PendingCompose call = session_.submit_compose(pieces());
  EXPECT_EQ(call.get().branch.length(), 109);
  EXPECT_ERROR(call.get(), "the result was taken already");
}

TEST_F(SubmittedCompose, ChunksAreComputedOnce) {
  const Tokens text = random(100);
  const ChunkParams params{.prefix = random(20), .name = "mine"};
  const std::int64_t before = session_.stats().tokens_computed;
  PendingChunk one = session_.submit_register_chunk(std::span(text), params);
  PendingChunk two = session_.submit_register_chunk(std::span(text), params);
  const Chunk chunk = one.get();
  EXPECT_EQ(chunk.tokens(), text);
  EXPECT_EQ(chunk.name(), "mine");
  EXPECT_EQ(chunk.key(), two.get().key());
  EXPECT_EQ(session_.stats().tokens_computed - before, 120);
  // One that is there already needs no row, and its handle is no less.
  const std::int64_t live = session_.stats().branches_live;
  PendingChunk warm = session_.submit_register_chunk(std::span(text), params);
  EXPECT_EQ(session_.stats().branches_live, live);
  EXPECT_EQ(warm.get().key(), chunk.key());
  EXPECT_EQ(session_.register_chunk(std::span(text), params).key(), chunk.key());
  EXPECT_EQ(session_.stats().tokens_computed - before, 120);
  EXPECT_EQ(session_.stats().branches_live, live);
  EXPECT_EQ(session_.compose(std::vector<Piece>{Piece::chunk(chunk), Piece::tokens(query_)})
                .branch.tokens(),
            joined(text, query_));
}

TEST_F(SubmittedCompose, ACancelledChunkIsComputedByWhoNeedsIt) {
  const Tokens text = random(100);
  PendingChunk call = session_.submit_register_chunk(std::span(text));
  call.cancel();
  const Chunk chunk = call.get();
  EXPECT_EQ(chunk.tokens(), text);
  const Composed composed =
      session_.compose(std::vector<Piece>{Piece::chunk(chunk), Piece::tokens(query_)});
  EXPECT_EQ(composed.branch.finish(), Finish::kRunning);
  EXPECT_EQ(composed.report.moved, 68);
}

}  // namespace
}  // namespace dendrite
