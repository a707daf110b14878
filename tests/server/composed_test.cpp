// Conversations that were changed in the middle: `dendrite.reuse` is "composed".
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/recent_branches.h"
#include "server/server_support.h"
#include "support/temporary_folder.h"

namespace dendrite::server {
namespace {

Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

const Json kComposed = {{"dendrite", {{"reuse", "composed"}}}};

/// Some 1,700 bytes, which are tokens here.
std::string documents() {
  std::string text;
  for (int i = 0; i < 30; ++i) {
    text += "Belna" + std::to_string(i * 37 % 101) + " has code " + std::to_string(i * 53 % 97) +
            ". It has tree oak. It has width " + std::to_string(i * i) + ".\n";
  }
  return text + "Seen: fox.";
}

/// Of a chat; what is changed stands at its beginning.
Json chat(const std::string& first, const Json& more = Json::object()) {
  return with({{"messages",
                {{{"role", "system"}, {"content", first}},
                 {{"role", "user"}, {"content", documents()}},
                 {{"role", "user"}, {"content", "Q: code of Belna7?"}}}},
               {"max_tokens", 8},
               {"temperature", 0},
               {"logprobs", true},
               {"top_logprobs", 2}},
              more);
}

class ComposedServed : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = new Engine(shipped("dendrite-compose")); }
  static void TearDownTestSuite() { delete engine_; }

  /// With nothing in it.
  static Engine fresh() { return shipped("dendrite-compose"); }
  static Json post(const TestServer& server, const std::string& path, const Json& body,
                   const std::string& headers = {}) {
    const Got got = server.post(path, body, headers);
    EXPECT_EQ(got.status, 200) << got.body;
    return got.json();
  }
  static Json ask(const TestServer& server, const Json& body, const std::string& headers = {}) {
    return post(server, "/v1/chat/completions", body, headers);
  }
  /// What an engine that has seen nothing says, to the bit.
  static std::string exact(const Json& body) {
    const Engine engine = fresh();
    const TestServer server(engine);
    return ask(server, body)["choices"].dump();
  }
  static Engine* engine_;
};
Engine* ComposedServed::engine_ = nullptr;

void expect_composed(const Json& usage, std::int64_t prompt) {
  EXPECT_GT(usage["moved"], prompt / 2) << usage;
  EXPECT_GT(usage["repaired"], 0) << usage;
  EXPECT_TRUE(usage["estimated_error"].is_number()) << usage;
  EXPECT_FALSE(usage.contains("note")) << usage;
}

TEST_F(ComposedServed, AChangeInTheMiddleComputesLess) {
  const Engine engine = fresh();
  const TestServer server(engine);
  const auto rows = [&](const Json& body, Json& answer) {
    const std::int64_t before = engine.stats().rows;
    answer = ask(server, body);
    return engine.stats().rows - before;
  };
  Json first;
  Json changed;
  Json plain;
  const std::int64_t all = rows(chat("Documents of case 7."), first);
  EXPECT_FALSE(first["usage"]["dendrite"].contains("moved"));
  const std::int64_t some = rows(chat("Documents of case 12345.", kComposed), changed);
  const Json& usage = changed["usage"];
  const std::int64_t prompt = usage["prompt_tokens"];
  expect_composed(usage["dendrite"], prompt);
  EXPECT_LT(usage["dendrite"]["computed"], prompt / 4);
  EXPECT_EQ(usage["dendrite"]["shared"], usage["prompt_tokens_details"]["cached_tokens"]);
  EXPECT_LT(some, all / 2);
  EXPECT_GT(engine.stats().tokens_moved, prompt / 2);

  // The same without the field is computed, and has nothing of what was moved.
  const Json body = chat("Documents of case 12345.");
  EXPECT_GT(rows(body, plain), all / 2);
  EXPECT_FALSE(plain["usage"]["dendrite"].contains("moved"));
  EXPECT_EQ(plain["choices"].dump(), exact(body));
}

