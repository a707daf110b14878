// Events that are kept: all of them, in order, or counted as dropped; taken from any thread.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using namespace std::chrono_literals;
using test::greedy;
using test::load;
using test::Random;

TEST(EventQueue, KeepsWhatAReaderHearsWithListsOfItsOwn) {
  const Engine engine = load("tinyllama");
  std::vector<std::string> heard;
  const EventSubscription reader = engine.on_event(
      kAllEvents, [&](const Event& event) { heard.push_back(to_json_line(event)); });
  EventQueue queue = engine.events();
  std::vector<StoredEvent> taken;
  const auto take = [&] {
    for (StoredEvent& event : queue.take()) taken.push_back(std::move(event));
  };
  Session session(engine);
  Branch root = session.prefill(Random(1).tokens(20, 256));
  take();
  std::vector<Branch> kids = root.fork(3);
  session.decode(kids, greedy(4));
  take();
  EXPECT_TRUE(queue.take().empty());
  const std::vector<StoredEvent> copies = taken;
  taken.clear();
  ASSERT_EQ(copies.size(), heard.size());
  for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_EQ(to_json_line(copies[i]), heard[i]);
  EXPECT_TRUE(std::ranges::any_of(copies, [](const Event& e) { return e.ran.size() == 3; }));
  EXPECT_EQ(queue.dropped(), 0u);
}

TEST(EventQueue, HearsOnlyTheKindsItWasMadeFor) {
  const Engine engine = load("tinyllama");
  EventQueue queue = engine.events(mask_of(EventKind::kFork));
  Session session(engine);
  Branch root = session.prefill(Random(1).tokens(5, 256));
  const std::vector<Branch> kids = root.fork(2);
  const std::vector<StoredEvent> events = queue.take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].branch, kids[1].id());
  EXPECT_EQ(events[1].parent, root.id());
}

TEST(EventQueue, DropsAndCountsWhatFindsNoRoom) {
  const Engine engine = load("tinyllama");
  EventQueue queue = engine.events(mask_of(EventKind::kFork), 3);
  Session session(engine);
  Branch root = session.prefill(Random(1).tokens(5, 256));
  std::vector<Branch> kids = root.fork(8);
  const std::vector<StoredEvent> events = queue.take();
  ASSERT_EQ(events.size(), 3u);  // the first ones
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(events[i].branch, kids[i].id());
  EXPECT_EQ(queue.dropped(), 5u);
  const Branch later = root.fork();
  EXPECT_EQ(queue.take().size(), 1u);
  EXPECT_EQ(queue.dropped(), 5u);
  EXPECT_ERROR(engine.events(kAllEvents, 0), "events: capacity is 0; expected at least 1");
}

TEST(EventQueue, WaitsForTheNextAndNoLongerThanItMay) {
  const Engine engine = load("tinyllama");
  EventQueue queue = engine.events(mask_of(EventKind::kFork));
  EXPECT_TRUE(queue.wait_for(1ms).empty());
  Session session(engine);
  Branch root = session.prefill(Random(1).tokens(5, 256));
  std::vector<StoredEvent> events;
  std::jthread waiter([&] { events = queue.wait_for(60s); });
  const Branch kid = root.fork();
  waiter.join();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].branch, kid.id());
}

TEST(EventQueue, ClosingWakesWhoWaitsAndKeepsWhatIsThere) {
  const Engine engine = load("tinyllama");
  EventQueue queue = engine.events();
  Session session(engine);
  EXPECT_FALSE(queue.closed());
  std::jthread waiter([&] {
    while (!queue.wait_for(60s).empty()) continue;
  });
  std::this_thread::sleep_for(5ms);
  queue.close();
  waiter.join();
  EXPECT_TRUE(queue.closed());
  Branch root = session.prefill(Random(1).tokens(5, 256));
  EXPECT_TRUE(queue.wait_for(60s).empty());  // at once
  queue.close();

  EventQueue kept = engine.events(mask_of(EventKind::kFork));
  const Branch kid = root.fork();
  kept.close();
  EXPECT_EQ(kept.take().size(), 1u);
  queue = std::move(kept);
  EXPECT_TRUE(EventQueue().closed());
  EXPECT_TRUE(EventQueue().wait_for(60s).empty());
}

TEST(EventQueue, OutlivesTheEngineWithoutKeepingIt) {
  EventQueue queue;
  std::weak_ptr<EngineCore> core;
  std::jthread waiter;
  std::atomic<std::size_t> taken = 0;
  {
    const Engine engine = load("tinyllama");
    core = core_of(engine);
    queue = engine.events();
    waiter = std::jthread([&] {
      for (std::size_t count = 1; count > 0; taken += count) count = queue.wait_for(60s).size();
    });
    Session session(engine);
    session.prefill(Random(1).tokens(5, 256));
  }
  EXPECT_TRUE(core.expired());
  waiter.join();  // woken by the engine's end
  EXPECT_GT(taken, 0u);
  EXPECT_TRUE(queue.closed());
}

TEST(EventQueue, ThreadsTakeEachEventOnce) {
  const Engine engine = load("tinyllama");
  EventQueue queue = engine.events(mask_of(EventKind::kFork, EventKind::kPrune));
  Session session(engine);
  Branch root = session.prefill(Random(1).tokens(5, 256));
  std::atomic<std::size_t> taken = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (;;) {
          const std::vector<StoredEvent> events = queue.wait_for(60s);
          if (events.empty()) return;
          taken += events.size();
        }
      });
    }
    for (int i = 0; i < 2000; ++i) root.fork().prune();
    while (taken < 4000) std::this_thread::yield();
    queue.close();
  }
  EXPECT_EQ(taken, 4000u);
  EXPECT_EQ(queue.dropped(), 0u);
}

}  // namespace
}  // namespace dendrite
