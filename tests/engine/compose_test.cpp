// Compositions: what they are made of decides every bit, whatever was shared, evicted or computed
// in between; and where nothing is moved they are what prefill gives.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <thread>

#include "dendrite/compose.h"
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

/// A model and a compute type.
struct Case {
  const char* model;
  const char* dtype;
  int page_tokens = 16;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " " << c.dtype << " " << c.page_tokens;
}

class Compose : public ::testing::TestWithParam<Case> {
 protected:
  Engine engine(EngineOptions options = {}) const {
    options.dtype = GetParam().dtype;
    options.page_tokens = GetParam().page_tokens;
    return load(GetParam().model, options);
  }
  Tokens random(std::int64_t count) { return random_.tokens(count, 256); }

  Random random_{11};
};
INSTANTIATE_TEST_SUITE_P(Models, Compose,
                         ::testing::Values(Case{"llama_f32", "f32", 8},
                                           Case{"tinyllama", "bf16", 16},
                                           Case{"mistral_swa", "f32", 32},
                                           Case{"qwen3", "bf16", 8}));

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
  const KvShape& shape = e.core()->store->shape();
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
      ASSERT_EQ(got[(p * 2 + 1) * slot + i], expected[(p * 2 + 1) * slot + i]);
    }
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(std::sqrt(error / norm), shape.dtype == DType::kF32 ? 1e-6 : 4e-3);
}

/// How a branch came about, so that it can be made again elsewhere.
struct Recipe {
  enum class Kind : std::uint8_t { kPrompt, kCompose, kAt, kAppend };
  struct Part {
    Tokens tokens{};
    std::shared_ptr<const Recipe> source{};
    Span at{};
  };
  Kind kind = Kind::kPrompt;
  Tokens tokens{};
  std::shared_ptr<const Recipe> of{};
  std::int64_t length = 0;
  std::vector<Part> parts{};
  Repair repair{};
};
using RecipeOf = std::shared_ptr<const Recipe>;

Branch make(Session& session, const Recipe& recipe, std::map<const Recipe*, Branch>& made);

Branch& made_of(Session& session, const RecipeOf& recipe, std::map<const Recipe*, Branch>& made) {
  if (!made[recipe.get()].valid()) made[recipe.get()] = make(session, *recipe, made);
  return made[recipe.get()];
}

Branch make(Session& session, const Recipe& recipe, std::map<const Recipe*, Branch>& made) {
  switch (recipe.kind) {
    case Recipe::Kind::kPrompt:
      return session.prefill(std::span(recipe.tokens));
    case Recipe::Kind::kAt:
      return made_of(session, recipe.of, made).at(recipe.length);
    case Recipe::Kind::kAppend: {
      Branch branch = made_of(session, recipe.of, made).fork();
      branch.append(recipe.tokens);
      return branch;
    }
    case Recipe::Kind::kCompose:
      break;
  }
  std::vector<Piece> pieces;
  for (const Recipe::Part& part : recipe.parts) {
    if (part.source == nullptr) {
      pieces.push_back(Piece::tokens(part.tokens));
    } else {
      pieces.push_back(
          Piece::span(made_of(session, part.source, made), part.at.begin, part.at.end));
    }
  }
  return session.compose(pieces, {.repair = recipe.repair}).branch;
}

