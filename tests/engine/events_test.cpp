// The event stream: what happened is told once, in order, with numbers that add up.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

/// Keeps what it hears; the lists of a step are copied, as they live no longer than the call.
struct Recorder {
  struct Heard {
    Event event;
    std::vector<BranchId> ran, waited;
  };
  std::vector<Heard> all;
  EventSubscription subscription;

  explicit Recorder(const Engine& engine, EventMask kinds = kAllEvents)
      : subscription(engine.on_event(kinds, [this](const Event& event) {
          all.push_back({event,
                         {event.ran.begin(), event.ran.end()},
                         {event.waited.begin(), event.waited.end()}});
        })) {}

  std::vector<Heard> of(EventKind kind) const {
    std::vector<Heard> some;
    for (const Heard& heard : all) {
      if (heard.event.kind == kind) some.push_back(heard);
    }
    return some;
  }
};

TEST(Events, TellALifeInOrder) {
  const Engine e = load("tinyllama", {.page_tokens = 16});
  const Recorder recorder(e);
  Session session(e);
  const Tokens prompt = Random(1).tokens(20, 256);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> kids = root.fork(2);
  session.decode(kids, greedy(3));
  Branch back = kids[0].at(10);
  kids[1].prune();

  std::vector<std::string> names;
  for (const auto& [event, ran, waited] : recorder.all) names.push_back(name_of(event.kind));
  const std::vector<std::string> expected = {
      "prefill",       "step",          "finish",  // 20 rows
      "fork",          "fork",                     // and the first token is known without a step
      "copy_on_write", "copy_on_write", "step",    // the prompt's last page is half full
      "step",          "finish",        "finish", "fork", "prune"};
  EXPECT_EQ(names, expected);

  std::uint64_t sequence = 0;
  std::int64_t time_ns = 0;
  for (const auto& [event, ran, waited] : recorder.all) {
    EXPECT_EQ(event.sequence, ++sequence);
    EXPECT_GE(event.time_ns, time_ns);
    time_ns = event.time_ns;
    EXPECT_EQ(event.session, 1u);
  }
  const Event& prefill = recorder.all[0].event;
  EXPECT_EQ(prefill.branch, root.id());
  EXPECT_EQ(prefill.length, 20);
  EXPECT_EQ(prefill.tokens, 0);
  const auto steps = recorder.of(EventKind::kStep);
  EXPECT_EQ(steps[0].event.rows, 20);
  EXPECT_EQ(steps[0].event.pages, 2);
  EXPECT_EQ(steps[0].ran, std::vector{root.id()});
  EXPECT_EQ(steps[1].event.rows, 2);
  EXPECT_EQ(steps[1].event.branches, 2);
  EXPECT_EQ(steps[1].event.copies, 2);
  EXPECT_EQ(steps[1].ran, (std::vector{kids[0].id(), BranchId(3)}));
  EXPECT_GT(steps[1].event.ms, 0);
  const auto forks = recorder.of(EventKind::kFork);
  EXPECT_EQ(forks[0].event.parent, root.id());
  EXPECT_EQ(forks[0].event.branch, kids[0].id());
  EXPECT_EQ(forks[2].event.parent, kids[0].id());
  EXPECT_EQ(forks[2].event.length, 10);
  const auto copies = recorder.of(EventKind::kCopyOnWrite);
  EXPECT_EQ(copies[0].event.branch, kids[0].id());
  EXPECT_EQ(copies[0].event.copies, 1);
  EXPECT_EQ(copies[0].event.tokens, 4);
  const auto finishes = recorder.of(EventKind::kFinish);
  EXPECT_EQ(finishes[0].event.finish, Finish::kRunning);
  EXPECT_EQ(finishes[1].event.finish, Finish::kLength);
  EXPECT_EQ(finishes[1].event.tokens, 3);
  const Event prune = recorder.of(EventKind::kPrune)[0].event;
  EXPECT_EQ(prune.branch, BranchId(3));
  EXPECT_EQ(prune.length, 23);
  EXPECT_EQ(prune.pages, 1);
}

