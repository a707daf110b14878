// With drafts, texts are distributed as the model says: against all texts of three tokens, their
// probabilities computed one by one. And walks over drafts that are wrong are found to be.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "support/scripted_drafter.h"

namespace dendrite {
namespace {

using test::scripted;
using test::ScriptedDraft;
using test::ScriptedLane;
using test::Tokens;

constexpr std::int64_t kVocab = 320;
constexpr std::array<Token, 4> kLetters = {69, 70, 71, 72};  // a, b, c, d: all that may come
constexpr std::size_t kFirst = kLetters.size();
constexpr std::size_t kTexts = kFirst * kFirst * kFirst;

/// By letters, of each of three.
using Text = std::array<std::size_t, 3>;

std::size_t place_of(const Text& text) {
  return (text[0] * kFirst + text[1]) * kFirst + text[2];
}

/// Upper tail of Pearson's statistic, as a deviate of the normal distribution (Wilson and Hilferty
/// 1931): above 3.7 one run in ten thousand. Cells that few runs fall into are one.
double deviate(const std::vector<std::int64_t>& seen, const std::vector<double>& expected) {
  const auto runs = static_cast<double>(std::reduce(seen.begin(), seen.end()));
  double statistic = 0, rest_seen = 0, rest = 0, cells = 0;
  const auto add = [&](double got, double wanted) {
    statistic += (got - wanted) * (got - wanted) / wanted;
    ++cells;
  };
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double wanted = runs * expected[i];
    if (wanted >= 5) {
      add(static_cast<double>(seen[i]), wanted);
    } else {
      rest_seen += static_cast<double>(seen[i]);
      rest += wanted;
    }
  }
  if (rest > 0) {
    add(rest_seen, rest);
  } else if (rest_seen > 0) {
    return std::numeric_limits<double>::infinity();  // what cannot come
  }
  const double freedom = cells - 1;
  const double third = 2 / (9 * freedom);
  return (std::cbrt(statistic / freedom) - (1 - third)) / std::sqrt(third);
}

/// Of a dozen statistics, whose seeds are fixed: none is near it.
constexpr double kFar = 4.4;

/// Probabilities of the letters after each text, from its logits; the definition, word by word.
using Row = std::array<double, kFirst>;

Row row_of(const std::vector<float>& logits, const Tokens& history, const DecodeParams& params) {
  const double penalty = params.repetition_penalty.value_or(1);
  Row row;
  for (std::size_t i = 0; i < kFirst; ++i) {
    double logit = logits[static_cast<std::size_t>(kLetters[i])];
    if (std::ranges::find(history, kLetters[i]) != history.end()) {
      logit = logit < 0 ? logit * penalty : logit / penalty;
    }
    row[i] = std::exp(logit / *params.temperature);
    if (params.constraint && i == kFirst - 1) row[i] = 0;  // it rules that letter out
  }
  const auto normalize = [&row] {
    const double sum = std::reduce(row.begin(), row.end());
    for (double& p : row) p /= sum;
  };
  normalize();
  std::array<std::size_t, kFirst> order{0, 1, 2, 3};
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return row[i]; });
  double mass = 0;
  for (const std::size_t i : order) {
    const double own = row[i];
    if (mass >= params.top_p.value_or(1)) row[i] = 0;
    mass += own;
  }
  normalize();
  return row;
}

/// All texts of three letters, by what they begin with.
struct Table {
  Row first;
  std::array<Row, kFirst> second;
  std::array<std::array<Row, kFirst>, kFirst> third;

  std::vector<double> joint() const {
    std::vector<double> out;
    for (std::size_t a = 0; a < kFirst; ++a) {
      for (std::size_t b = 0; b < kFirst; ++b) {
        for (std::size_t c = 0; c < kFirst; ++c) {
          out.push_back(first[a] * second[a][b] * third[a][b][c]);
        }
      }
    }
    return out;
  }
};

class DraftDistributionTest : public ::testing::Test {
 protected:
  static constexpr int kBranches = 100;  // a call
  static constexpr int kCalls = 60;

