#include "dendrite/search/trace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "search/search_support.h"

namespace dendrite {
namespace {

const std::string kPrompt = "P 24: 4 6 7 9\n";

double value_of(const Candidate& candidate) {
  return candidate.text.empty() ? std::nan("") : static_cast<double>(candidate.text.back() % 7) / 6;
}

/// The same search each time, for every strategy.
template <typename Strategy>
Strategy strategy_for_test();
template <>
TreeOfThoughts strategy_for_test() {
  TreeOfThoughts s;
  s.depth = 2;
  s.width = 2;
  s.steps.candidates = 4;
  s.steps.judgement.evaluate = value_of;
  return s;
}
template <>
DepthFirst strategy_for_test() {
  DepthFirst s;
  s.depth = 2;
  s.steps.candidates = 3;
  return s;
}
template <>
BestFirst strategy_for_test() {
  BestFirst s;
  s.max_expansions = 4;
  s.steps.candidates = 3;
  return s;
}
template <>
BeamSearch strategy_for_test() {
  return {.width = 4, .max_tokens = 12};
}
template <>
BestOfN strategy_for_test() {
  BestOfN s;
  s.sampling = {.max_tokens = 20, .stop = {"\n"}, .temperature = 1.0};
  return s;
}
template <>
SelfConsistency strategy_for_test() {
  SelfConsistency s;
  s.sampling = {.max_tokens = 3, .temperature = 1.0};
  return s;
}
template <>
Mcts strategy_for_test() {
  Mcts s;
  s.rule = Mcts::Rule::kPuct;
  s.iterations = 12;
  s.steps.candidates = 3;
  s.steps.judgement.evaluate = value_of;
  return s;
}
template <>
SelfRefinement strategy_for_test() {
  SelfRefinement s;
  s.draft = {.max_tokens = 12, .temperature = 1.0};
  s.criticise = [](Session&, std::span<Branch> drafts) {
    return std::vector<Critique>(drafts.size(), {.value = 1, .feedback = "?"});
  };
  return s;
}
template <>
ForkJoin strategy_for_test() {
  ForkJoin s;
  s.open = "\n";
  s.close = " ";
  s.trunk = {.max_tokens = 40, .temperature = 1.0};
  s.child = {.max_tokens = 12, .temperature = 1.0};
  return s;
}

struct Traced {
  std::string text;
  std::vector<ThoughtRecord> tree;
};

template <typename Strategy>
Traced traced(std::uint64_t seed, const EngineOptions& options, bool times) {
  const Engine engine = test::load("dendrite-24", options);
  Session session(engine, {.seed = seed});
  std::stringstream out;
  Strategy strategy = strategy_for_test<Strategy>();
  SearchTrace trace(out, trace_header(engine, describe(strategy), seed, kPrompt), times);
  strategy.on_event = [&](const SearchEvent& event) { trace.on(event); };
  SearchResult result = session.run_tree(strategy, kPrompt);
  trace.finish(result);
  return {out.str(), std::move(result.tree)};
}

template <typename Strategy>
class TraceOf : public ::testing::Test {};
using Strategies = ::testing::Types<TreeOfThoughts, DepthFirst, BestFirst, BeamSearch, BestOfN,
                                    SelfConsistency, Mcts, SelfRefinement, ForkJoin>;
TYPED_TEST_SUITE(TraceOf, Strategies);

TYPED_TEST(TraceOf, IsTheSameBytesWhateverTheThreadsAndReplays) {
  const Traced one = traced<TypeParam>(7, {.threads = 1}, false);
  EXPECT_EQ(traced<TypeParam>(7, {.threads = 3, .page_tokens = 8}, false).text, one.text);
  const auto again = [](const TraceHeader& header, std::ostream& out) {
    EXPECT_EQ(header.strategy, describe(strategy_for_test<TypeParam>()).name);
    EXPECT_EQ(header.prompt, kPrompt);
    out << traced<TypeParam>(header.seed, {.threads = 2}, true).text;
  };
  std::stringstream in(one.text);
  EXPECT_EQ(replay(in, again), std::nullopt);  // times are no difference
  if constexpr (!std::is_same_v<TypeParam, BeamSearch>) {
    std::stringstream other(traced<TypeParam>(8, {.threads = 1}, false).text);
    std::stringstream same(one.text);
    const std::optional<TraceDifference> difference = compare_traces(same, other);
    ASSERT_TRUE(difference.has_value());
    EXPECT_EQ(difference->line, 1);  // the seed
  }
}

TYPED_TEST(TraceOf, ReadsBackWhatTheSearchDid) {
  const Traced one = traced<TypeParam>(7, {.threads = 1}, false);
  std::stringstream in(one.text);
  const Trace trace = read_trace(in);
  EXPECT_EQ(trace.header.version, kTraceVersion);
  EXPECT_EQ(trace.header.seed, 7u);
  EXPECT_EQ(trace.header.model, "dendrite-24");
  EXPECT_EQ(trace.header.params, describe(strategy_for_test<TypeParam>()).params);
  std::vector<TraceEvent> nodes(one.tree.size());
  std::vector<int> kept(one.tree.size(), 0);
  for (const TraceEvent& event : trace.events) {
    EXPECT_EQ(event.ms, -1);
    TraceEvent& node = nodes.at(static_cast<std::size_t>(event.node) - 1);
    if (event.kind == SearchEvent::Kind::kProposed) node = event;
    if (event.kind == SearchEvent::Kind::kJudged) node.value = event.value;
    if (event.kind == SearchEvent::Kind::kVisited) {
      node.value = event.value;
      node.visits = event.visits;
    }
    if (event.kind == SearchEvent::Kind::kKept) kept[static_cast<std::size_t>(event.node) - 1] = 1;
  }
  const Engine engine = test::load("dendrite-24");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const ThoughtRecord& record = one.tree[i];
    EXPECT_EQ(nodes[i].parent, static_cast<std::int64_t>(record.parent));
    EXPECT_EQ(nodes[i].depth, record.depth);
    EXPECT_EQ(nodes[i].text, record.text);
    EXPECT_EQ(nodes[i].logprob, record.logprob);
    EXPECT_EQ(nodes[i].value, record.value);
    EXPECT_EQ(nodes[i].visits, record.visits);
    EXPECT_EQ(kept[i] == 1, record.kept);
    EXPECT_EQ(std::ssize(nodes[i].tokens), record.tokens);
    EXPECT_TRUE(engine.decode(nodes[i].tokens, true).starts_with(record.text));
  }
  ASSERT_TRUE(trace.result.has_value());
  EXPECT_EQ(trace.result->nodes, std::ssize(one.tree));
  EXPECT_EQ(trace.result->finish, "stop");
  EXPECT_FALSE(trace.result->path.empty());
  EXPECT_EQ(trace.result->votes.empty(), !(std::is_same_v<TypeParam, SelfConsistency>));
}

TEST(Trace, TimesAreThereWhenAskedFor) {
  std::stringstream in(traced<BeamSearch>(1, {}, true).text);
  double last = 0;
  for (const TraceEvent& event : read_trace(in).events) {
    EXPECT_GE(event.ms, last);
    last = event.ms;
  }
  EXPECT_GT(last, 0);
}

constexpr const char* kHeader =
    R"({"trace":1,"strategy":"mine","params":{"a":"1"},"seed":2,"prompt":"p","model":"m","numerics":"n"})"
    "\n";
constexpr const char* kNode =
    R"({"event":"proposed","node":1,"parent":0,"depth":1,"text":"t","tokens":[5],"logprob":-1.5})"
    "\n";

Trace read(const std::string& text) {
  std::stringstream in(text);
  return read_trace(in);
}

TEST(Trace, MayEndBeforeTheSearchDid) {
  const Trace trace =
      read(std::string(kHeader) + kNode + R"({"event":"judged","node":1,"value":null})");
  EXPECT_FALSE(trace.result.has_value());
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_TRUE(std::isnan(trace.events[1].value));
  EXPECT_EQ(trace.events[0].tokens, test::Tokens{5});
  EXPECT_EQ(trace.header.param("a"), "1");
  EXPECT_ERROR(trace.header.param("b"), "has no parameter \"b\"");
}

TEST(Trace, WhatIsNoTraceIsRefusedByLine) {
  const std::string header = kHeader;
  EXPECT_ERROR(read(""), "empty");
  EXPECT_ERROR(read("not json\n"), "line 1 is not a JSON object");
  EXPECT_ERROR(read("{}\n"), "line 1 lacks \"trace\"");
  EXPECT_ERROR(read(R"({"trace":2})"), "version 2; expected 1");
  EXPECT_ERROR(read(header + "[]\n"), "line 2 is not a JSON object");
  EXPECT_ERROR(read(header + R"({"event":"born","node":1})"), "the event \"born\"");
  EXPECT_ERROR(read(header + R"({"event":"kept","node":1})"), "tells of node 1; expected 1 to 0");
  EXPECT_ERROR(read(header + kNode + kNode), "line 3 tells of node 1; expected 2 to 2");
  EXPECT_ERROR(read(header + kNode + R"({"event":"judged","node":1})"), "has no \"value\"");
  EXPECT_ERROR(read(header + kNode + R"({"event":"judged","node":"1"})"), "lacks \"node\"");
  EXPECT_ERROR(read(header + R"({"result":{"solved":true}})"), "lacks \"finish\"");
  EXPECT_ERROR(read(header + R"({"result":{"solved":true,"finish":"stop","path":[],"nodes":0}})" +
                    "\n" + kNode),
               "line 3 comes after the result");
  std::string wrong = kNode;
  wrong.replace(wrong.find("\"parent\":0"), 10, "\"parent\":1");
  EXPECT_ERROR(read(header + wrong), "has the parent 1");
}

TEST(Trace, TheFirstDifferenceIsShown) {
  std::stringstream longer(std::string(kHeader) + kNode);
  std::stringstream shorter(kHeader);
  const std::optional<TraceDifference> difference = compare_traces(longer, shorter);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->line, 2);
  EXPECT_NE(difference->message().find("got      (the end)"), std::string::npos);
}

}  // namespace
}  // namespace dendrite
