// /v1/searches: the library's strategies by numbers and prompts.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <sstream>

#include "dendrite/search.h"
#include "server_support.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

// As `dendrite solve` asks: steps of a puzzle, and whole answers to it.
const std::string kSteps = "P 24: 4 5 6 10\n";
const std::string kAnswer = "S 24: 4 5 6 10\n";
const Json kValue = {{"prompt", "?"}, {"options", {{"s", 1}, {"i", 0}}}};

Json with(Json strategy, const std::string& input, Json more = Json::object()) {
  Json out = {{"input", input}, {"seed", 7}, {"strategy", std::move(strategy)}};
  out.update(more);
  return out;
}

/// One of each type.
std::map<std::string, Json> each_strategy() {
  const auto tree = [](const char* type, Json more) {
    Json out = {{"type", type}, {"value", kValue}, {"solved_by", {"| 24\n"}}};
    out.update(more);
    return with(out, kSteps);
  };
  const Json all_likely = {{"min_prob", 0.02}};
  std::map<std::string, Json> out;
  out["best_of_n"] = with({{"type", "best_of_n"}, {"n", 6}}, kAnswer, {{"max_tokens", 60}});
  out["self_consistency"] =
      with({{"type", "self_consistency"}, {"n", 6}, {"answer_after", "="}}, kAnswer);
  out["beam"] = with({{"type", "beam"}, {"width", 4}}, kAnswer, {{"max_tokens", 60}});
  out["tree_of_thoughts"] = tree("tree_of_thoughts", all_likely);
  out["depth_first"] = tree("depth_first", {{"candidates", 4}, {"max_nodes", 20}});
  out["best_first"] = tree("best_first", {{"candidates", 4}, {"max_expansions", 10}});
  out["mcts"] = tree("mcts", {{"rule", "puct"}, {"iterations", 16}, {"candidates", 3}});
  out["self_refinement"] =
      with({{"type", "self_refinement"}, {"rounds", 2}, {"value", kValue}, {"feedback", "\n"}},
           kAnswer, {{"max_tokens", 20}});
  out["fork_join"] = with({{"type", "fork_join"},
                           {"open", "|"},
                           {"close", "\n"},
                           {"children", 2},
                           {"max_forks", 1},
                           {"max_child_tokens", 12}},
                          kSteps, {{"max_tokens", 40}});
  return out;
}

/// Without what may differ from run to run: its id, and what was found of what others computed.
Json same_part(Json search) {
  search.erase("id");
  search["usage"].erase("input_tokens_details");
  search["usage"].erase("dendrite");
  return search;
}

class SearchesTest : public testing::Test {
 protected:
  Json ok(const Json& body) {
    const Got got = server_.post("/v1/searches", body);
    EXPECT_EQ(got.status, 200) << got.body << body;
    return got.json();
  }
  TestServer server_{engine()};
};

