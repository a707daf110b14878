// What a strategy's callables throw comes out of run() and leaves nothing behind: no branch, no
// page, no evaluator at work.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::letters;

struct Interrupt : std::runtime_error {
  Interrupt() : std::runtime_error("interrupted") {}
};

/// A callable that throws when it is called for the `at`-th time. 0: never.
class Trap {
 public:
  explicit Trap(int at) : at_(at) {}
  void enter() {
    if (++calls_ == at_) throw Interrupt();
  }
  int calls() const { return calls_; }

 private:
  const int at_;
  std::atomic<int> calls_ = 0;
};

template <typename Strategy>
using Setter = std::function<void(Strategy&, Trap&)>;

struct Throwing : ::testing::Test {
  Engine engine = test::load("llama2", {.prefix_index = false});
  Session session{engine};
  Branch root = session.prefill("x");

  template <typename Strategy>
  SearchResult search(Strategy strategy, const Setter<Strategy>& set, Trap& trap) {
    set(strategy, trap);
    return run(session, root.fork({.stream = 7}), strategy);
  }

  /// Of all calls of the callable that `set` puts in: the first, one between, and the last.
  template <typename Strategy>
  void expect_clean(const std::string& callable, const Strategy& strategy,
                    const Setter<Strategy>& set) {
    SCOPED_TRACE(callable);
    Trap never(0);
    search(strategy, set, never);
    ASSERT_GT(never.calls(), 0);
    const std::int64_t pages = session.stats().pages_used;
    for (const int at : {1, (never.calls() + 1) / 2, never.calls()}) {
      Trap trap(at);
      EXPECT_THROW(search(strategy, set, trap), Interrupt);
      const int calls = trap.calls();
      EXPECT_EQ(session.stats().pages_used, pages);
      EXPECT_EQ(session.stats().branches_live, 1);
      EXPECT_EQ(trap.calls(), calls);
    }
    EXPECT_EQ(session.decode(root, {.max_tokens = 0}).finish, Finish::kLength);  // in no call
  }

  template <typename Strategy>
  void solved_and_on_event(const Strategy& strategy) {
    expect_clean<Strategy>("solved", strategy, [](Strategy& s, Trap& trap) {
      s.solved = [&](const Branch&, const std::string&) { return trap.enter(), false; };
    });
    expect_clean<Strategy>("on_event", strategy, [](Strategy& s, Trap& trap) {
      s.on_event = [&](const SearchEvent&) { trap.enter(); };
    });
  }

  static std::vector<double> values(std::size_t count) { return std::vector<double>(count, 0.5); }

  template <typename Judged>
  void judgement(const Judged& strategy, Judgement& (*of)(Judged&)) {
    expect_clean<Judged>("judge", strategy, [of](Judged& s, Trap& trap) {
      of(s).judge = [&](Session& judging, std::span<Branch> candidates) {
        judging.score_tokens(candidates, {{1, 2}});
        return trap.enter(), values(candidates.size());
      };
    });
    for (const int threads : {0, 3}) {
      expect_clean<Judged>("evaluate", strategy, [of, threads](Judged& s, Trap& trap) {
        of(s).evaluator_threads = threads;
        of(s).evaluate = [&](const Candidate&) { return trap.enter(), 0.5; };
      });
    }
  }

  template <typename Strategy>
  void tree_of_steps(Strategy strategy) {
    strategy.depth = 2;
    strategy.steps.propose = letters(3);
    expect_clean<Strategy>("propose", strategy, [](Strategy& s, Trap& trap) {
      s.steps.propose = [&](Session& in, std::span<Branch> nodes) {
        Proposals proposals = letters(3)(in, nodes);
        trap.enter();
        return proposals;
      };
    });
    expect_clean<Strategy>("accept", strategy, [](Strategy& s, Trap& trap) {
      s.steps.accept = [&](const Branch&, const std::string&) { return trap.enter(), true; };
    });
    judgement<Strategy>(strategy, [](Strategy& s) -> Judgement& { return s.steps.judgement; });
    solved_and_on_event(strategy);
    // Beside evaluations under way, and with steps opened ahead of them.
    strategy.steps.speculate = 2;
    strategy.steps.propose_groups = 2;
    strategy.steps.judgement.evaluator_threads = 2;
    strategy.steps.judgement.evaluate = [](const Candidate&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return 0.5;
    };
    expect_clean<Strategy>("prior", strategy, [](Strategy& s, Trap& trap) {
      s.steps.prior = [&](const Thought&) { return trap.enter(), 1.0; };
    });
    solved_and_on_event(strategy);
  }
};

TEST_F(Throwing, TreeOfThoughts) {
  tree_of_steps(TreeOfThoughts{});
}
TEST_F(Throwing, DepthFirst) {
  tree_of_steps(DepthFirst{});
}
TEST_F(Throwing, BestFirst) {
  tree_of_steps(BestFirst{});
}
TEST_F(Throwing, Mcts) {
  tree_of_steps(Mcts{.iterations = 12, .batch = 4});
}