TEST(Events, EveryStepHasUniqueAndNaiveBytes) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .prefix_index = false});
  const std::int64_t page_bytes = e.stats().page_bytes;
  const Recorder recorder(e, mask_of(EventKind::kStep));
  Session session(e);
  const Tokens prompt = Random(1).tokens(64, 256);  // whole pages: no copies
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> kids = root.fork(3);
  session.decode(kids, greedy(2));
  ASSERT_EQ(recorder.all.size(), 2u);
  EXPECT_EQ(recorder.all[0].event.unique_bytes, 4 * page_bytes);
  EXPECT_EQ(recorder.all[0].event.naive_bytes, 4 * page_bytes);
  // The root's four pages and one more for each child, against four and three times five.
  EXPECT_EQ(recorder.all[1].event.unique_bytes, 7 * page_bytes);
  EXPECT_EQ(recorder.all[1].event.naive_bytes, 19 * page_bytes);
  EXPECT_EQ(e.stats().unique_bytes, 7 * page_bytes);
  EXPECT_EQ(e.stats().naive_bytes, 19 * page_bytes);

  Session other(e);  // all sessions of the engine count
  Branch more = other.prefill(std::span(prompt));
  EXPECT_EQ(recorder.all.back().event.unique_bytes, 11 * page_bytes);
  EXPECT_EQ(recorder.all.back().event.naive_bytes, 23 * page_bytes);
  EXPECT_EQ(recorder.all.back().event.session, 2u);
}

TEST(Events, TellWhoGotNoRoomAndWhatEndedACall) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .kv_tokens = 64, .prefix_index = false});
  const Recorder recorder(e);
  Session session(e, {.budget = {.tokens = 60}});
  const Tokens prompt = Random(1).tokens(32, 256);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> kids = root.fork(3);  // two pages left for three
  session.decode(kids, greedy(4));
  const auto no_room = recorder.of(EventKind::kNoRoom);
  ASSERT_FALSE(no_room.empty());
  EXPECT_EQ(no_room[0].event.branch, kids[2].id());
  EXPECT_EQ(no_room[0].event.pages, 1);
  const auto steps = recorder.of(EventKind::kStep);
  EXPECT_EQ(steps[1].event.waiting, 1);
  EXPECT_EQ(steps[1].waited, std::vector{kids[2].id()});

  kids.resize(1);
  session.decode(kids, greedy(1000));
  const auto budget = recorder.of(EventKind::kBudget);
  ASSERT_EQ(budget.size(), 1u);
  EXPECT_EQ(budget[0].event.tokens, 60);
  std::stop_source stop;
  stop.request_stop();
  DecodeParams params = greedy(5);
  params.cancel = stop.get_token();
  session.decode(kids, params);
  EXPECT_EQ(recorder.of(EventKind::kCancel).size(), 1u);
}

TEST(Events, TellWhoWasEvictedAndComputedAgain) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .kv_tokens = 64, .prefix_index = false});
  const Recorder recorder(e);
  Session session(e);
  Branch first = session.prefill(std::span<const Token>(Random(1).tokens(40, 256)));
  Branch second = session.prefill(std::span<const Token>(Random(2).tokens(32, 256)));
  auto evictions = recorder.of(EventKind::kEvict);
  ASSERT_EQ(evictions.size(), 1u);
  EXPECT_EQ(evictions[0].event.branch, first.id());
  EXPECT_EQ(evictions[0].event.tokens, 40);
  EXPECT_EQ(evictions[0].event.pages, 3);
  EXPECT_TRUE(recorder.of(EventKind::kPreempt).empty());
  EXPECT_TRUE(recorder.of(EventKind::kRegenerate).empty());

  session.decode(first, greedy(2));  // one row, once the other 40 are there again
  const auto again = recorder.of(EventKind::kRegenerate);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].event.branch, first.id());
  EXPECT_EQ(again[0].event.tokens, 40);
  EXPECT_EQ(recorder.of(EventKind::kEvict).size(), 2u);
  const EngineStats stats = e.stats();
  EXPECT_EQ(stats.evictions, 2);
  EXPECT_EQ(stats.tokens_regenerated, 40);
}