TEST_F(SearchesTest, EachStrategyIsWholeStreamedAndAgainTheSame) {
  for (const auto& [type, body] : each_strategy()) {
    SCOPED_TRACE(type);
    const Json whole = ok(body);
    EXPECT_EQ(whole["object"], "search");
    EXPECT_EQ(whole["status"], "completed") << whole["finish"];
    ASSERT_GT(whole["nodes"].size(), 0U);
    EXPECT_FALSE(whole["text"].is_null());
    EXPECT_FALSE(whole["path"].empty());
    EXPECT_EQ(same_part(ok(body)), same_part(whole));

    Json streamed = body;
    streamed["stream"] = true;
    const Got got = server_.post("/v1/searches", streamed);
    ASSERT_EQ(got.header("Content-Type"), "text/event-stream; charset=utf-8");
    const std::vector<Json> events = events_of(got.body);
    ASSERT_GT(events.size(), 2U);
    EXPECT_EQ(events.front()["type"], "search.created");
    EXPECT_EQ(events.back()["type"], "search.completed");
    EXPECT_EQ(same_part(events.back()["search"]), same_part(whole));
    EXPECT_EQ(events.front()["search"]["id"], events.back()["search"]["id"]);
    // What was told on the way is what comes out.
    Json nodes = Json::array();
    for (std::size_t i = 0; i < events.size(); ++i) {
      const Json& event = events[i];
      EXPECT_EQ(event["sequence_number"], i);
      if (!event.contains("node")) continue;
      const auto node = event["node"].get<std::size_t>();
      if (event["type"] == "search.node.added") {
        ASSERT_EQ(node, nodes.size() + 1);
        nodes.push_back(event);
      } else {
        ASSERT_LE(node, nodes.size());
        nodes[node - 1].update(event);
        if (event["type"] == "search.node.kept") nodes[node - 1]["kept"] = true;
      }
    }
    ASSERT_EQ(nodes.size(), whole["nodes"].size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Json& in_the_end = whole["nodes"][i];
      for (const char* name : {"parent", "depth", "text", "tokens", "logprob"}) {
        EXPECT_EQ(nodes[i][name], in_the_end[name]) << name << i;
      }
      if (nodes[i].contains("value")) {
        EXPECT_EQ(nodes[i]["value"], in_the_end["value"]) << i;
      }
      EXPECT_EQ(nodes[i].contains("kept"), in_the_end["kept"].get<bool>()) << i;
    }
  }
}

TEST_F(SearchesTest, ATreeIsSearchedAsTheLibraryDoes) {
  const Json got = ok(each_strategy()["tree_of_thoughts"]);
  EXPECT_EQ(got["solved"], true);
  EXPECT_EQ(got["path"].size(), 3U);
  const std::string text = got["text"];
  EXPECT_TRUE(text.ends_with("| 24\n")) << text;
  EXPECT_EQ(got["usage"]["input_tokens"], engine().encode(kSteps).size());
  // Values are chances of "?s" against "?i".
  Session session(engine());
  Branch branch = session.prefill(kSteps + got["nodes"][0]["text"].get<std::string>() + "\n");
  const std::vector<Score> scores = branch.score({"?s", "?i"});
  EXPECT_NEAR(got["nodes"][0]["value"].get<double>(),
              1 / (1 + std::exp(scores[1].logprob - scores[0].logprob)), 1e-6);
}

TEST_F(SearchesTest, VotesAreOfWhatStandsBehindTheMark) {
  const Json got = ok(each_strategy()["self_consistency"]);
  ASSERT_FALSE(got["votes"].empty());
  int votes = 0;
  for (const Json& vote : got["votes"]) votes += vote["count"].get<int>();
  EXPECT_LE(votes, 6);
  const std::string best = got["votes"][0]["answer"];
  EXPECT_NE(got["text"].get<std::string>().find("=" + best), std::string::npos);
}

TEST_F(SearchesTest, AFormHoldsForEveryText) {
  for (Json strategy :
       {Json{{"type", "best_of_n"}, {"n", 3}}, Json{{"type", "beam"}, {"width", 3}}}) {
    const Json got = ok(with(strategy, kAnswer, {{"structured_outputs", {{"regex", "[0-9]{3}"}}}}));
    EXPECT_EQ(got["text"].get<std::string>().size(), 3U) << got;
    for (const Json& other : got["others"]) EXPECT_EQ(other["text"].get<std::string>().size(), 3U);
  }
}

TEST_F(SearchesTest, ABudgetEndsItAndSaysSo) {
  Json body = each_strategy()["best_of_n"];
  body["budget"] = {{"tokens", 30}};
  const Json got = ok(body);
  EXPECT_EQ(got["status"], "incomplete");
  EXPECT_EQ(got["finish"], "budget");
}

TEST_F(SearchesTest, MessagesAreAConversation) {
  Json body = each_strategy()["best_of_n"];
  body["input"] = Json::array({{{"role", "user"}, {"content", "4 5 6 10"}}});
  const std::string rendered = engine().render_chat(body["input"].dump());
  EXPECT_EQ(ok(body)["usage"]["input_tokens"], engine().encode(rendered, false).size());
}

