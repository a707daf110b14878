// Sixty-four threads on one engine: short calls of all kinds, submitted, waited for, cancelled and
// dropped anywhere, while a thread that drives comes and goes. Nothing hangs, every token is right.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

constexpr int kThreads = 64;
constexpr std::size_t kSessions = 8;
constexpr std::int64_t kTokens = 12;
const std::vector<Tokens> kContinuations{{1, 2, 3}, {1, 2, 4}};

/// What the prompt of each session gives, as computed by an engine that does nothing else.
struct Truth {
  Tokens prompt;
  Tokens decoded;
  std::vector<Score> scores;
};

std::vector<Truth> truths() {
  const Engine engine = load("tinyllama", {.prefix_index = false});
  std::vector<Truth> out;
  for (std::uint32_t i = 0; i < kSessions; ++i) {
    Session session(engine);
    const Tokens prompt = Random(i).tokens(12 + 3 * i, 256);
    Branch branch = session.prefill(prompt);
    const std::vector<Score> scores = branch.score_tokens(kContinuations);
    out.push_back({prompt, session.decode(branch, greedy(kTokens)).ids, scores});
  }
  return out;
}

/// What cuts short the calls of others.
class Cuts {
 public:
  std::stop_source source(Random& random) {
    std::stop_source made;
    const std::lock_guard lock(mutex_);
    sources_[static_cast<std::size_t>(random.below(std::ssize(sources_)))] = made;
    return made;
  }
  void one(Random& random) {
    const std::lock_guard lock(mutex_);
    sources_[static_cast<std::size_t>(random.below(std::ssize(sources_)))].request_stop();
  }

 private:
  std::mutex mutex_;
  std::vector<std::stop_source> sources_ = std::vector<std::stop_source>(16);
};

/// One engine, what all threads share of it, and how often something was not as it must be.
class Crowd {
 public:
  /// `room`: the pool has pages for all at once, so that no call may end for want of them.
  /// `rows`: of a step; 0: what the model takes.
  Crowd(const EngineOptions& options, bool room, std::int64_t rows = 0)
      : room_(room), engine_(load("tinyllama", options)) {
    if (rows > 0) core_of(engine_)->step_rows = rows;
    for (std::size_t i = 0; i < kSessions; ++i) {
      sessions_.emplace_back(engine_, SessionOptions{.weight = 1.0 + static_cast<double>(i % 3)});
      roots_.push_back(sessions_.back().prefill(truths_[i].prompt));
    }
  }