TEST_F(ComposedServed, TurnsGoOnFromWhatWasComposedAndSaySo) {
  const TestServer server(*engine_);
  ask(server, chat("Documents of case 1."));
  const Json body = chat("Documents of case 22.", kComposed);
  const Json changed = ask(server, body);
  Json next = body;
  next["messages"].push_back(
      {{"role", "assistant"}, {"content", changed["choices"][0]["message"]["content"]}});
  next["messages"].push_back({{"role", "user"}, {"content", "Q: width of Belna7?"}});
  const Json usage = ask(server, next)["usage"]["dendrite"];
  EXPECT_EQ(usage["moved"], changed["usage"]["dendrite"]["moved"]);
  EXPECT_EQ(usage["repaired"], changed["usage"]["dendrite"]["repaired"]);
  EXPECT_EQ(usage["estimated_error"], changed["usage"]["dendrite"]["estimated_error"]);
  EXPECT_LT(usage["computed"], 60);
  // Without the field it is exact.
  next.erase("dendrite");
  EXPECT_EQ(ask(server, next)["choices"].dump(), exact(next));
}

TEST_F(ComposedServed, AChangeBehindAChange) {
  const TestServer server(*engine_);
  std::string more;
  for (int i = 0; i < 20; ++i) {
    more += "Torvik" + std::to_string(i * 31 % 89) + " has age " + std::to_string(i * 17) +
            ". It has metal tin.\n";
  }
  const auto body = [&](const std::string& first, const std::string& note) {
    Json out = chat(first, kComposed);
    out["messages"][2]["content"] = note + "\n" + more + "Q: age of Torvik31?";
    return out;
  };
  EXPECT_EQ(ask(server, body("Case 3.", "Note 1."))["usage"]["dendrite"]["moved"], 0);
  const Json one = ask(server, body("Case 44.", "Note 1."))["usage"]["dendrite"];
  const Json two = ask(server, body("Case 44.", "Note 234."))["usage"]["dendrite"];
  expect_composed(one, 1000);
  expect_composed(two, 1000);
  EXPECT_GT(two["moved"], one["moved"].get<std::int64_t>() - 150);
  EXPECT_LT(two["computed"], one["computed"].get<std::int64_t>() + 100);
}

TEST_F(ComposedServed, AnErrorAboveWhatIsAllowedIsComputed) {
  const TestServer server(*engine_);
  ask(server, chat("Documents of case 5."));
  const Json body = chat("Documents of case 66.");
  const Json strict =
      ask(server, with(body, {{"dendrite", {{"reuse", "composed"}, {"max_error", 0}}}}));
  const Json& usage = strict["usage"]["dendrite"];
  EXPECT_EQ(usage["moved"], 0) << usage;
  EXPECT_TRUE(usage["estimated_error"].is_null());
  EXPECT_NE(usage["note"].get<std::string>().find("estimated error"), std::string::npos) << usage;
  EXPECT_EQ(strict["choices"].dump(), exact(body));
  // And one who asks for no bound gets none that is kept from others.
  expect_composed(ask(server, chat("Documents of case 777.", kComposed))["usage"]["dendrite"],
                  1000);
}

TEST_F(ComposedServed, ResponsesAlsoAfterARestart) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  const ServerOptions options{.response_store = folder.path().string()};
  const Json body = {{"input", documents()}, {"temperature", 0}, {"max_output_tokens", 8}};
  Json changed;
  {
    const TestServer server(*engine_, options);
    const Json first = post(server, "/v1/responses", with(body, {{"instructions", "Case 8."}}));
    const Json more = {{"instructions", "Of case 99."},
                       {"previous_response_id", first["id"]},
                       {"input", "Q: code of Belna7?"}};
    changed = post(server, "/v1/responses", with(with(body, more), kComposed));
    expect_composed(changed["usage"]["dendrite"], changed["usage"]["input_tokens"]);
  }
  const TestServer server(*engine_, options);
  EXPECT_EQ(server.get("/v1/responses/" + changed["id"].get<std::string>()).json().dump(),
            changed.dump());
}