  static DecodeParams letters() {
    DecodeParams params{.max_tokens = 3, .temperature = 1, .ignore_eos = true};
    for (Token token = 0; token < kVocab; ++token) {
      if (std::ranges::find(kLetters, token) != kLetters.end()) continue;
      params.logit_bias.emplace_back(token, -1000.F);
    }
    return params;
  }

  static Tokens prompt() {
    Tokens tokens = test::Random(11).tokens(12, kVocab);
    tokens.push_back(kLetters[1]);
    return tokens;
  }

  Table table_of(const DecodeParams& params) {
    Session session(engine_);
    Branch root = session.prefill(std::span<const Token>(prompt()));
    const auto row_after = [&](std::initializer_list<std::size_t> text) {
      Branch branch = root.fork();
      for (const std::size_t letter : text) branch.append(std::span(&kLetters[letter], 1));
      return row_of(test::logits_of(branch), branch.tokens(), params);
    };
    Table table;
    table.first = row_after({});
    for (std::size_t a = 0; a < kFirst; ++a) {
      table.second[a] = row_after({a});
      for (std::size_t b = 0; b < kFirst; ++b) table.third[a][b] = row_after({a, b});
    }
    return table;
  }

  /// Texts of all calls, in the order of the branches.
  std::vector<Text> texts_of(const DecodeParams& params) {
    Session session(engine_, {.seed = 2});
    Branch root = session.prefill(std::span<const Token>(prompt()));
    std::vector<Text> texts;
    for (int call = 0; call < kCalls; ++call) {
      std::vector<Branch> branches = root.fork(kBranches);
      for (const Generation& out : session.decode(branches, params)) {
        Text& text = texts.emplace_back();
        for (std::size_t i = 0; i < 3; ++i) {
          text[i] = static_cast<std::size_t>(std::ranges::find(kLetters, out.ids.at(i)) -
                                             kLetters.begin());
        }
      }
    }
    stats_ = session.stats();
    return texts;
  }

  /// All that may come, as one tree, or the letters that are likely.
  void draft_all(std::size_t letters) {
    test::draft_by(engine_, [letters](const ScriptedLane&, ScriptedDraft& draft) {
      for (std::size_t a = 0; a < letters; ++a) {
        const std::int32_t first = draft.add(-1, kLetters[a]);
        for (std::size_t b = 0; b < letters; ++b) draft.add(first, kLetters[b]);
      }
    });
  }

  static std::vector<std::int64_t> counts_of(const std::vector<Text>& texts) {
    std::vector<std::int64_t> counts(kTexts);
    for (const Text& text : texts) ++counts[place_of(text)];
    return counts;
  }

  /// With drafts: what is drawn without them, and distributed as it is to be.
  void expect_exact(DecodeParams params) {
    const std::vector<double> expected = table_of(params).joint();
    const std::vector<Text> plain = texts_of(params);
    for (const bool from_session : {true, false}) {
      draft_all(3);
      DecodeParams drafted = scripted(params, 12);
      if (from_session) drafted.speculate = Speculate::kSuffix;
      const std::vector<Text> texts = texts_of(drafted);
      EXPECT_GT(stats_.tokens_accepted, kBranches * kCalls / 10);
      EXPECT_GT(stats_.speculation.tokens_proposed - stats_.tokens_accepted,
                kBranches * kCalls / 10);
      EXPECT_EQ(texts, plain);
      EXPECT_LT(deviate(counts_of(texts), expected), kFar);
    }
  }

  Engine engine_ = test::load("qwen3", {.kernels = "portable", .prefix_index = false}, "");
  Stats stats_;
};

TEST_F(DraftDistributionTest, IsTheModels) {
  expect_exact(letters());
}

TEST_F(DraftDistributionTest, IsTheModelsUnderTopP) {
  DecodeParams params = letters();
  params.temperature = 0.7;
  params.top_p = 0.8;
  expect_exact(params);
}

TEST_F(DraftDistributionTest, IsTheModelsUnderAPenalty) {
  DecodeParams params = letters();
  params.repetition_penalty = 1.8;
  expect_exact(params);
}

