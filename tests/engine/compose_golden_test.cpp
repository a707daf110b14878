// Compositions of the shipped model of contexts against tools/train/compose.py, which makes them in
// PyTorch by another way: whole forward passes of each piece, masks and tables of positions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dendrite/compose.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<Token>;

/// The largest difference of logits.
double apart(std::span<const float> ours, const std::vector<float>& theirs) {
  double most = 0;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(ours[i]) - theirs[i]));
  }
  return most;
}

TEST(ComposeGolden, LogitsAreThoseOfPyTorch) {
  EngineOptions options;
  options.dtype = "f32";
  const Engine engine = test::load("dendrite-compose", options);
  Session session(engine);
  std::ifstream file(DENDRITE_MODELS_DIR "/dendrite-compose/compose_golden.json");
  const Json golden = Json::parse(file);
  ASSERT_EQ(golden.at("cases").size(), 3U);
  for (const Json& one : golden.at("cases")) {
    const Tokens system = one.at("system");
    const Tokens left = one.at("left");
    const Tokens question = one.at("question");
    SCOPED_TRACE(::testing::Message() << "left of " << left.size() << " tokens, first "
                                      << one.at("first") << ", last " << one.at("last"));
    std::vector<Piece> pieces = {Piece::tokens(system)};
    Tokens all = system;
    for (const Json& document : one.at("documents")) {
      const Tokens tokens = document;
      all.insert(all.end(), tokens.begin(), tokens.end());
      pieces.push_back(Piece::chunk(session.register_chunk(tokens, {.prefix = left})));
    }
    all.insert(all.end(), question.begin(), question.end());
    pieces.push_back(Piece::tokens(question));
    Composed composed =
        session.compose(pieces, {.repair = {.first = one.at("first"), .last = one.at("last")}});
    EXPECT_GT(composed.report.moved, 0);
    const std::vector<std::vector<float>> rows = one.at("logits");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Branch at = composed.branch.at(composed.branch.length() + 1 -
                                     static_cast<std::int64_t>(rows.size() - i));
      EXPECT_LT(apart(at.distribution().logits(), rows[i]), 1e-3) << "row " << i;
    }
    Branch plain = session.prefill(all);
    const std::vector<float> full = one.at("full");
    EXPECT_LT(apart(plain.distribution().logits(), full), 1e-3);
    // What is compared differs from an ordinary computation by more than that.
    EXPECT_GT(apart(composed.branch.distribution().logits(), full), 4e-3);
  }
}

}  // namespace
}  // namespace dendrite