/// As it was generated it is not exact; who does not ask for that gets it computed.
TEST_F(ComposedServed, WhatWasGeneratedBehindSomethingMoved) {
  const TestServer server(*engine_);
  const Json body = {{"input", documents()}, {"temperature", 0}, {"max_output_tokens", 8}};
  ask(server, chat("Of case 8."));
  Json changed = post(server, "/v1/responses",
                      with(with(body, kComposed), {{"instructions", "Documents of case 9."}}));
  expect_composed(changed["usage"]["dendrite"], changed["usage"]["input_tokens"]);
  Json on = {{"instructions", "Documents of case 9."},
             {"previous_response_id", changed["id"]},
             {"input", "And?"},
             {"dendrite", {{"history", "as_generated"}}}};
  const Json computed = post(server, "/v1/responses", with(body, on))["usage"]["dendrite"];
  EXPECT_FALSE(computed.contains("moved")) << computed;
  EXPECT_GT(computed["computed"], 1000);
  on["dendrite"]["reuse"] = "composed";
  const Json usage = post(server, "/v1/responses", with(body, on))["usage"]["dendrite"];
  EXPECT_EQ(usage["moved"], changed["usage"]["dendrite"]["moved"]) << usage;
  EXPECT_LT(usage["computed"], 60);
}

TEST_F(ComposedServed, MessagesWholeAndStreamed) {
  const TestServer server(*engine_);
  const auto body = [](const std::string& system) {
    return Json{{"system", system},
                {"messages", {{{"role", "user"}, {"content", documents()}}}},
                {"max_tokens", 8},
                {"temperature", 0}};
  };
  const Json first = post(server, "/v1/messages", body("Case 10."));
  EXPECT_FALSE(first["usage"].contains("dendrite"));
  const Json changed = post(server, "/v1/messages", with(body("Of case 111."), kComposed));
  const Json& usage = changed["usage"];
  const std::int64_t prompt = usage["input_tokens"].get<std::int64_t>() +
                              usage["cache_read_input_tokens"].get<std::int64_t>();
  expect_composed(usage["dendrite"], prompt);
  EXPECT_LT(usage["input_tokens"], prompt / 4);
  Json streamed = with(body("Now of case 1212."), kComposed);
  streamed["stream"] = true;
  const std::vector<Json> events = events_of(server.post("/v1/messages", streamed).body);
  ASSERT_EQ(events.front()["type"], "message_start");
  const Json& begin = events.front()["message"]["usage"]["dendrite"];
  expect_composed(begin, 1000);
  EXPECT_EQ(events[events.size() - 2]["usage"]["dendrite"], begin);
}

TEST_F(ComposedServed, WhatIsNoValueIsRefusedByName) {
  const TestServer server(*engine_);
  const Json bodies[] = {
      chat("a"), {{"input", "a"}}, {{"max_tokens", 4}, {"messages", chat("a")["messages"]}}};
  const char* paths[] = {"/v1/chat/completions", "/v1/responses", "/v1/messages"};
  for (int i = 0; i < 3; ++i) {
    const auto refused = [&](const Json& extension) {
      const Got got = server.post(paths[i], with(bodies[i], {{"dendrite", extension}}));
      EXPECT_EQ(got.status, 400);
      return got.json()["error"].dump();
    };
    EXPECT_NE(refused({{"reuse", "fast"}}).find("dendrite.reuse"), std::string::npos);
    EXPECT_NE(refused({{"reuse", 1}}).find("dendrite.reuse"), std::string::npos);
    EXPECT_NE(refused({{"reuse", "composed"}, {"max_error", -1}}).find("dendrite.max_error"),
              std::string::npos);
    EXPECT_NE(refused({{"max_error", 0.1}}).find("dendrite.max_error"), std::string::npos);
    EXPECT_EQ(server.post(paths[i], with(bodies[i], {{"dendrite", {{"reuse", "exact"}}}})).status,
              200);
  }
}