/// Branches that are composed of each other, forked, cut, grown and pruned, in any order, in a pool
/// that is too small for all of them: each has the bits of its recipe.
class RandomCompositions {
 public:
  RandomCompositions(const Case& model, std::uint32_t seed, const EngineOptions& options)
      : random_(seed), engine_(load(model.model, options)), session_(engine_) {
    alone_options_ = options;
    alone_options_.kv_tokens = 16384;
    alone_options_.prefix_index = false;
    model_ = model.model;
  }

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operate();
      if (::testing::Test::HasFailure()) FAIL() << "operation " << i;
    }
    for (std::size_t i = 0; i < branches_.size(); ++i) check(i);
    branches_.clear();
    recipes_.clear();
    engine_.core()->memories().clear();
    EXPECT_EQ(engine_.core()->tree->pool().used_pages(), 0);
    EXPECT_EQ(engine_.core()->tree->stats().segments, 0);
  }
  Stats stats() const { return session_.stats(); }
  EngineCore& core() { return *engine_.core(); }

 private:
  std::size_t any() { return static_cast<std::size_t>(random_.below(std::ssize(branches_))); }
  void add(Branch branch, Recipe recipe) {
    branches_.push_back(std::move(branch));
    recipes_.push_back(std::make_shared<const Recipe>(std::move(recipe)));
  }
  Tokens tokens(std::int64_t most) { return random_.tokens(random_.in(1, most), 256); }

  void operate() {
    if (branches_.size() < 3 || random_.one_in(8)) return prompt();
    if (branches_.size() > 12) return drop(any());
    switch (random_.below(10)) {
      case 0:
        return drop(any());
      case 1: {
        const std::size_t i = any();
        const std::int64_t length = random_.in(1, branches_[i].length());
        return add(branches_[i].at(length),
                   {.kind = Recipe::Kind::kAt, .of = recipes_[i], .length = length});
      }
      case 2:
      case 3: {
        const std::size_t i = any();
        Branch grown = branches_[i].fork();
        const Tokens more = tokens(20);
        grown.append(more);
        return add(std::move(grown),
                   {.kind = Recipe::Kind::kAppend, .tokens = more, .of = recipes_[i]});
      }
      case 4:
      case 5:
        return check(any());
      default:
        return compose();
    }
  }
  void prompt() {
    const Tokens text = tokens(70);
    add(session_.prefill(std::span(text)), {.kind = Recipe::Kind::kPrompt, .tokens = text});
  }
  void drop(std::size_t i) {
    branches_.erase(branches_.begin() + static_cast<std::ptrdiff_t>(i));
    recipes_.erase(recipes_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void compose() {
    Recipe recipe{.kind = Recipe::Kind::kCompose};
    recipe.repair = {.first = random_.below(6) * random_.below(4), .last = random_.below(4)};
    std::vector<Piece> pieces;
    std::int64_t length = 0;
    const std::int64_t count = random_.in(1, 4);
    for (std::int64_t i = 0; i < count && length < 160; ++i) {
      if (random_.one_in(4)) {
        recipe.parts.push_back({.tokens = tokens(10)});
        pieces.push_back(Piece::tokens(recipe.parts.back().tokens));
        length += std::ssize(recipe.parts.back().tokens);
        continue;
      }
      const std::size_t of = any();
      const std::int64_t begin =
          i == 0 && random_.one_in(2) ? 0 : random_.below(branches_[of].length());
      const std::int64_t end = random_.in(begin, std::min(branches_[of].length(), begin + 60));
      recipe.parts.push_back({.source = recipes_[of], .at = {begin, end}});
      pieces.push_back(Piece::span(branches_[of], begin, end));
      length += end - begin;
    }
    if (length == 0) return;
    Composed composed = session_.compose(pieces, {.repair = recipe.repair});
    ASSERT_EQ(composed.report.kept + composed.report.moved + composed.report.repaired +
                  composed.report.computed,
              length);
    add(std::move(composed.branch), std::move(recipe));
  }
  void check(std::size_t i) {
    const test::Bits got = bits_of(branches_[i]);
    if (std::ssize(got.kv) < branches_[i].length()) return;  // no room for it
    const Engine alone = load(model_, alone_options_);
    Session session(alone);
    std::map<const Recipe*, Branch> made;
    Branch& replayed = made_of(session, recipes_[i], made);
    ASSERT_EQ(branches_[i].tokens(), replayed.tokens());
    const test::Bits expected = bits_of(replayed);
    EXPECT_TRUE(same_bits(got.kv, expected.kv))
        << "K and V of " << branches_[i].length() << " tokens, " << branches_[i].composition().moved
        << " moved\n"
        << core().tree->dump();
    EXPECT_TRUE(same_bits(got.logits, expected.logits));
  }

  Random random_;
  Engine engine_;
  Session session_;
  EngineOptions alone_options_;
  std::string model_;
  std::vector<Branch> branches_;
  std::vector<RecipeOf> recipes_;
};

TEST_P(Compose, ReplaysToTheBitInAnyOrderWithFewPages) {
  std::int64_t regenerated = 0;
  std::int64_t moved = 0;
  for (std::uint32_t seed = 0; seed < static_cast<std::uint32_t>(test::scaled(6)); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCompositions program(GetParam(), seed,
                               {.dtype = GetParam().dtype,
                                .page_tokens = GetParam().page_tokens,
                                .kv_tokens = seed % 3 == 0 ? 16384 : 448,
                                .kv_debug = seed % 2 == 0});
    if (seed % 4 == 1) {
      program.core().moves_a_step = 5;
      program.core().step_rows = 7;
    }
    ASSERT_NO_FATAL_FAILURE(program.run(120));
    regenerated += program.stats().tokens_regenerated;
    moved += program.stats().tokens_moved;
  }
  EXPECT_GT(moved, 0);
  EXPECT_GT(regenerated, 0);
}

TEST(ComposeBranches, EditSharesWhatIsBeforeAndMovesWhatIsBehind) {
  const Engine e = load("llama_f32");
  Session session(e);
  Random random(3);
  const Tokens text = random.tokens(100, 256);
  Branch branch = session.prefill(std::span(text));
  const Tokens put = random.tokens(5, 256);
  const std::vector<Edit> edits = {{{20, 40}, {}}, {{60, 62}, {Piece::tokens(put)}}};
  Composed edited = session.edit(branch, edits);
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
  Composed composed = session.join(handles);
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
    session.core()->options.budget.tokens = 160;  // so that nothing of the composition is computed
    waits = session
                .compose(std::vector<Piece>{Piece::tokens(random.tokens(8, 256)),
                                            Piece::span(source, 0, 160)})
                .branch;
    EXPECT_EQ(waits.finish(), Finish::kBudget);
    session.core()->options.budget.tokens = 0;
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
  Branch inner =
      session.compose(std::vector<Piece>{Piece::span(a, 0, 50), Piece::span(b, 10, 50)}).branch;
  Composed composed = session.compose(std::vector<Piece>{
      Piece::span(b, 0, 20), Piece::span(inner, 5, 80), Piece::tokens({1, 2, 3})});
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
  EXPECT_EQ(composed.report.repaired, 16);
  EXPECT_EQ(composed.report.moved, 34);
  EXPECT_EQ(session.stats().tokens_computed, filled + 50 + 16 + 3);
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
  const ChunkIndexStats stats = e.core()->chunks->stats();
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
