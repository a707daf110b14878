// The event stream: what happened is told once, in order, with numbers that add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/observe/event_log.h"
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
      "prefill",  "allocate",      "step",     "finish",        "call",  // 20 rows
      "fork",     "fork",  // and the first token is known without a step
      "allocate", "copy_on_write", "allocate", "copy_on_write", "step",  // a half full page
      "step",     "finish",        "finish",   "call",          "fork", "prune"};
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
  const auto allocations = recorder.of(EventKind::kAllocate);
  EXPECT_EQ(allocations[0].event.branch, root.id());
  EXPECT_EQ(allocations[0].event.pages, 2);
  EXPECT_EQ(allocations[1].event.branch, kids[0].id());
  EXPECT_EQ(allocations[1].event.pages, 1);
  EXPECT_EQ(allocations[2].event.pages_used, 4);
  const auto finishes = recorder.of(EventKind::kFinish);
  EXPECT_EQ(finishes[0].event.finish, Finish::kRunning);
  EXPECT_EQ(finishes[1].event.finish, Finish::kLength);
  EXPECT_EQ(finishes[1].event.tokens, 3);
  const Event prune = recorder.of(EventKind::kPrune)[0].event;
  EXPECT_EQ(prune.branch, BranchId(3));
  EXPECT_EQ(prune.length, 23);
  EXPECT_EQ(prune.pages, 1);
}

/// Calls of a session one after the other: kinds, and counts that are the session's.
TEST(Events, TellOfEveryCall) {
  const Engine e = load("tinyllama", {.page_tokens = 16});
  const Recorder recorder(e, mask_of(EventKind::kCall));
  Session session(e);
  Branch root = session.prefill(std::span<const Token>(Random(1).tokens(20, 256)));
  std::vector<Branch> kids = root.fork(3);
  session.decode(kids, greedy(5));
  session.score_tokens(std::span(kids), {{1, 2, 3}, {1, 2, 4}});
  session.next_tokens(std::span<const Branch>(kids), {.top = 2});
  session.distributions(std::span(kids));
  const Composed composed = session.compact(root, std::vector<Span>{{0, 4}, {8, 12}});
  const Chunk chunk = session.register_chunk(Tokens{5, 6, 7, 8});
  std::vector<std::string> names;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  for (const auto& heard : recorder.all) {
    const Event& call = heard.event;
    names.push_back(name_of(call.call));
    rows += call.rows;
    tokens += call.tokens;
    EXPECT_EQ(call.session, 1u);
    EXPECT_GE(call.queued_ms, 0);
    EXPECT_LE(call.queued_ms, call.ms);
    EXPECT_EQ(call.tokens > 0, call.first_token_ms > 0);
    EXPECT_LE(call.first_token_ms, call.ms);
  }
  const std::vector<std::string> expected = {"prefill",       "decode",  "score", "next_tokens",
                                             "distributions", "compose", "chunk"};
  EXPECT_EQ(names, expected);
  EXPECT_EQ(rows, session.stats().tokens_computed);
  EXPECT_EQ(tokens, 15);
  const Event& decode = recorder.all[1].event;
  EXPECT_EQ(decode.branches, 3);
  EXPECT_EQ(decode.tokens, 15);
  EXPECT_EQ(decode.rows, 3 * 4);  // the first token needs none, the last one has none
  EXPECT_EQ(decode.finish, Finish::kLength);
  EXPECT_NEAR(decode.tokens_per_second, 15 / decode.ms * 1e3, 1e-6);
  EXPECT_EQ(recorder.all[0].event.finish, Finish::kRunning);
  const EngineStats stats = e.stats();
  EXPECT_EQ(stats.calls, 7);
  EXPECT_EQ(stats.first_tokens, 1);
  EXPECT_NEAR(stats.first_token_seconds * 1e3, decode.first_token_ms, 1e-6);
  EXPECT_GE(stats.call_seconds, stats.queued_seconds);
}

