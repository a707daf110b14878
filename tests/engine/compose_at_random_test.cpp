// Compositions of compositions, at random: each has the bits of its recipe.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "dendrite/compose.h"
#include "engine/compose_cases.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::load;
using test::Random;
using test::same_bits;
using test::Tokens;

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
  RandomCompositions(const ComposeCase& model, std::uint32_t seed, const EngineOptions& options)
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
    core_of(engine_)->memories().clear();
    EXPECT_EQ(core_of(engine_)->tree->pool().used_pages(), 0);
    EXPECT_EQ(core_of(engine_)->tree->stats().segments, 0);
  }
  Stats stats() const { return session_.stats(); }
  EngineCore& core() { return *core_of(engine_); }

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

class ComposeAtRandom : public ::testing::TestWithParam<ComposeCase> {};
INSTANTIATE_TEST_SUITE_P(Models, ComposeAtRandom, ::testing::ValuesIn(kComposeCases));

TEST_P(ComposeAtRandom, ReplaysToTheBitInAnyOrderWithFewPages) {
  std::int64_t regenerated = 0;
  std::int64_t moved = 0;
  for (std::uint32_t seed = 0; seed < static_cast<std::uint32_t>(test::scaled(6)); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCompositions program(GetParam(), seed,
                               {.dtype = test::dtype_of(GetParam().dtype),
                                .kv_dtype = test::kv_dtype_of(GetParam().dtype),
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

}  // namespace
}  // namespace dendrite