TEST_F(ComposedServed, AModelWhoseKCannotBeMovedComputesAndSaysSo) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  std::filesystem::copy(std::string(DENDRITE_MODELS_DIR) + "/dendrite-compose", folder.path(),
                        std::filesystem::copy_options::recursive);
  Json config = Json::parse(std::ifstream(folder.path() / "config.json"));
  config["rope_parameters"] = {
      {"rope_type", "yarn"}, {"rope_theta", 1e5}, {"factor", 2.0}, {"attention_factor", 0.0}};
  std::ofstream(folder.path() / "config.json") << config;
  EngineOptions options;
  options.threads = 1;
  options.kv_tokens = 16384;
  const auto load = [&] { return Engine::load(folder.path().string(), options); };
  const Engine engine = load();
  const TestServer server(engine);
  ask(server, chat("Documents of case 1."));
  const Json body = chat("Documents of case 22.");
  const Json changed = ask(server, with(body, kComposed));
  const Json& usage = changed["usage"]["dendrite"];
  EXPECT_EQ(usage["moved"], 0);
  EXPECT_NE(usage["note"].get<std::string>().find("can't be moved"), std::string::npos) << usage;
  const Engine other = load();
  const TestServer alone(other);
  EXPECT_EQ(changed["choices"].dump(), ask(alone, body)["choices"].dump());
}

TEST_F(ComposedServed, WithoutPagesForBothItIsComputed) {
  const Engine small = shipped("dendrite-compose", 2560);
  const TestServer server(small);
  ask(server, chat("Documents of case 1."));
  const Json body = chat("Documents of case 22.");
  const Json changed = ask(server, with(body, kComposed));
  const Json& usage = changed["usage"]["dendrite"];
  EXPECT_EQ(usage["moved"], 0);
  EXPECT_NE(usage["note"].get<std::string>().find("no memory"), std::string::npos) << usage;
  EXPECT_EQ(changed["choices"].dump(), exact(body));
}

TEST_F(ComposedServed, NothingIsMovedFromAnotherKeyOrSalt) {
  const TestServer server(*engine_, {.api_keys = {"one", "two"}});
  ask(server, chat("Documents of case 31."), "Authorization: Bearer one\r\n");
  const Json body = chat("Documents of case 32.", kComposed);
  const Json theirs = ask(server, body, "Authorization: Bearer two\r\n")["usage"]["dendrite"];
  EXPECT_EQ(theirs["moved"], 0);
  EXPECT_TRUE(theirs["estimated_error"].is_null());
  Json salted = chat("Documents of case 33.", kComposed);
  salted["cache_salt"] = "pepper";
  const Json apart = ask(server, salted, "Authorization: Bearer one\r\n")["usage"]["dendrite"];
  EXPECT_EQ(apart["moved"], 0);
  const Json body_of_one = chat("Documents of case 33.", kComposed);
  expect_composed(ask(server, body_of_one, "Authorization: Bearer one\r\n")["usage"]["dendrite"],
                  1000);
}

TEST_F(ComposedServed, ManyAtOnceAndSomeThatLeave) {
  const TestServer server(*engine_);
  ask(server, chat("Documents of case 40."));
  std::vector<std::thread> clients;
  std::atomic<int> moved = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      const Json body = chat("Documents of case 4" + std::to_string(100 + i) + ".", kComposed);
      if (i % 3 == 2) {
        Client client(server.port());
        client.send(request_text("POST", "/v1/chat/completions", dump(body)));
        return;
      }
      if (ask(server, body)["usage"]["dendrite"]["moved"] > 1000) ++moved;
    });
  }
  for (std::thread& each : clients) each.join();
  EXPECT_EQ(moved, 6);
  const Json body = chat("Documents of case 4100.");
  EXPECT_EQ(ask(server, body)["choices"].dump(), exact(body));
}

