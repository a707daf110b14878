#include <gtest/gtest.h>

#include <sstream>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::joined;
using test::same_bits;
using test::Tokens;
using test::Transcript;

/// A model that was not trained to fork is held to a grammar in which it does.
class ForkJoinTest : public ::testing::Test {
 protected:
  ForkJoinTest() {
    strategy.open = "<f>";
    strategy.close = "</c>";
    strategy.children = 3;
    strategy.max_forks = 2;
    strategy.trunk = {.max_tokens = 90,
                      .temperature = 1.0,
                      .constraint = Constraint::regex("[a-c]{9,12}<f>"),
                      .ignore_eos = true};
    strategy.child = {.max_tokens = 60,
                      .temperature = 1.0,
                      .constraint = Constraint::regex("[k-z]{20,40}</c>"),
                      .ignore_eos = true};
    strategy.on_event = [this](const SearchEvent& event) {
      if (event.kind == SearchEvent::Kind::kKept) {
        kept[event.thought->node] = event.thought->branch.tokens();
      }
    };
  }

  Tokens last(NodeId node, std::int64_t count) const {
    const Tokens& tokens = kept.at(node);
    return {tokens.end() - count, tokens.end()};
  }

  /// Of these two children, all but their first `repaired` tokens, and the last of all.
  static std::int64_t moved(const SearchResult& result, std::size_t child, std::size_t last_child,
                            std::int64_t repaired) {
    return std::max<std::int64_t>(0, result.tree[child].tokens - repaired) +
           std::max<std::int64_t>(0, result.tree[last_child].tokens - 1 - repaired);
  }

  Engine engine = test::load("llama2", {.prefix_index = false});
  Session session{engine, {.seed = 4}};
  ForkJoin strategy;
  std::map<NodeId, Tokens> kept;  // as they were when they were kept
};

TEST_F(ForkJoinTest, GoesOnBehindWhatTheChildrenSaid) {
  const Tokens prompt = engine.encode("start\n", true);
  strategy.join.repair = {.first = 4};
  SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.finish, Finish::kStop);
  ASSERT_EQ(result.tree.size(), 9u);  // text, three children, text, three children, text
  const auto nodes = [](std::initializer_list<int> ids) {
    std::vector<NodeId> all;
    for (const int id : ids) all.push_back(static_cast<NodeId>(id));
    return all;
  };
  const std::vector<int> parents = {0, 1, 1, 1, 2, 5, 5, 5, 6};
  const std::vector<int> depths = {1, 2, 2, 2, 3, 4, 4, 4, 5};
  for (std::size_t i = 0; i < 9; ++i) {
    const ThoughtRecord& thought = result.tree[i];
    EXPECT_EQ(thought.parent, static_cast<NodeId>(parents[i])) << i;
    EXPECT_EQ(thought.depth, depths[i]) << i;
    EXPECT_TRUE(thought.kept) << i;
    EXPECT_EQ(thought.text.find('<'), i == 8 ? thought.text.size() - 3 : std::string::npos) << i;
    const std::vector<NodeId> from = i == 4   ? nodes({2, 3, 4})
                                     : i == 8 ? nodes({6, 7, 8})
                                              : nodes({});
    EXPECT_EQ(thought.joined, from) << i;
  }
  Tokens expected = prompt;
  for (const ThoughtRecord& thought : result.tree) {
    expected = joined(expected, last(thought.node, thought.tokens));
  }
  EXPECT_EQ(result.branch.tokens(), expected);
  EXPECT_NE(result.tree[1].text, result.tree[2].text);
  EXPECT_EQ(result.path.size(), 5u);

  ASSERT_EQ(result.joins.size(), 2u);
  for (const std::size_t i : {0, 1}) {
    const Composition& join = result.joins[i];
    EXPECT_EQ(join.exactness, Exactness::kComposed);
    EXPECT_EQ(join.moved, moved(result, 4 * i + 2, 4 * i + 3, 4));
    EXPECT_GT(join.moved, 0);  // no token has a fourth of such a text
  }
  EXPECT_EQ(result.branch.composition().exactness, Exactness::kComposed);
  EXPECT_EQ(session.stats().branches_live, 1);
}

TEST_F(ForkJoinTest, ByDefaultNothingOfShortChildrenIsMoved) {
  strategy.max_forks = 1;
  for (const bool is_short : {true, false}) {
    strategy.child.constraint =
        Constraint::regex(is_short ? "[k-z]{20,28}</c>" : "[k-z]{150,160}</c>");
    strategy.child.max_tokens = 200;
    const SearchResult result = session.run_tree(strategy, "start\n");
    ASSERT_EQ(result.joins.size(), 1u);
    const Composition& join = result.joins[0];
    EXPECT_EQ(join.moved, moved(result, 2, 3, 32));
    EXPECT_EQ(join.moved == 0, is_short);
    EXPECT_EQ(join.exactness, is_short ? Exactness::kExactPrefix : Exactness::kComposed);
  }
}