  void run(int rounds) {
    std::atomic<bool> over = false;
    std::thread driver([&] {
      while (!over) {
        const EngineThread thread = engine_.start();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([this, t, rounds] {
        Random random(t);
        for (int i = 0; i < rounds; ++i) act(random);
      });
    }
    for (std::thread& thread : threads) thread.join();
    over = true;
    driver.join();
    while (engine_.step()) {
    }
    EXPECT_EQ(wrong_, 0);
    EXPECT_GT(whole_, 0);
    EXPECT_EQ(engine_.stats().branches_live, static_cast<std::int64_t>(kSessions));
    EXPECT_TRUE(test::tree_is_sound(engine_, {roots_}));
    roots_.clear();
    test::expect_all_pages_free(engine_);
  }

 private:
  void act(Random& random) {
    const auto i = static_cast<std::size_t>(random.below(kSessions));
    switch (random.below(8)) {
      case 0:
        return decode(random, i);
      case 1:
        return prefill(random, i);
      case 2:
        return score(random, i);
      case 3:
        return cuts_.one(random);
      case 4:
        (void)engine_.step();
        return;
      default:
        return submit(random, i);
    }
  }

  void decode(Random& random, std::size_t i) {
    Branch branch = roots_[i].fork();
    const std::stop_source source = cuts_.source(random);
    DecodeParams params = greedy(random.in(1, kTokens));
    params.cancel = source.get_token();
    std::int64_t told = 0;
    if (random.one_in(3)) params.on_token = [&](const TokenEvent&) { ++told; };
    const Generation out = sessions_[i].decode(branch, params);
    check(i, out, params, source.stop_requested());
    if (params.on_token && told != std::ssize(out.ids)) ++wrong_;
    if (branch.length() != std::ssize(truths_[i].prompt) + std::ssize(out.ids)) ++wrong_;
  }

  void prefill(Random& random, std::size_t i) {
    Branch branch;
    if (random.one_in(2)) {
      branch = sessions_[i].prefill(truths_[i].prompt, {.stream = 1});
    } else {
      PendingPrefill call = sessions_[i].submit_prefill(truths_[i].prompt, {.stream = 1});
      if (random.one_in(3)) return;  // and it is dropped
      if (random.one_in(3)) call.cancel();
      branch = call.get();
    }
    if (branch.tokens() != truths_[i].prompt) ++wrong_;
    const DecodeParams params = greedy(3);
    check(i, sessions_[i].decode(branch, params), params, false);
  }

  void score(Random& random, std::size_t i) {
    Branch branch = roots_[i].fork();
    PendingScore call = sessions_[i].submit_score_tokens(std::span(&branch, 1), kContinuations);
    if (random.one_in(4)) return;
    const bool cancel = random.one_in(4);
    if (cancel) call.cancel();
    const std::vector<Score> got = std::move(call.get().front());
    for (std::size_t c = 0; c < got.size(); ++c) {
      const bool missing = got[c].tokens.empty();
      if (missing ? room_ && !cancel : got[c].tokens != truths_[i].scores[c].tokens) ++wrong_;
    }
  }

  void submit(Random& random, std::size_t i) {
    const DecodeParams params = greedy(random.in(1, kTokens));
    PendingDecode call =
        sessions_[i].submit_decode(roots_[i].fork(static_cast<int>(random.in(1, 3))), params);
    bool cancelled = false;
    const auto ended = std::make_shared<std::atomic<int>>(0);
    call.on_done([ended] { ++*ended; });
    for (std::int64_t n = random.below(4); n > 0; --n) {
      switch (random.below(5)) {
        case 0:
          (void)call.wait_for(std::chrono::microseconds(random.below(200)));
          break;
        case 1:
          (void)call.next();
          break;
        case 2:
          (void)call.take();
          break;
        case 3:
          call.cancel();
          cancelled = true;
          break;
        default:
          (void)call.branches().front().fork({.stream = 1});
      }
    }
    if (random.one_in(4)) return;  // and it is dropped
    for (const Generation& out : call.get()) check(i, out, params, cancelled);
    while (*ended == 0) std::this_thread::yield();
    if (*ended != 1) ++wrong_;
  }

  void check(std::size_t i, const Generation& out, const DecodeParams& params, bool cancelled) {
    const auto count = std::ssize(out.ids);
    const Tokens& all = truths_[i].decoded;
    if (count > params.max_tokens || !std::equal(out.ids.begin(), out.ids.end(), all.begin())) {
      ++wrong_;
    }
    if (out.finish == Finish::kLength ? count != params.max_tokens
                                      : !(cancelled && out.finish == Finish::kCancelled) &&
                                            (room_ || out.finish != Finish::kBudget)) {
      ++wrong_;
    }
    whole_ += out.finish == Finish::kLength ? 1 : 0;
  }

  const std::vector<Truth> truths_ = truths();
  bool room_;
  Engine engine_;
  std::vector<Session> sessions_;
  std::vector<Branch> roots_;
  Cuts cuts_;
  std::atomic<int> wrong_ = 0;
  std::atomic<int> whole_ = 0;
};

TEST(Stress, ManyThreadsOnALargePool) {
  Crowd({.threads = 2}, true).run(test::scaled(150));
}

TEST(Stress, ManyThreadsOnASmallPool) {
  Crowd({.threads = 1, .page_tokens = 8, .kv_tokens = 8 * 60}, false).run(test::scaled(150));
}

TEST(Stress, ManyThreadsWhereStepsTakeFewRows) {
  Crowd({.threads = 1}, true, 3).run(test::scaled(50));
}

}  // namespace
}  // namespace dendrite