TEST_F(ComposedServed, RecentBranchesAreBoundedAndDropped) {
  Session session(*engine_);
  RecentBranches recent(3);
  const auto prompt = [](Token first, std::int64_t count) {
    std::vector<Token> tokens(1, first);
    for (std::int64_t i = 1; i < count; ++i) {
      tokens.push_back(static_cast<Token>((i * i * 31 + i * 7) % 251));
    }
    return tokens;
  };
  const auto keep = [&](std::uint64_t key, const std::vector<Token>& tokens,
                        const Composedness& how = {}) {
    recent.keep(key, session.prefill(std::span<const Token>(tokens)), how);
  };
  const auto prefix = [&](std::uint64_t key, const std::vector<Token>& tokens) {
    const RecentBranches::FoundBoth found = recent.find(key, tokens, 256);
    return found.exact.branch.valid() ? found.exact.prefix : -1;
  };
  keep(1, prompt(1, 40));
  keep(1, prompt(1, 60));  // goes on from it
  EXPECT_EQ(recent.size(), 1U);
  keep(2, prompt(1, 80));  // another key's
  EXPECT_EQ(recent.size(), 2U);
  EXPECT_EQ(prefix(1, prompt(1, 80)), 60);
  EXPECT_EQ(prefix(2, prompt(1, 80)), 80);
  EXPECT_EQ(prefix(3, prompt(1, 80)), -1);
  // One that was composed does not stand for one that is exact.
  keep(1, prompt(1, 70), {.parts = {{{0, 50}, 40, 10}}});
  EXPECT_EQ(recent.size(), 3U);
  EXPECT_EQ(prefix(1, prompt(1, 80)), 60);
  EXPECT_EQ(recent.find(1, prompt(1, 80), 256).composed.prefix, 70);
  EXPECT_EQ(recent.find(1, prompt(1, 80), 256).known, 60);
  keep(1, prompt(9, 50));  // the one kept longest ago goes
  EXPECT_EQ(recent.size(), 3U);
  EXPECT_EQ(recent.find(1, prompt(1, 80), 256).known, 0);
  for (Token first = 10; first < 20; ++first) keep(1, prompt(first, 50));
  EXPECT_EQ(recent.size(), 3U);
  EXPECT_EQ(prefix(2, prompt(1, 80)), -1);

  const Composedness how{.parts = {{{10, 50}, 30, 10}, {{60, 90}, 20, 10}}, .error = 0.5};
  EXPECT_EQ(how.before(100).moved(), 50);
  EXPECT_EQ(how.before(60).moved(), 30);
  EXPECT_EQ(how.before(30).moved(), 20);
  EXPECT_TRUE(how.before(10).parts.empty());
  EXPECT_FALSE(how.before(10).error);
}

/// The conversation that has the most of the new one is gone on from, not the newest, nor the one
/// with the longest beginning.
TEST_F(ComposedServed, TheRightOneOfSeveralConversationsIsFound) {
  const TestServer server(*engine_);
  const auto body = [](const std::string& first, int which, bool composed) {
    std::string text;
    for (int i = 0; i < 25; ++i) {
      text += "Wilpol" + std::to_string(which * 1000 + i) + " has mass " +
              std::to_string((which + 3) * i * 7) + ". It has cloth silk.\n";
    }
    Json out = chat(first, composed ? kComposed : Json::object());
    out["messages"][1]["content"] = text;
    return out;
  };
  for (int which = 1; which < 5; ++which) ask(server, body("Documents of case 50.", which, false));
  for (int which = 1; which < 5; ++which) {
    const Json answer = ask(server, body("Documents of case 516.", which, true));
    expect_composed(answer["usage"]["dendrite"], 1000);
  }
}

}  // namespace
}  // namespace dendrite::server