TEST_F(ForkJoinTest, ChildrenShareTheirSteps) {
  strategy.child = {.max_tokens = 30, .temperature = 1.0, .ignore_eos = true};
  strategy.close.clear();
  strategy.max_forks = 1;
  const SearchResult result = session.run_tree(strategy, "start\n");
  const std::int64_t of_text = result.tree.front().tokens + result.tree.back().tokens;
  EXPECT_LE(session.stats().steps, of_text + 30 + 5);
  EXPECT_GE(session.stats().steps, 30);
}

TEST_F(ForkJoinTest, AJoinedBranchIsItsReplay) {
  for (const bool exact : {false, true}) {
    strategy.join = {};
    strategy.join.mode = exact ? ComposeParams::Mode::kExact : ComposeParams::Mode::kComposed;
    strategy.join.repair = {.first = 4, .last = 2};
    strategy.join.before_each = "|";
    strategy.join.after_all = "=";
    strategy.max_forks = 1;
    SearchResult result = session.run_tree(strategy, "start\n");
    const Engine other = test::load("llama2", {.page_tokens = 8, .prefix_index = false});
    if (exact) {
      EXPECT_TRUE(same_bits(bits_of(result.branch), test::replay(other, result.branch.tokens())));
      continue;
    }
    Session again(other);
    Branch text = again.prefill("start\n");
    text.append(last(result.tree[0].node, result.tree[0].tokens));
    std::vector<Branch> children = text.fork(3);
    std::vector<const Branch*> handles;
    for (std::size_t i = 0; i < 3; ++i) {
      children[i].append(last(result.tree[i + 1].node, result.tree[i + 1].tokens));
      handles.push_back(&children[i]);
    }
    Branch replayed = again.join(handles, strategy.join).branch;
    replayed.append(last(result.tree[4].node, result.tree[4].tokens));
    ASSERT_EQ(replayed.tokens(), result.branch.tokens());
    EXPECT_TRUE(same_bits(bits_of(result.branch), bits_of(replayed)));
    EXPECT_FALSE(same_bits(
        bits_of(result.branch).logits,
        test::replay(test::load("llama2", {.prefix_index = false}), result.branch.tokens())
            .logits));
  }
}

TEST_F(ForkJoinTest, TokensOpenAndCloseAndChildrenFork) {
  strategy.open.clear();
  strategy.close.clear();
  for (Token token = 3; token < 316; token += 12) {
    strategy.open_tokens.push_back(token);
    strategy.close_tokens.push_back(token + 4);
  }
  strategy.trunk = {.max_tokens = 40, .temperature = 1.5, .ignore_eos = true};
  strategy.child = {.max_tokens = 12, .temperature = 1.5, .ignore_eos = true};
  strategy.nesting = 2;
  strategy.max_forks = 12;
  std::size_t most_joins = 0;
  int deepest = 0;
  for (std::uint64_t seed = 0; seed < 40 && (most_joins < 3 || deepest < 2); ++seed) {
    strategy.trunk.seed = strategy.child.seed = seed;
    const SearchResult result = session.run_tree(strategy, "start\n");
    EXPECT_EQ(result.finish, Finish::kStop);
    most_joins = std::max(most_joins, result.joins.size());
    std::int64_t of_trunk = 0;
    std::map<NodeId, int> nesting;  // of a child's thoughts
    for (const ThoughtRecord& thought : result.tree) {
      int& mine = nesting[thought.node];
      if (!thought.joined.empty()) {
        mine = nesting[thought.parent] - 1;
      } else if (thought.parent != NodeId::kRoot) {
        mine = nesting[thought.parent] + 1;
      }
      deepest = std::max(deepest, mine);
      if (mine == 0) of_trunk += thought.tokens;
      EXPECT_LE(thought.tokens, mine == 0 ? 40 : 12);
    }
    EXPECT_EQ(of_trunk, 40);
  }
  EXPECT_GT(most_joins, 2u);
  EXPECT_LE(most_joins, 12u);
  EXPECT_EQ(deepest, 2);
}

TEST_F(ForkJoinTest, AChildThatDoesNotCloseIsClosed) {
  strategy.child.constraint.reset();
  strategy.child.max_tokens = 5;
  strategy.max_forks = 1;
  const Tokens close = engine.encode("</c>", false);
  SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.tree[1].tokens, 5);
  EXPECT_EQ(last(result.tree[1].node, std::ssize(close)), close);
  // An end of sequence is not part of what is joined.
  const Token eos = engine.info().eos.at(0);
  strategy.child = {.logit_bias = {{eos, 1000.0F}}};
  result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.tree[1].tokens, 1);
  EXPECT_EQ(result.finish, Finish::kStop);
  const Tokens all = result.branch.tokens();
  EXPECT_EQ(std::ranges::find(all, eos), all.end());
  const std::string text = engine.decode(all);
  EXPECT_NE(text.find("<f></c></c></c>"), std::string::npos) << text;
}