TEST(Events, ACallThatWasCutSaysSo) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .kv_tokens = 64, .prefix_index = false});
  const Recorder recorder(e, mask_of(EventKind::kCall));
  Session session(e);
  Branch root = session.prefill(std::span<const Token>(Random(1).tokens(32, 256)));
  std::vector<Branch> kids = root.fork(2);
  DecodeParams params = greedy(40);  // more than there are pages for
  session.decode(kids, params);
  EXPECT_EQ(recorder.all.back().event.finish, Finish::kBudget);
  std::stop_source stop;
  stop.request_stop();
  params.cancel = stop.get_token();
  session.decode(kids, params);
  const Event& cancelled = recorder.all.back().event;
  EXPECT_EQ(cancelled.finish, Finish::kCancelled);
  EXPECT_EQ(cancelled.rows, 0);
  EXPECT_EQ(cancelled.queued_ms, cancelled.ms);  // it never ran
  { const PendingDecode dropped = session.submit_decode(kids[0].fork(), greedy(3)); }
  EXPECT_EQ(recorder.all.back().event.finish, Finish::kCancelled);
  EXPECT_EQ(recorder.all.size(), 4u);
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
  EXPECT_GE(no_room[0].event.pages, 1);
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
  const Engine e = load("tinyllama", {.page_tokens = 16, .kv_tokens = 128, .prefix_index = false});
  const Recorder recorder(e, mask_of(EventKind::kPreempt));
  Session session(e);
  test::expect_short_texts(session);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(std::span<const Token>(Random(1).tokens(16, 256))));
  branches.push_back(session.prefill(std::span<const Token>(Random(2).tokens(16, 256))));
  branches[1].set_priority(1);
  for (const Generation& out : session.decode(branches, greedy(80))) {
    EXPECT_EQ(out.ids.size(), 80u);
  }
  ASSERT_FALSE(recorder.all.empty());
  for (const auto& heard : recorder.all) EXPECT_EQ(heard.event.branch, branches[0].id());
  EXPECT_EQ(e.stats().preemptions, std::ssize(recorder.all));
}

/// One level after the other: first what is remembered goes, then what branches have, then nobody
/// has enough.
TEST(Events, TellOfEachLevelOfPressure) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .kv_tokens = 64});
  const Recorder recorder(
      e, mask_of(EventKind::kPressure, EventKind::kForget, EventKind::kEvict, EventKind::kPreempt));
  const auto names = [&] {
    std::vector<std::string> out;
    for (const auto& heard : recorder.all) {
      const bool is_level = heard.event.kind == EventKind::kPressure;
      out.emplace_back(is_level ? name_of(heard.event.level) : name_of(heard.event.kind));
    }
    return out;
  };
  Session session(e);
  session.prefill(std::span<const Token>(Random(1).tokens(40, 256)));  // gone, and remembered
  EXPECT_TRUE(recorder.all.empty());
  Branch second = session.prefill(std::span<const Token>(Random(2).tokens(32, 256)));
  EXPECT_EQ(names(), (std::vector<std::string>{"soft", "forget"}));
  const std::int64_t lost = e.stats().evictions;
  EXPECT_EQ(lost, 0);

  Branch third = session.prefill(std::span<const Token>(Random(3).tokens(40, 256)));
  const std::vector<std::string> all = names();
  const auto hard = std::ranges::find(all, "hard");
  ASSERT_NE(hard, all.end());
  EXPECT_EQ(*(hard + 1), "evict");  // with notice of who lost what
  EXPECT_EQ(std::ranges::count(all, "reject"), 0);
  EXPECT_GT(e.stats().evictions, 0);

  third.append(std::span<const Token>(Random(4).tokens(40, 256)));  // 80 tokens in 64 slots
  EXPECT_FALSE(third.distribution().valid());
  EXPECT_EQ(third.finish(), Finish::kBudget);
  const auto levels = recorder.of(EventKind::kPressure);
  const Event& reject = levels.back().event;
  EXPECT_EQ(reject.level, Pressure::kReject);
  EXPECT_EQ(reject.session, 1u);
  EXPECT_EQ(reject.branch, third.id());
  EXPECT_EQ(reject.length, 80);
  const std::optional<KvShortage> advice = session.shortage();
  ASSERT_TRUE(advice.has_value());
  EXPECT_EQ(reject.pages, advice->pages_needed);
  EXPECT_EQ(reject.tokens, advice->kv_tokens_needed());
  EXPECT_GE(reject.tokens, 80);
  const nlohmann::json line = nlohmann::json::parse(to_json_line(reject));
  EXPECT_EQ(line["level"], "reject");
  EXPECT_EQ(line["tokens"], reject.tokens);
}

/// Whoever follows the logs misses nothing.
TEST(Events, EveryKindIsInALog) {
  for (const auto& [variable, kinds] : {std::pair("DENDRITE_LOG_FORK", kForkEvents),
                                        std::pair("DENDRITE_LOG_SCHEDULER", kSchedulerEvents)}) {
    EventHub hub;
    setenv(variable, "1", 1);
    add_log_readers(hub);
    unsetenv(variable);
    for (int i = 0; i < kEventKinds; ++i) {
      Event event;
      event.kind = static_cast<EventKind>(i);
      EXPECT_EQ(hub.wants(event.kind), (kinds & mask_of(event.kind)) != 0) << name_of(event.kind);
      testing::internal::CaptureStderr();
      hub.emit(event);
      const std::string line = testing::internal::GetCapturedStderr();
      EXPECT_EQ(line.find(name_of(event.kind)) != std::string::npos, hub.wants(event.kind)) << line;
    }
  }
  for (int i = 0; i < kEventKinds; ++i) {
    const EventMask kind = mask_of(static_cast<EventKind>(i));
    EXPECT_NE((kForkEvents | kSchedulerEvents) & kind, 0u) << name_of(static_cast<EventKind>(i));
  }
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
