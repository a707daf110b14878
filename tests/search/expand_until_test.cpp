#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "dendrite/search.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::Tokens;

TEST(ExpandUntil, FindsEveryContinuationAboveTheBar) {
  const Engine shipped = load("dendrite-24");
  Session s(shipped);
  const Token newline = shipped.encode("\n", false).back();
  Branch root = s.prefill("P 24: 4 6 7 9\n");
  std::vector<Branch> nodes = root.fork(3);
  nodes[1].append("9-6=3 | 3 4 7\n");
  // What a node has gone through does not count against its continuations.
  s.decode(nodes[2], {.max_tokens = 2, .temperature = 3.0});
  ASSERT_LT(nodes[2].logprob(), -1);
  const double bar = 0.06;
  const auto found = expand_until(s, nodes, newline, bar, 40).children;
  ASSERT_EQ(found.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GE(found[i].size(), 1u);
    double mass = 0;
    std::set<std::string> texts;
    for (const Branch& branch : found[i]) {
      const Tokens all = branch.tokens();
      EXPECT_EQ(all.back(), newline);
      const Tokens rest(all.begin() + nodes[i].length(), all.end());
      EXPECT_EQ(std::count(rest.begin(), rest.end(), newline), 1);
      const double logprob = nodes[i].score_tokens({rest})[0].logprob;
      EXPECT_NEAR(branch.logprob() - nodes[i].logprob(), logprob, 1e-6);
      EXPECT_GE(logprob, std::log(bar) - 1e-6);
      mass += std::exp(logprob);
      EXPECT_TRUE(texts.insert(branch.text()).second);
    }
    EXPECT_LE(mass, 1 + 1e-5);
    // What the model samples is among them, unless it is less likely than the bar.
    std::vector<Branch> samples = nodes[i].fork(30);
    const auto lines =
        s.decode(samples, {.max_tokens = 40, .stop_tokens = {newline}, .temperature = 1.0});
    for (std::size_t k = 0; k < lines.size(); ++k) {
      if (lines[k].finish != Finish::kStop) continue;
      if (nodes[i].score_tokens({lines[k].ids})[0].logprob < std::log(bar) + 1e-6) continue;
      EXPECT_TRUE(texts.contains(samples[k].text())) << samples[k].text();
    }
  }
}

}  // namespace
}  // namespace dendrite
