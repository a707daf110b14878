// Compositions: what they are made of decides every bit, whatever was shared, evicted or computed
// in between; and where nothing is moved they are what prefill gives.
#include <gtest/gtest.h>

#include "dendrite/compose.h"
#include "engine/compose_cases.h"
#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::joined;
using test::kv_of;
using test::load;
using test::Random;
using test::same_bits;
using test::Tokens;

class Compose : public ::testing::TestWithParam<ComposeCase> {
 protected:
  Engine engine(EngineOptions options = {}) const {
    options.dtype = test::dtype_of(GetParam().dtype);
    options.kv_dtype = test::kv_dtype_of(GetParam().dtype);
    options.page_tokens = GetParam().page_tokens;
    return load(GetParam().model, options);
  }
  Tokens random(std::int64_t count) { return random_.tokens(count, 256); }

  Random random_{11};
};
INSTANTIATE_TEST_SUITE_P(Models, Compose, ::testing::ValuesIn(kComposeCases));

Tokens part(const Tokens& tokens, std::int64_t begin, std::int64_t end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

TEST_P(Compose, WithAllRepairedIsPrefill) {
  const Engine e = engine();
  const Engine alone = engine({.prefix_index = false});
  Session session(e);
  const Tokens one = random(45);
  const Tokens two = random(61);
  Branch a = session.prefill(std::span(one));
  Branch b = session.prefill(std::span(two));
  const std::vector<Piece> pieces = {Piece::span(a, 0, 37), Piece::tokens(random(3)),
                                     Piece::span(b, 11, 50), Piece::span(a, 5, 30)};
  for (const bool exact : {false, true}) {
    ComposeParams params;
    if (exact) {
      params.mode = ComposeParams::Mode::kExact;
    } else {
      params.repair.first = 1000;
    }
    Composed composed = session.compose(pieces, params);
    EXPECT_EQ(composed.report.exactness, Exactness::kExactPrefix);
    EXPECT_EQ(composed.report.moved, 0);
    EXPECT_TRUE(same_bits(bits_of(composed.branch), test::replay(alone, composed.branch.tokens())));
  }
}

TEST_P(Compose, HasTheTokensOfItsPiecesAndSaysWhatItIsMadeOf) {
  const Engine e = engine();
  Session session(e);
  const Tokens one = random(45);
  const Tokens two = random(61);
  const Tokens text = random(9);
  Branch a = session.prefill(std::span(one));
  Branch b = session.prefill(std::span(two));
  const std::int64_t before = session.stats().tokens_computed;
  Composed composed = session.compose(
      std::vector<Piece>{Piece::span(a, 0, 40), Piece::span(b, 10, 60), Piece::tokens(text)},
      {.repair = {.first = 4, .last = 2}});
  EXPECT_EQ(composed.branch.tokens(), joined(joined(part(one, 0, 40), part(two, 10, 60)), text));
  const Composition& report = composed.report;
  EXPECT_EQ(report.exactness, Exactness::kComposed);
  EXPECT_EQ(report.kept, 40);
  EXPECT_EQ(report.moved, 44);
  EXPECT_EQ(report.repaired, 6);
  EXPECT_EQ(report.computed, 9);
  EXPECT_EQ(report.moves, 1);
  EXPECT_EQ(session.stats().tokens_computed - before, 15);
  EXPECT_EQ(session.stats().tokens_moved, 44);
  // The same again costs no row, also when its branch is gone.
  const Tokens same = composed.branch.tokens();
  const test::Bits bits = bits_of(composed.branch);
  composed.branch.prune();
  Composed again = session.compose(
      std::vector<Piece>{Piece::span(a, 0, 40), Piece::span(b, 10, 60), Piece::tokens(text)},
      {.repair = {.first = 4, .last = 2}});
  EXPECT_EQ(session.stats().tokens_computed - before, 15);
  EXPECT_EQ(again.branch.tokens(), same);
  EXPECT_TRUE(same_bits(bits_of(again.branch), bits));
  // Forks inherit it, and grow by what is computed.
  Branch fork = again.branch.fork();
  fork.append(text);
  EXPECT_EQ(fork.composition().moved, 44);
  EXPECT_EQ(fork.composition().computed, 18);
  Branch cut = fork.at(60);
  EXPECT_EQ(cut.composition().kept + cut.composition().moved + cut.composition().repaired, 60);
  // What grows where something else was cut off is no part of the composition.
  Branch regrown = again.branch.at(40);
  regrown.append(random(50));
  EXPECT_EQ(regrown.composition().kept, 40);
  EXPECT_EQ(regrown.composition().moved, 0);
  EXPECT_EQ(regrown.composition().computed, 50);
}

TEST_P(Compose, MovesKAndCopiesV) {
  const Engine e = engine();
  Session session(e);
  const Tokens text = random(50);
  Branch source = session.prefill(std::span(text));
  const Tokens before = random(13);
  Composed composed =
      session.compose(std::vector<Piece>{Piece::tokens(before), Piece::span(source, 0, 50),
                                         Piece::tokens(random(1))},
                      {.repair = {.first = 0}});
  Branch plain = session.settle(composed.branch);
  // In the first layer K and V depend on token and position alone.
  const KvShape& shape = core_of(e)->store->shape();
  const auto slot = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  const std::vector<float> got = kv_of(composed.branch);
  const std::vector<float> expected = kv_of(plain);
  double error = 0;
  double norm = 0;
  for (std::size_t p = 13; p < 63; ++p) {
    for (std::size_t i = 0; i < slot; ++i) {
      const double k = got[p * 2 * slot + i] - expected[p * 2 * slot + i];
      error += k * k;
      norm += static_cast<double>(expected[p * 2 * slot + i]) * expected[p * 2 * slot + i];
      if (shape.values_are_keys && i < slot / 2) continue;  // what is rotated of a latent
      ASSERT_EQ(got[(p * 2 + 1) * slot + i], expected[(p * 2 + 1) * slot + i]);
    }
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(std::sqrt(error / norm), shape.format == KvFormat::kF32    ? 1e-6
                                     : shape.format == KvFormat::kBF16 ? 4e-3
                                                                       : 6e-2);
}

TEST(ComposeBranches, EditSharesWhatIsBeforeAndMovesWhatIsBehind) {
  const Engine e = load("llama_f32");
  Session session(e);
  Random random(3);
  const Tokens text = random.tokens(100, 256);
  Branch branch = session.prefill(std::span(text));
  const Tokens put = random.tokens(5, 256);
  const std::vector<Edit> edits = {{{20, 40}, {}}, {{60, 62}, {Piece::tokens(put)}}};
  Composed edited = session.edit(branch, edits, {.repair = {.first = 16}});
  EXPECT_EQ(
      edited.branch.tokens(),
      joined(joined(joined(part(text, 0, 20), part(text, 40, 60)), put), part(text, 62, 100)));
  EXPECT_EQ(edited.report.kept, 20);
  EXPECT_EQ(edited.report.dropped, 22);
  EXPECT_EQ(edited.report.computed, 5);
  EXPECT_EQ(edited.report.repaired, 16 + 16 + 4);
  EXPECT_EQ(edited.report.moved, 4 + 18);
  EXPECT_NE(edited.report.note, "");
  EXPECT_EQ(branch.tokens(), text);
  Composed exact = session.edit(branch, edits, {.mode = ComposeParams::Mode::kExact});
  EXPECT_EQ(exact.report.exactness, Exactness::kExactPrefix);
  const Engine alone = load("llama_f32", {.prefix_index = false});
  EXPECT_TRUE(same_bits(bits_of(exact.branch), test::replay(alone, edited.branch.tokens())));
  // Compacted again and again, what was moved is computed once it has been moved often.
  Branch day = std::move(edited.branch);
  int most = 0;
  for (int i = 0; i < 12; ++i) {
    const std::vector<Span> keep = {{0, 10}, {day.length() - 40, day.length()}};
    day = session.compact(day, keep).branch;
    day.append(random.tokens(20, 256));
    most = std::max(most, day.composition().moves);
  }
  EXPECT_EQ(most, 8);
  EXPECT_ERROR(session.edit(branch, std::vector<Edit>{{{50, 40}, {}}}), "edit: span [50, 40)");
  EXPECT_ERROR(session.compose(std::vector<Piece>{Piece::span(branch, 3, 101)}),
               "of a branch of 100 tokens");
  EXPECT_ERROR(session.compose(std::vector<Piece>{}), "compose: the composition has no tokens");
  EXPECT_ERROR(session.compact(branch, std::vector<Span>{}), "the composition has no tokens");
}

TEST(ComposeBranches, JoinsSiblingsAfterWhatTheyHaveInCommon) {
  const Engine e = load("llama_f32");
  const Engine alone = load("llama_f32", {.prefix_index = false});
  Session session(e);
  Random random(4);
  const Tokens trunk = random.tokens(40, 256);
  Branch root = session.prefill(std::span(trunk));
  std::vector<Branch> siblings = root.fork(3);
  Tokens expected = trunk;
  std::vector<const Branch*> handles;
  for (Branch& sibling : siblings) {
    const Tokens own = random.tokens(30, 256);
    sibling.append(own);
    expected = joined(expected, own);
    handles.push_back(&sibling);
  }
  JoinParams few;
  few.repair.first = 16;
  Composed composed = session.join(handles, few);
  EXPECT_EQ(composed.branch.tokens(), expected);
  EXPECT_EQ(composed.report.kept, 70);
  EXPECT_EQ(composed.report.repaired, 32 + 1);
  EXPECT_EQ(composed.report.moved, 27);
  JoinParams exact;
  exact.mode = ComposeParams::Mode::kExact;
  const std::vector<std::vector<const Branch*>> groups = {handles, {handles[2], handles[0]}};
  std::vector<Composed> joins = session.join_many(groups, exact);
  EXPECT_TRUE(same_bits(bits_of(joins[0].branch), test::replay(alone, expected)));
  EXPECT_EQ(joins[1].branch.length(), 100);
  exact.target_kl = 1;
  EXPECT_ERROR(session.join_many(groups, exact), "target_kl is 1");
}

TEST(ComposeBranches, PlainPromptsNeverFindWhatWasMoved) {
  const Engine e = load("llama_f32");
  const Engine alone = load("llama_f32", {.prefix_index = false});
  Session session(e);
  Random random(5);
  Branch a = session.prefill(random.tokens(50, 256));
  Branch b = session.prefill(random.tokens(50, 256));
  Composed composed = session.compose(std::vector<Piece>{
      Piece::span(a, 0, 50), Piece::span(b, 0, 50), Piece::tokens(random.tokens(4, 256))});
  const Tokens tokens = composed.branch.tokens();
  Branch plain = session.prefill(std::span(tokens));
  EXPECT_TRUE(same_bits(bits_of(plain), test::replay(alone, tokens)));
  EXPECT_FALSE(same_bits(bits_of(composed.branch), bits_of(plain)));
  EXPECT_EQ(plain.composition().exactness, Exactness::kExactPrefix);
}

TEST(ComposeBranches, EstimatesAndAuditsItsError) {
  const Engine e = load("llama_f32");
  Session session(e);
  Random random(6);
  Branch a = session.prefill(random.tokens(60, 256));
  Branch b = session.prefill(random.tokens(100, 256));
  const std::vector<Piece> pieces = {Piece::span(a, 0, 60), Piece::span(b, 0, 100),
                                     Piece::tokens(random.tokens(12, 256))};
  Composed composed = session.compose(pieces, {.repair = {.first = 2}, .target_kl = 1000});
  ASSERT_TRUE(composed.report.estimate.has_value());
  EXPECT_EQ(composed.report.estimate->positions, 12);
  EXPECT_GT(composed.report.estimate->kl_mean, 0);
  EXPECT_EQ(composed.report.repaired, 4);
  const Estimate audit = session.audit(composed.branch);
  EXPECT_EQ(audit.kind, Estimate::Kind::kAudit);
  EXPECT_EQ(audit.positions, 32);
  EXPECT_GT(audit.kl_mean, 0);
  EXPECT_GE(audit.kl_max, audit.kl_p95);
  // What cannot be had within the target is computed.
  Composed exact = session.compose(pieces, {.target_kl = 1e-12});
  EXPECT_EQ(exact.report.exactness, Exactness::kExactPrefix);
  EXPECT_NE(exact.report.note, "");
  EXPECT_LT(session.audit(exact.branch).kl_max, 1e-12);
}

TEST(ComposeBranches, ThatWaitLeaveThePagesOfTheirSourcesToOthers) {
  const Engine e = load("llama_f32", {.kv_tokens = 320, .prefix_index = false});
  Session session(e);
  Random random(13);
  const Tokens text = random.tokens(160, 256);
  Branch waits;
  {
    Branch source = session.prefill(std::span(text));
    core_of(session)->options.budget.tokens =
        160;  // so that nothing of the composition is computed
    waits = session
                .compose(std::vector<Piece>{Piece::tokens(random.tokens(8, 256)),
                                            Piece::span(source, 0, 160)})
                .branch;
    EXPECT_EQ(waits.finish(), Finish::kBudget);
    core_of(session)->options.budget.tokens = 0;
  }
  Branch large = session.prefill(random.tokens(300, 256));
  EXPECT_EQ(large.finish(), Finish::kRunning);
}

TEST(ComposeBranches, ComeBackFromSnapshotsAsTheyWere) {
  const Engine e = load("llama_f32");
  Session session(e);
  Random random(8);
  Branch a = session.prefill(random.tokens(50, 256));
  Branch b = session.prefill(random.tokens(50, 256));
  const ComposeParams few{.repair = {.first = 16}};
  Branch inner =
      session.compose(std::vector<Piece>{Piece::span(a, 0, 50), Piece::span(b, 10, 50)}, few)
          .branch;
  Composed composed =
      session.compose(std::vector<Piece>{Piece::span(b, 0, 20), Piece::span(inner, 5, 80),
                                         Piece::tokens({1, 2, 3})},
                      few);
  const test::Bits bits = bits_of(composed.branch);
  for (const bool kv : {true, false}) {
    const TemporaryFolder folder;
    const auto file = folder.path() / "session";
    const std::vector<const Branch*> one = {&composed.branch};
    Branch* handle = &composed.branch;
    session.save(file, std::span<Branch* const>(&handle, 1), {.kv = kv});
    const Engine other = load("llama_f32");
    Restored restored = other.restore(file);
    Branch& branch = restored.branches.front();
    EXPECT_TRUE(same_bits(bits_of(branch), bits)) << kv;
    EXPECT_EQ(branch.composition().moved, composed.report.moved);
    EXPECT_EQ(branch.composition().moves, 2);
    EXPECT_EQ(restored.session.stats().tokens_moved == 0, kv);
  }
}

}  // namespace
}  // namespace dendrite