TEST_F(DraftDistributionTest, IsTheModelsUnderAConstraint) {
  DecodeParams params = letters();
  params.constraint = Constraint::regex("[abc]{3}");
  expect_exact(params);
}

/// Branches that walk one tree in the same steps are independent of each other.
TEST_F(DraftDistributionTest, OfPairsIsThatOfBoth) {
  draft_all(4);
  const Row first = table_of(letters()).first;
  const std::vector<Text> texts = texts_of(scripted(letters(), 20));
  std::vector<std::int64_t> seen(kFirst * kFirst);
  std::vector<double> expected;
  for (std::size_t i = 0; i < texts.size(); i += 2) {
    ++seen[texts[i][0] * kFirst + texts[i + 1][0]];
  }
  for (const double a : first) {
    for (const double b : first) expected.push_back(a * b);
  }
  EXPECT_LT(deviate(seen, expected), kFar);
}

// Walks that are known to be exact or not, as often as the tests above draw: what these can find.

class Walk {
 public:
  explicit Walk(const Table& table) : table_(table) {}

  std::vector<std::int64_t> counts(int runs, const std::function<std::size_t(const Row&)>& draw) {
    std::vector<std::int64_t> out(kTexts);
    for (int i = 0; i < runs; ++i) {
      const std::size_t a = draw(table_.first);
      const std::size_t b = draw(table_.second[a]);
      ++out[place_of({a, b, draw(table_.third[a][b])})];
    }
    return out;
  }

  double uniform() { return static_cast<double>(random_()) * 0x1p-32; }
  std::size_t draw(const Row& row) {
    double left = uniform() * std::reduce(row.begin(), row.end());
    for (std::size_t i = 0; i < kFirst; ++i) {
      if (left < row[i]) return i;
      left -= row[i];
    }
    return kFirst - 1;
  }
  /// What the drafter says is taken as often as the model says it more, else the rest is drawn
  /// from.
  std::size_t verify(const Row& row, const Row& drafter, std::size_t drafted) {
    if (uniform() * drafter[drafted] < row[drafted]) return drafted;
    Row rest;
    for (std::size_t i = 0; i < kFirst; ++i) rest[i] = std::max(0.0, row[i] - drafter[i]);
    return draw(rest);
  }

 private:
  const Table& table_;
  std::mt19937 random_{3};
};

TEST_F(DraftDistributionTest, OfWrongWalksIsFoundToBeWrong) {
  const Table table = table_of(letters());
  const std::vector<double> expected = table.joint();
  const Row drafter = {0.1, 0.2, 0.3, 0.4};
  Walk walk(table);
  const auto deviate_of = [&](const std::function<std::size_t(const Row&)>& draw) {
    return deviate(walk.counts(kBranches * kCalls, draw), expected);
  };
  EXPECT_LT(deviate_of([&](const Row& row) { return walk.draw(row); }), kFar);
  EXPECT_LT(
      deviate_of([&](const Row& row) { return walk.verify(row, drafter, walk.draw(drafter)); }),
      kFar);
  // The likeliest token is taken where it was drafted, and others are drawn where it was not.
  EXPECT_GT(deviate_of([&](const Row& row) {
              const std::size_t drafted = walk.draw(drafter);
              const auto likeliest = std::ranges::max_element(row) - row.begin();
              return drafted == std::size_t(likeliest) ? drafted : walk.draw(row);
            }),
            2 * kFar);
  // What was refused may be drawn once more.
  EXPECT_GT(deviate_of([&](const Row& row) {
              const std::size_t drafted = walk.draw(drafter);
              return walk.uniform() * drafter[drafted] < row[drafted] ? drafted : walk.draw(row);
            }),
            2 * kFar);
  // The tree grows by what was drawn for it: of two the likelier is kept.
  EXPECT_GT(deviate_of([&](const Row& row) {
              const std::size_t a = walk.draw(drafter);
              const std::size_t b = walk.draw(drafter);
              return walk.verify(row, drafter, row[a] < row[b] ? b : a);
            }),
            2 * kFar);
}

}  // namespace
}  // namespace dendrite