TEST_F(ForkJoinTest, ChildrenBeginAsTheCallerSays) {
  std::vector<std::string> plans;
  strategy.begin = [&](const Branch& branch, const std::string& text) {
    EXPECT_EQ(branch.text(), "<f>" == text ? "" : branch.text());
    plans.push_back(text);
    return plans.size() == 1 ? std::vector<std::string>{"one:", "two:"}
                             : std::vector<std::string>{};
  };
  strategy.solved = [](const Branch& branch, const std::string&) { return branch.length() > 90; };
  strategy.max_forks = 3;
  SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_TRUE(result.solved);
  EXPECT_EQ(result.joins.size(), 1u);
  ASSERT_GE(result.tree.size(), 5u);
  EXPECT_EQ(plans[0], result.tree[0].text);
  EXPECT_EQ(plans[1], result.tree[3].text);
  EXPECT_EQ(result.tree[4].parent, result.tree[3].node);  // goes on without children
  EXPECT_TRUE(result.tree[4].joined.empty());
  const std::string text = engine.decode(result.branch.tokens());
  const std::size_t one = text.find("<f>one:");
  EXPECT_NE(one, std::string::npos) << text;
  EXPECT_GT(text.find("</c>two:"), one) << text;
}

TEST_F(ForkJoinTest, TellsTheSameWhateverTheThreadsAndPages) {
  strategy.nesting = 2;
  strategy.max_forks = 3;
  strategy.child.constraint = Constraint::regex("[k-z]{9,12}(<f>|</c>)");
  std::string expected;
  for (const EngineOptions& options :
       {EngineOptions{.threads = 1}, EngineOptions{.threads = 3, .page_tokens = 8},
        EngineOptions{.threads = 2, .kv_tokens = 1024}}) {
    Engine other = test::load("llama2", options);
    Session company(other);
    Branch idle = company.prefill(std::span<const Token>(Tokens(800, 7)));  // gives way
    Session s(other, {.seed = 3});
    Transcript transcript;
    strategy.on_event = transcript.reader();
    SearchResult result = s.run_tree(strategy, "start\n");
    EXPECT_EQ(result.finish, Finish::kStop);
    EXPECT_GE(result.joins.size(), 2u);
    if (expected.empty()) expected = transcript.with(result);
    EXPECT_EQ(transcript.with(result), expected);
    EXPECT_EQ(s.stats().evictions > 0, options.kv_tokens > 0);
    result = {};
    idle.prune();
    test::expect_all_pages_free(other);
  }
}

TEST_F(ForkJoinTest, ATraceHasForksAndJoins) {
  std::stringstream out;
  SearchTrace trace(out, trace_header(engine, describe(strategy), 4, "start\n"));
  strategy.on_event = [&](const SearchEvent& event) { trace.on(event); };
  trace.finish(session.run_tree(strategy, "start\n"));
  const std::string text = out.str();
  const Trace read = read_trace(out);
  EXPECT_EQ(read.header.strategy, "fork-join");
  EXPECT_EQ(read.header.param("open"), "<f>");
  std::vector<std::vector<std::int64_t>> joins;
  for (const TraceEvent& event : read.events) {
    if (!event.joined.empty()) joins.push_back(event.joined);
  }
  EXPECT_EQ(joins, (std::vector<std::vector<std::int64_t>>{{2, 3, 4}, {6, 7, 8}}));
  const std::size_t at = text.find("\"joined\":[2,");
  std::stringstream wrong(text.substr(0, at) + "\"joined\":[9," + text.substr(at + 12));
  EXPECT_ERROR(read_trace(wrong), "joins node 9");
}

TEST_F(ForkJoinTest, EndsWithTheBudgetAndWithCancellation) {
  for (const std::int64_t tokens : {3, 20, 60, 100}) {
    Session poor(engine, {.budget = {.tokens = tokens}});
    SearchResult result = poor.run_tree(strategy, "start\n");
    EXPECT_EQ(result.finish, Finish::kBudget);
    EXPECT_LE(poor.stats().tokens_computed, tokens);
  }
  for (const int node : {1, 4}) {  // before children decode, and before they are joined
    std::stop_source source;
    strategy.cancel = source.get_token();
    strategy.on_event = [&](const SearchEvent& event) {
      if (event.thought->node == static_cast<NodeId>(node)) source.request_stop();
    };
    const SearchResult result = session.run_tree(strategy, "start\n");
    EXPECT_EQ(result.finish, Finish::kCancelled);
    EXPECT_EQ(result.branch.text().substr(result.branch.text().size() - 3), "<f>");
    EXPECT_EQ(result.path.size(), 1u);
    ASSERT_EQ(result.tree.size(), 4u);
    EXPECT_EQ(result.tree[3].tokens > 0, node == 4);
  }
}

TEST_F(ForkJoinTest, RefusesWhatIsNoForkOrJoin) {
  ForkJoin none;
  EXPECT_ERROR(session.run_tree(none, "x"), "open and open_tokens are empty");
  strategy.children = 0;
  EXPECT_ERROR(session.run_tree(strategy, "x"), "children is 0");
}

}  // namespace
}  // namespace dendrite
