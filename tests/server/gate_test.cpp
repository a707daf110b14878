// Who may come in, and what the server says of itself.
#include <set>

#include "server_support.h"
#include "support/gguf_of_folder.h"
#include "support/temporary_folder.h"

namespace dendrite::server {
namespace {

const Json kAsk = {{"messages", {{{"role", "user"}, {"content", "4 5 6 10"}}}}, {"max_tokens", 2}};

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

TEST(Gate, WithoutAKeyOnlyLoopbackIsServed) {
  ServerOptions options;
  options.host = "0.0.0.0";
  const std::vector<ServedModel> models{{engine()}};
  EXPECT_THROW(Server(models, options), Error);
  options.allow_no_auth = true;
  options.port = 0;
  EXPECT_NO_THROW(Server(models, options));
}

TEST(Gate, AWrongHostIsRefusedWithoutAKey) {
  ServerOptions options;
  options.allowed_hosts = {"box.example"};
  const TestServer server(engine(), options);
  const auto status = [&](const std::string& host) {
    Client client(server.port());
    client.send("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    const int of_models = client.answer().status;
    Client other(server.port());
    other.send("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    EXPECT_EQ(other.answer().status, of_models) << host;
    return of_models;
  };
  EXPECT_EQ(status("localhost:8000"), 200);
  EXPECT_EQ(status("127.0.0.1"), 200);
  EXPECT_EQ(status("[::1]:1"), 200);
  EXPECT_EQ(status("box.example:80"), 200);
  EXPECT_EQ(status("evil.example"), 403);
  EXPECT_EQ(status("127.0.0.1.evil.example"), 403);
  EXPECT_EQ(status(""), 403);
}

TEST(Gate, AKeyIsAskedForEverywhereButForHealthAndThePage) {
  ServerOptions options;
  options.api_keys = {"first", "second"};
  const TestServer server(engine(), options);
  for (const char* path : {"/", "/health", "/ready", "/ping", "/version", "/openapi.json"}) {
    EXPECT_EQ(server.get(path).status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/metrics", "/tokenizer_info", "/nothing"}) {
    EXPECT_EQ(server.get(path).status, 401) << path;
  }
  const Got refused = server.post("/v1/chat/completions", kAsk, "Authorization: Bearer firs\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(refused.json()["error"]["code"], "invalid_api_key");
  for (const char* wrong : {"Authorization: Bearer first2\r\n", "Authorization: Bearer \r\n",
                            "Authorization: first\r\n", "x-api-key: firstt\r\n"}) {
    EXPECT_EQ(server.ask("GET", "/v1/models", "", wrong).status, 401) << wrong;
  }
  EXPECT_EQ(server.ask("GET", "/v1/models", "", "Authorization: Bearer second\r\n").status, 200);
  EXPECT_EQ(server.ask("GET", "/v1/models", "", "x-api-key: first\r\n").status, 200);
}

/// Of a chat: its prompt's tokens that were there.
std::int64_t cached(const TestServer& server, const std::string& key, const Json& more = {}) {
  Json body = kAsk;
  if (more.is_object()) body.update(more);
  const Json answer =
      server.post("/v1/chat/completions", body, "Authorization: Bearer " + key + "\r\n").json();
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}

TEST(Gate, WhatAKeyHasComputedIsNotFoundByAnother) {
  const Engine fresh = shipped();
  const TestServer server(fresh, {.api_keys = {"one", "two"}});
  EXPECT_EQ(cached(server, "one"), 0);
  EXPECT_EQ(cached(server, "two"), 0);
  EXPECT_GT(cached(server, "one"), 0);
  EXPECT_GT(cached(server, "two"), 0);
  const Json salt = {{"cache_salt", "x"}};
  EXPECT_EQ(cached(server, "one", salt), 0);
  EXPECT_EQ(cached(server, "two", salt), 0);
  EXPECT_GT(cached(server, "one", salt), 0);

  // By all other ways into the engine, too.
  const auto asked = [&](const std::string& path, const Json& body, const std::string& key) {
    return server.post(path, body, "x-api-key: " + key + "\r\n").json();
  };
  const std::vector<std::pair<std::string, Json>> ways = {
      {"/v1/branches", {{"prompt", "S 24: 4 5 6 10\n"}}},
      {"/v1/completions", {{"prompt", "S 24: 4 5 6 10\n"}, {"max_tokens", 1}}},
      {"/v1/responses", {{"input", "4 5 6 10"}, {"max_output_tokens", 2}}},
      {"/v1/messages",
       {{"messages", {{{"role", "user"}, {"content", "4 5 6 10"}}}}, {"max_tokens", 2}}},
      {"/v1/decisions",
       {{"input", "4 5 6 10"}, {"questions", {{{"type", "predicate"}, {"instructions", "?"}}}}}},
      {"/v1/searches",
       {{"input", "S 24: 4 5 6 10\n"},
        {"max_tokens", 2},
        {"strategy", {{"type", "best_of_n"}, {"n", 2}}}}},
  };
  const auto found = [&](const std::pair<std::string, Json>& way, const std::string& key,
                         const std::string& salt_text) -> std::int64_t {
    Json body = way.second;
    if (!salt_text.empty()) body["cache_salt"] = salt_text;
    const Json got = asked(way.first, body, key);
    if (way.first == "/v1/branches") return got["data"][0]["shared"];
    const Json& usage = got["usage"];
    if (usage.contains("cache_read_input_tokens")) return usage["cache_read_input_tokens"];
    const char* name =
        usage.contains("input_tokens_details") ? "input_tokens_details" : "prompt_tokens_details";
    return usage[name]["cached_tokens"];
  };
  for (const auto& way : ways) {
    SCOPED_TRACE(way.first);
    const std::string own = "of " + way.first;
    EXPECT_EQ(found(way, "one", own), 0);
    EXPECT_EQ(found(way, "two", own), 0);
    EXPECT_EQ(found(way, "one", own + "!"), 0);
    EXPECT_GT(found(way, "one", own), 0);
  }
}

TEST(Gate, PrefixesOfAllKeysAreSharedWhereThatIsAskedFor) {
  const Engine fresh = shipped();
  const TestServer server(fresh, {.api_keys = {"one", "two"}, .share_prefixes = true});
  EXPECT_EQ(cached(server, "one"), 0);
  EXPECT_GT(cached(server, "two"), 0);
  const Json salt = {{"cache_salt", "x"}};
  EXPECT_EQ(cached(server, "one", salt), 0);
  EXPECT_GT(cached(server, "two", salt), 0);
}

TEST(Gate, OnlyNamedOriginsAreAnswered) {
  ServerOptions options;
  options.allowed_origins = {"https://page.example"};
  const TestServer server(engine(), options);
  const Got good = server.ask("OPTIONS", "/v1/models", "", "Origin: https://page.example\r\n");
  EXPECT_EQ(good.status, 204);
  EXPECT_EQ(good.header("Access-Control-Allow-Origin"), "https://page.example");
  const Got bad = server.ask("OPTIONS", "/v1/models", "", "Origin: https://other.example\r\n");
  EXPECT_EQ(bad.status, 403);
  EXPECT_EQ(bad.header("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(server.ask("GET", "/v1/models", "", "Origin: https://other.example\r\n")
                .header("Access-Control-Allow-Origin"),
            "");
}

TEST(Gate, WhatPagesCanPostWithoutAskingIsRefused) {
  const TestServer server(engine());
  for (const char* type : {"Content-Type: text/plain\r\n", "",
                           "Content-Type: application/x-www-form-urlencoded\r\n"}) {
    Client client(server.port());
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + std::string(type) +
                "Content-Length: 2\r\n\r\n{}");
    EXPECT_EQ(client.answer().status, 415) << type;
  }
}

TEST(Gate, AQueueThatIsFullRefuses) {
  ServerOptions options;
  options.max_running = 1;
  options.max_queued = 0;
  const TestServer server(engine(), options);
  Client first(server.port());
  Json ask = kAsk;
  ask["max_tokens"] = 900;
  ask["ignore_eos"] = true;
  ask["stream"] = true;
  first.send(request_text("POST", "/v1/chat/completions", dump(ask)));
  std::string seen;
  ASSERT_TRUE(first.until("assistant", seen));
  const Got refused = server.post("/v1/chat/completions", kAsk);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "server_overloaded");
  EXPECT_NE(refused.header("Retry-After"), "");
  first.close();
  EXPECT_TRUE(soon([&] { return server.post("/v1/chat/completions", kAsk).status == 200; }));
}

TEST(Gate, AKeyHasItsOwnLimit) {
  ServerOptions options;
  options.api_keys = {"a", "b"};
  options.max_running_of_key = 2;
  const TestServer server(engine(), options);
  Json ask = kAsk;
  ask["n"] = 3;
  const Got refused = server.post("/v1/chat/completions", ask, "Authorization: Bearer a\r\n");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(server.post("/v1/chat/completions", kAsk, "Authorization: Bearer a\r\n").status, 200);
}

TEST(Gate, WhoDrainsEndsWhatRunsAndTakesNothingNew) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(600'000);
  TestServer server(engine(), options);
  Client client(server.port());
  Json ask = kAsk;
  ask["max_tokens"] = 300;
  ask["ignore_eos"] = true;
  ask["stream"] = true;
  client.send(request_text("POST", "/v1/chat/completions", dump(ask)));
  std::string seen;
  ASSERT_TRUE(client.until("assistant", seen));
  Client other(server.port());
  server.begin_stop();
  EXPECT_TRUE(soon([&] { return server.get("/ready").status != 200; }));
  const std::string rest = client.rest();
  EXPECT_NE(rest.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_NE(rest.find("[DONE]"), std::string::npos);
  server.stop();
}

TEST(Gate, WhoDrainsRefusesWhatWaitsAtOnce) {
  ServerOptions options;
  options.max_running = 1;
  options.shutdown_timeout = milliseconds(600'000);
  TestServer server(engine(), options);
  Json ask = kAsk;
  ask["max_tokens"] = 900;
  ask["n"] = 8;  // for as long as all that follows takes, and much longer
  ask["ignore_eos"] = true;
  ask["stream"] = true;
  Client runs(server.port());
  runs.send(request_text("POST", "/v1/chat/completions", dump(ask)));
  std::string seen;
  ASSERT_TRUE(runs.until("assistant", seen));
  Client waits(server.port());
  ask["max_tokens"] = ask["n"] = 1;
  ask["stream"] = false;
  waits.send(request_text("POST", "/v1/chat/completions", dump(ask)));
  ASSERT_TRUE(soon([&] {
    return server.get("/metrics").body.find("num_requests_waiting{model_name=\"dendrite-24\"} 1") !=
           std::string::npos;
  }));
  server.begin_stop();
  const Got refused = waits.answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "shutting_down");
  EXPECT_NE(runs.rest().find("\"finish_reason\":\"length\""), std::string::npos);
}

TEST(Gate, WhatDoesNotEndInTimeHearsWhy) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(0);
  TestServer server(engine(), options);
  Client client(server.port());
  Json ask = kAsk;
  ask["max_tokens"] = 1000;
  ask["ignore_eos"] = true;
  ask["stream"] = true;
  client.send(request_text("POST", "/v1/chat/completions", dump(ask)));
  std::string seen;
  ASSERT_TRUE(client.until("assistant", seen));
  server.begin_stop();
  EXPECT_NE(client.rest().find("shutting_down"), std::string::npos);
  server.stop();
}

TEST(Models, AreListedForEveryClient) {
  const TestServer server(std::vector<ServedModel>{{engine(), {"one", "two"}}});
  const Json list = server.get("/v1/models").json();
  EXPECT_EQ(list["data"][1]["id"], "two");
  EXPECT_EQ(list["data"][0]["max_model_len"], 1024);
  EXPECT_EQ(list["models"][0]["slug"], "one");
  EXPECT_EQ(server.get("/v1/models/two").json()["id"], "two");
  const Got missing = server.get("/v1/models/three");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.json()["error"]["code"], "model_not_found");
}

TEST(Models, TextsAndTokensAreOneAnother) {
  const TestServer server(engine());
  const Json tokens = server.post("/tokenize", {{"content", "4 5 6"}}).json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(server.post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"], "4 5 6");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {100000}}}).status, 400);
  EXPECT_EQ(server.post("/tokenize", {{"content", "a"}, {"prompt", "a"}}).status, 400);
  const Json chat =
      server.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", "4 5 6 10"}}}}})
          .json();
  const Json answer = server.post("/v1/chat/completions", kAsk).json();
  EXPECT_EQ(chat["count"], answer["usage"]["prompt_tokens"]);
  EXPECT_EQ(server.get("/tokenizer_info").json()["eos_token"], "<|eos|>");
}

TEST(Models, OfAGgufFileAreServedAsTheirFolderIs) {
  const TemporaryFolder folder;
  const TestServer of_folder(engine());
  const Json said = of_folder.get("/tokenizer_info").json();
  Json ask = kAsk;
  ask["temperature"] = 0;  // a file does not say, as the folder does, that nothing is drawn
  const Json answer = of_folder.post("/v1/chat/completions", ask).json();
  std::set<Json> fingerprints{answer["system_fingerprint"]};
  for (const char* type : {"", "F16"}) {
    const std::filesystem::path file = folder.path() / ("model" + std::string(type) + ".gguf");
    test::GgufOfFolder(engine().info().model_path, type).write()[0].write(file);
    const Engine gguf = Engine::load(file.string());
    const TestServer server(gguf);
    EXPECT_EQ(server.get("/tokenizer_info").json(), said);
    const Json same = server.post("/v1/chat/completions", ask).json();
    if (type == std::string()) {  // with F16 other numerics compute
      EXPECT_EQ(same["choices"][0]["message"], answer["choices"][0]["message"]);
    }
    fingerprints.insert(same["system_fingerprint"]);
  }
  EXPECT_EQ(fingerprints.size(), 3U);
}

TEST(Models, MetricsCountWhatWasAsked) {
  const TestServer server(engine());
  const Json answer = server.post("/v1/chat/completions", kAsk).json();
  const std::string text = server.get("/metrics").body;
  EXPECT_NE(text.find("dendrite:generation_tokens_total{model_name=\"dendrite-24\"} 2\n"),
            std::string::npos);
  EXPECT_NE(text.find("dendrite:request_success_total{model_name=\"dendrite-24\","
                      "finished_reason=\"length\"} 1\n"),
            std::string::npos);
  EXPECT_NE(text.find("dendrite:num_requests_running{model_name=\"dendrite-24\"} 0\n"),
            std::string::npos);
}

TEST(Models, MetricsHaveATimeForEachToken) {
  const TestServer server(engine());
  const Json body = {
      {"prompt", "S 24: 4 5 6 10\n"}, {"n", 2}, {"max_tokens", 5}, {"ignore_eos", true}};
  ASSERT_EQ(server.post("/v1/completions", body).status, 200);
  const std::string text = server.get("/metrics").body;
  const auto count = [&](const std::string& name) {
    const std::string begin = "dendrite:" + name + "_seconds_count{model_name=\"dendrite-24\"} ";
    const std::size_t at = text.find(begin);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + begin.size()));
  };
  EXPECT_EQ(count("time_to_first_token"), 2);  // of each choice
  EXPECT_EQ(count("inter_token_latency"), 8);
  EXPECT_EQ(count("request_time_per_output_token"), 1);
}

TEST(Models, MetricsHaveTheRowsOfSteps) {
  const Engine fresh = shipped();
  const TestServer server(fresh);
  const std::string name = "dendrite:iteration_tokens_total";
  const auto value = [&](const std::string& what) {
    const std::string text = server.get("/metrics").body;
    const std::string begin = name + what + " ";
    const std::size_t at = text.find("\n" + begin);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + 1 + begin.size()));
  };
  const std::string labels = "{model_name=\"dendrite-24\"}";
  EXPECT_EQ(value("_count" + labels), 0);
  const Json body = {{"prompt", "S 24: 4 5 6 10\n"}, {"max_tokens", 5}, {"ignore_eos", true}};
  const Json answer = server.post("/v1/completions", body).json();
  const int prompt = answer["usage"]["prompt_tokens"];
  EXPECT_EQ(value("_sum" + labels), prompt + 4);
  EXPECT_GE(value("_count" + labels), 5);
  EXPECT_GE(value("_bucket{model_name=\"dendrite-24\",le=\"1.0\"}"), 4);
}

}  // namespace
}  // namespace dendrite::server