TEST_F(SearchesTest, TheTraceIsOneThatTheLibraryReads) {
  Json body = each_strategy()["mcts"];
  body["trace"] = true;
  const Json got = ok(body);
  std::istringstream text(got["trace"].get<std::string>());
  const Trace trace = read_trace(text);
  EXPECT_EQ(trace.header.strategy, "mcts-puct");
  EXPECT_EQ(trace.header.seed, 7U);
  EXPECT_EQ(trace.header.prompt, kSteps);
  EXPECT_EQ(std::ranges::count(trace.events, SearchEvent::Kind::kProposed, &TraceEvent::kind),
            std::ssize(got["nodes"]));
  ASSERT_TRUE(trace.result);
  EXPECT_EQ(trace.result->nodes, std::ssize(got["nodes"]));
  EXPECT_EQ(Json(trace.result->path), got["path"]);
  EXPECT_FALSE(ok(each_strategy()["mcts"]).contains("trace"));
}

TEST_F(SearchesTest, TheSameUnderLoad) {
  std::map<std::string, Json> alone;
  const std::map<std::string, Json> all = each_strategy();
  for (const auto& [type, body] : all) alone[type] = same_part(ok(body));
  std::vector<std::thread> callers;
  std::mutex mutex;
  std::map<std::string, Json> together;
  for (const auto& [type, body] : all) {
    callers.emplace_back([&, type = type, body = body] {
      Json got = server_.post("/v1/searches", body).json();
      const std::lock_guard lock(mutex);
      together[type] = std::move(got);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& [type, got] : together) EXPECT_EQ(same_part(got), alone[type]) << type;
}

/// One that would go on for long.
Json long_one() {
  return with(
      {{"type", "mcts"}, {"iterations", 100000}, {"batch", 2}, {"depth", 60}, {"candidates", 4}},
      kSteps, {{"stream", true}, {"budget", {{"tokens", 1'000'000'000}}}});
}

TEST(Searches, AClientThatGoesEndsItsSearchAndFreesItsPages) {
  const Engine own = shipped();
  const TestServer server(own);
  Client client(server.port());
  client.send(request_text("POST", "/v1/searches", dump(long_one())));
  std::string seen;
  ASSERT_TRUE(client.until("search.node.added", seen));
  EXPECT_GT(own.stats().branches_live, 0);
  client.close();
  EXPECT_TRUE(soon([&] { return own.stats().branches_live == 0; }));
  EXPECT_EQ(server.post("/v1/searches", with({{"type", "beam"}}, kAnswer)).status, 200);
}

TEST(Searches, SoManyRunAtATime) {
  const Engine own = shipped();
  const TestServer server(own);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(request_text("POST", "/v1/searches", dump(long_one())));
    std::string seen;
    ASSERT_TRUE(clients.back()->until("search.created", seen));
  }
  const Json small = with({{"type", "beam"}, {"width", 1}}, kAnswer);
  const Got got = server.post("/v1/searches", small);
  EXPECT_EQ(got.status, 503);
  EXPECT_EQ(got.json()["error"]["code"], "server_overloaded");
  clients.pop_back();
  EXPECT_TRUE(soon([&] { return server.post("/v1/searches", small).status == 200; }));
}

TEST(Searches, AStopIsAnEventOfWhatRuns) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(100);
  TestServer server(shipped(), options);
  Client client(server.port());
  client.send(request_text("POST", "/v1/searches", dump(long_one())));
  std::string seen;
  ASSERT_TRUE(client.until("search.node.added", seen));
  server.begin_stop();
  ASSERT_TRUE(client.until("event: search.failed", seen));
  ASSERT_TRUE(client.until("\n\n", seen));
  EXPECT_NE(seen.find("shutting_down"), std::string::npos) << seen;
}

TEST_F(SearchesTest, WhatCannotBeIsRefusedByName) {
  const auto param = [&](const Json& body) {
    const Got got = server_.post("/v1/searches", body);
    EXPECT_EQ(got.status, 400) << body << got.body;
    return got.json()["error"].value("param", "");
  };
  const auto of = [&](Json strategy, Json more = Json::object()) {
    return param(with(std::move(strategy), kSteps, std::move(more)));
  };
  const Json beam = {{"type", "beam"}};
  const Json tree = {{"type", "tree_of_thoughts"}};
  EXPECT_EQ(param({{"strategy", beam}}), "input");
  EXPECT_EQ(param({{"input", "x"}}), "strategy");
  EXPECT_EQ(param({{"input", 5}, {"strategy", beam}}), "input");
  EXPECT_EQ(param({{"input", Json::array({{{"role", "x"}}})}, {"strategy", beam}}),
            "input[0].role");
  EXPECT_EQ(of(Json::object()), "strategy.type");
  EXPECT_EQ(of({{"type", "anneal"}}), "strategy.type");
  EXPECT_EQ(of({{"type", "beam"}, {"n", 3}}), "strategy.n");
  EXPECT_EQ(of({{"type", "beam"}, {"width", 0}}), "strategy.width");
  EXPECT_EQ(of({{"type", "beam"}, {"width", 4}, {"groups", 3}}), "strategy.groups");
  EXPECT_EQ(of({{"type", "best_of_n"}, {"n", 1000}}), "strategy.n");
  EXPECT_EQ(of({{"type", "best_of_n"}, {"first_success", true}}), "strategy.first_success");
  EXPECT_EQ(of({{"type", "best_of_n"}, {"solved_by", {1}}}), "strategy.solved_by[0]");
  EXPECT_EQ(of({{"type", "best_of_n"}, {"value", {{"prompt", "?"}}}}), "strategy.value.options");
  EXPECT_EQ(of({{"type", "best_of_n"}, {"value", {{"options", {{"a", 1}, {"b", "x"}}}}}}),
            "strategy.value.options.b");
  EXPECT_EQ(of({{"type", "best_of_n"}, {"value", {{"options", {{"a", 1}, {"b", 0}}}, {"x", 1}}}}),
            "strategy.value.x");
  EXPECT_EQ(of({{"type", "self_refinement"}}), "strategy.value");
  EXPECT_EQ(of({{"type", "fork_join"}}), "strategy.open");
  // Behind a draft it is longer than the model has positions, which is known only then.
  const Json value = {{"options", {{"a", 1}, {"b", 0}}}};
  EXPECT_EQ(
      of({{"type", "self_refinement"}, {"value", value}, {"feedback", std::string(16000, '0')}}),
      "strategy");
  EXPECT_EQ(of({{"type", "mcts"}, {"rule", "x"}}), "strategy.rule");
  EXPECT_EQ(of({{"type", "mcts"}, {"min_prob", 0.5}, {"candidates", 2}}), "strategy.candidates");
  EXPECT_EQ(of(beam, {{"temperature", 0.5}}), "temperature");
  EXPECT_EQ(of(tree, {{"max_tokens", 5}}), "max_tokens");
  EXPECT_EQ(of(tree, {{"top_p", 0.5}}), "top_p");
  EXPECT_EQ(of(tree, {{"stop", "x"}}), "stop");
  EXPECT_EQ(of(beam, {{"n", 2}}), "n");
  EXPECT_EQ(of(beam, {{"tools", {1}}}), "tools");
  EXPECT_EQ(of(beam, {{"budget", {{"tokens", 0}}}}), "budget.tokens");
  EXPECT_EQ(of(beam, {{"budget", {{"pages", 1}}}}), "budget.pages");
  EXPECT_EQ(of(beam, {{"structured_outputs", {{"regex", "("}}}}), "structured_outputs");
  EXPECT_EQ(server_.post("/v1/searches", with(beam, kSteps, {{"model", "x"}})).status, 404);
}

}  // namespace
}  // namespace dendrite::server