TEST_F(Throwing, MctsWithRollouts) {
  const Mcts strategy{.iterations = 8,
                      .batch = 4,
                      .depth = 2,
                      .rollouts = 2,
                      .rollout = {.max_tokens = 3, .temperature = 1.0},
                      .steps = {.propose = letters(2)}};
  judgement<Mcts>(strategy, [](Mcts& s) -> Judgement& { return s.steps.judgement; });
  solved_and_on_event(strategy);
}

TEST_F(Throwing, BestOfN) {
  BestOfN strategy{.n = 4, .sampling = {.max_tokens = 6, .temperature = 1.0}};
  for (const bool first : {false, true}) {
    strategy.first_success = first;
    judgement<BestOfN>(strategy, [](BestOfN& s) -> Judgement& { return s.judgement; });
    solved_and_on_event(strategy);
  }
}

TEST_F(Throwing, SelfConsistency) {
  SelfConsistency strategy{.n = 4, .sampling = {.max_tokens = 6, .temperature = 1.0}};
  for (const double confidence : {1.0, 0.99}) {
    strategy.confidence = confidence;
    expect_clean<SelfConsistency>("answer", strategy, [](SelfConsistency& s, Trap& trap) {
      s.answer = [&](const Branch&, const std::string& text) {
        return trap.enter(), std::optional(text);
      };
    });
    solved_and_on_event(strategy);
  }
}

TEST_F(Throwing, SelfRefinement) {
  const DecodeParams draft{.max_tokens = 4, .temperature = 1.0};
  SelfRefinement strategy{.rounds = 2, .drafts = 2, .draft = draft};
  const auto criticise = [](std::size_t drafts) {
    return std::vector<Critique>(drafts, Critique{.value = 0.5, .feedback = "a\n"});
  };
  strategy.criticise = [=](Session&, std::span<Branch> drafts) { return criticise(drafts.size()); };
  expect_clean<SelfRefinement>("criticise", strategy, [&](SelfRefinement& s, Trap& trap) {
    s.criticise = [&](Session&, std::span<Branch> drafts) {
      return trap.enter(), criticise(drafts.size());
    };
  });
  solved_and_on_event(strategy);
}

TEST_F(Throwing, ForkJoin) {
  ForkJoin strategy{.open_tokens = {5}, .close_tokens = {7}, .max_forks = 2};
  strategy.trunk = {.max_tokens = 3, .logit_bias = {{5, 1000.0F}}};
  strategy.child = {.max_tokens = 3};
  expect_clean<ForkJoin>("begin", strategy, [](ForkJoin& s, Trap& trap) {
    s.begin = [&](const Branch&, const std::string&) {
      return trap.enter(), std::vector<std::string>{"a", "b"};
    };
  });
  solved_and_on_event(strategy);
}

TEST_F(Throwing, BeamSearch) {
  solved_and_on_event(BeamSearch{.width = 3, .max_tokens = 4});
}

/// What comes after it would be for nothing.
TEST_F(Throwing, AnEvaluatorWithoutThreadsEndsAtOnce) {
  Trap trap(2);
  const TreeOfThoughts strategy{.steps = {.propose = letters(5)}};
  const Setter<TreeOfThoughts> set = [](TreeOfThoughts& s, Trap& at) {
    s.steps.judgement.evaluate = [&](const Candidate&) { return at.enter(), 0.5; };
  };
  EXPECT_THROW(search(strategy, set, trap), Interrupt);
  EXPECT_EQ(trap.calls(), 2);
}

/// So does what SessionOptions::poll throws in one of the strategy's own calls.
TEST_F(Throwing, PollComesOutOfAnyStrategy) {
  int polls = 0;
  Session polled(engine,
                 {.poll = [&]() -> bool { return ++polls < 3 ? true : throw Interrupt(); }});
  const auto search = [&](const auto& strategy) {
    polls = 0;
    EXPECT_THROW(polled.run_tree(strategy, "x"), Interrupt);
    EXPECT_EQ(polled.stats().branches_live, 0);
  };
  const DecodeParams sampling{.max_tokens = 12000, .temperature = 1.0, .ignore_eos = true};
  search(BestOfN{.n = 2, .sampling = sampling});
  TreeOfThoughts steps{.depth = 5000, .width = 1, .steps = {.propose = letters(2)}};
  steps.steps.judgement.judge = [](Session& judging, std::span<Branch> candidates) {
    std::vector<double> values;
    for (const auto& scores : judging.score_tokens(candidates, {{1, 2}})) {
      values.push_back(scores[0].logprob);
    }
    return values;
  };
  search(steps);
}

}  // namespace
}  // namespace dendrite