TEST(Events, TellWhoWasPreempted) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .kv_tokens = 64, .prefix_index = false});
  const Recorder recorder(e, mask_of(EventKind::kPreempt));
  Session session(e);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(std::span<const Token>(Random(1).tokens(16, 256))));
  branches.push_back(session.prefill(std::span<const Token>(Random(2).tokens(16, 256))));
  branches[1].set_priority(1);
  for (const Generation& out : session.decode(branches, greedy(40))) {
    EXPECT_EQ(out.ids.size(), 40u);
  }
  ASSERT_FALSE(recorder.all.empty());
  for (const auto& heard : recorder.all) EXPECT_EQ(heard.event.branch, branches[0].id());
  EXPECT_EQ(e.stats().preemptions, std::ssize(recorder.all));
}

TEST(Events, ReadersHearTheirKindsWhileTheySubscribe) {
  const Engine e = load("tinyllama");
  Session session(e);
  Branch root = session.prefill(Tokens{1, 2, 3});
  Recorder forks(e, mask_of(EventKind::kFork));
  Recorder prunes(e, mask_of(EventKind::kPrune));
  Branch kid = root.fork();
  kid.prune();
  EXPECT_EQ(forks.all.size(), 1u);
  EXPECT_EQ(prunes.all.size(), 1u);
  EventSubscription moved = std::move(forks.subscription);
  EXPECT_FALSE(forks.subscription.active());  // NOLINT(bugprone-use-after-move)
  kid = root.fork();
  EXPECT_EQ(forks.all.size(), 2u);
  moved.off();
  kid = root.fork();  // drops the one before
  EXPECT_EQ(forks.all.size(), 2u);
  EXPECT_EQ(prunes.all.size(), 2u);
}

TEST(Events, AReaderThatThrowsStopsNothing) {
  const Engine e = load("tinyllama");
  int heard = 0;
  const EventSubscription bad = e.on_event(kAllEvents, [&](const Event&) {
    ++heard;
    throw std::runtime_error("no");
  });
  Session session(e);
  Branch root = session.prefill(Tokens{1, 2, 3});
  EXPECT_EQ(session.decode(root, greedy(4)).ids.size(), 4u);
  EXPECT_GT(heard, 4);
}

TEST(Events, ASubscriptionMayOutliveItsEngineAndOwnBranches) {
  EventSubscription subscription;
  {
    const Engine e = load("tinyllama");
    auto session = std::make_shared<Session>(e);
    auto kept = std::make_shared<Branch>(session->prefill(Tokens{1, 2, 3}));
    // Ending it drops the reader, and with it a branch, which needs the lock.
    subscription = e.on_event(kAllEvents, [kept, session](const Event&) {});
    session.reset();
    kept.reset();
    subscription.off();
    subscription = e.on_event(kAllEvents, [](const Event&) {});
  }
  EXPECT_TRUE(subscription.active());
  subscription.off();
  EXPECT_FALSE(subscription.active());
}

TEST(Events, AsJsonAreTheFieldsOfTheirKind) {
  const Engine e = load("tinyllama");
  std::vector<nlohmann::json> lines;
  const EventSubscription subscription = e.on_event(kAllEvents, [&](const Event& event) {
    const std::string line = to_json_line(event);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    lines.push_back(nlohmann::json::parse(line));
  });
  Session session(e);
  Branch root = session.prefill(Tokens{1, 2, 3});
  std::vector<Branch> kids = root.fork(2);
  session.decode(kids, greedy(3));
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines[0]["event"], "prefill");
  EXPECT_EQ(lines[0]["length"], 3);
  EXPECT_FALSE(lines[0].contains("rows"));
  bool saw_step = false;
  for (const nlohmann::json& line : lines) {
    EXPECT_TRUE(line.contains("sequence") && line.contains("time_ns") && line.contains("session"));
    if (line["event"] != "step" || line["branches"] != 2) continue;
    saw_step = true;
    EXPECT_EQ(line["ran"], (nlohmann::json{2, 3}));
    EXPECT_EQ(line["rows"], 2);
    EXPECT_GT(line["ms"].get<double>(), 0);
    EXPECT_GT(line["naive_bytes"].get<std::int64_t>(), 0);
    EXPECT_GT(line["unique_bytes"].get<std::int64_t>(), 0);
  }
  EXPECT_TRUE(saw_step);
  for (int kind = 0; kind < kEventKinds; ++kind) {  // also those that nothing emits yet
    Event event;
    event.kind = static_cast<EventKind>(kind);
    EXPECT_EQ(nlohmann::json::parse(to_json_line(event))["event"], name_of(event.kind));
  }
}

}  // namespace
}  // namespace dendrite
