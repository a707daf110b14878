// What is told of each request, as lines of JSON.
#include "server/request_log.h"

#include <unistd.h>

#include "server_support.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped("dendrite-tools");
  return kEngine;
}

/// A server whose log goes to a pipe.
class RequestLogTest : public testing::Test {
 protected:
  RequestLogTest() { EXPECT_EQ(pipe(pipe_), 0); }
  ~RequestLogTest() override {
    server_.reset();
    close(pipe_[0]);
    close(pipe_[1]);
  }
  TestServer& serve(ServerOptions options = {}) {
    options.request_log = pipe_[1];
    return *(server_ = std::make_unique<TestServer>(engine(), std::move(options)));
  }
  std::string line() {
    std::string out;
    char byte = 0;
    pollfd ready{pipe_[0], POLLIN, 0};
    while (poll(&ready, 1, static_cast<int>(kPatience.count())) == 1 &&
           read(pipe_[0], &byte, 1) == 1 && byte != '\n') {
      out += byte;
    }
    return out;
  }
  Json next() { return Json::parse(line()); }

  int pipe_[2];
  std::unique_ptr<TestServer> server_;
};

const Json kAsk = {{"messages", {{{"role", "user"}, {"content", "a secret question"}}}},
                   {"max_tokens", 5},
                   {"seed", 1},
                   {"n", 2}};

TEST_F(RequestLogTest, SaysWhatWasAskedAndHowItEnded) {
  TestServer& server = serve();
  const Got got = server.post("/v1/chat/completions", kAsk);
  ASSERT_EQ(got.status, 200);
  const std::string text = line();
  EXPECT_EQ(text.find("secret"), std::string::npos);
  const Json told = Json::parse(text);
  EXPECT_EQ(told["id"], got.header("x-request-id"));
  EXPECT_EQ(told["made"], got.json()["id"]);
  EXPECT_EQ(told["method"], "POST");
  EXPECT_EQ(told["path"], "/v1/chat/completions");
  EXPECT_EQ(told["peer"], "127.0.0.1");
  EXPECT_EQ(told["status"], 200);
  EXPECT_EQ(told["gone"], false);
  EXPECT_TRUE(told["key"].is_null());
  EXPECT_EQ(told["prompt_tokens"], got.json()["usage"]["prompt_tokens"]);
  EXPECT_EQ(told["output_tokens"], got.json()["usage"]["completion_tokens"]);
  EXPECT_EQ(told["finish"].size(), 2U);
  EXPECT_GE(told["ms"], told["first_token_ms"]);
  EXPECT_FALSE(told.contains("error"));
  EXPECT_FALSE(told.contains("request"));
}

TEST_F(RequestLogTest, EachApiTellsItsTokens) {
  TestServer& server = serve();
  const std::vector<std::pair<std::string, Json>> all = {
      {"/v1/completions", {{"prompt", {"Timer", "5 min"}}, {"max_tokens", 2}}},
      {"/v1/responses", {{"input", "Timer"}, {"max_output_tokens", 2}, {"stream", true}}},
      {"/v1/messages",
       {{"messages", {{{"role", "user"}, {"content", "Timer"}}}}, {"max_tokens", 2}}},
      {"/v1/branches", {{"prompt", "Timer"}}},
      {"/v1/decisions",
       {{"input", "Timer"}, {"questions", {{{"type", "predicate"}, {"instructions", "Is it?"}}}}}},
      {"/v1/searches",
       {{"input", "Timer"}, {"max_tokens", 2}, {"strategy", {{"type", "beam"}, {"width", 2}}}}}};
  for (const auto& [path, body] : all) {
    const Got got = server.post(path, body);
    ASSERT_EQ(got.status, 200) << path << got.body;
    const Json told = next();
    EXPECT_EQ(told["path"], path);
    EXPECT_GT(told.value("prompt_tokens", 0), 0) << told;
  }
}

TEST_F(RequestLogTest, RefusalsAndKeysAreTold) {
  TestServer& server = serve({.api_keys = {"one", "another"}});
  const std::string key = "Authorization: Bearer another\r\n";
  EXPECT_EQ(server.get("/v1/models").status, 401);
  const Json refused = next();
  EXPECT_EQ(refused["status"], 401);
  EXPECT_EQ(refused["error"], "invalid_api_key");
  EXPECT_TRUE(refused["key"].is_null());
  EXPECT_EQ(server.ask("GET", "/v1/models", "", key).status, 200);
  const Json one = next();
  EXPECT_EQ(one["key"].get<std::string>().size(), 8U);
  server.ask("GET", "/v1/models", "", "x-api-key: one\r\n");
  EXPECT_NE(next()["key"], one["key"]);
  EXPECT_EQ(server.ask("POST", "/v1/chat/completions", "{\"messages\": [\"secret\"]}", key).status,
            400);
  const std::string text = line();
  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
  EXPECT_EQ(Json::parse(text)["error"], "invalid_request_error");
}

TEST_F(RequestLogTest, WhateverIsAskedStaysOnItsLine) {
  TestServer& server = serve();
  server.ask("GET", "/a%0Ab%1B%5B2J%7F%C2%9B%FF%22");
  const std::string text = line();
  EXPECT_TRUE(std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 127; })) << text;
  EXPECT_EQ(Json::parse(text)["path"], "/a\nb\x1B[2J\x7F\xC2\x9B\xEF\xBF\xBD\"");
  Client client(server.port());
  client.send("no request\r\n\r\n");
  client.rest();
  EXPECT_EQ(next()["status"], 400);
}

TEST_F(RequestLogTest, WhoGoesIsTold) {
  TestServer& server = serve();
  Json ask = kAsk;
  ask.update({{"stream", true}, {"max_tokens", 400}, {"ignore_eos", true}});
  {
    Client client(server.port());
    client.send(request_text("POST", "/v1/chat/completions", dump(ask)));
    std::string seen;
    ASSERT_TRUE(client.until("assistant", seen));
  }
  EXPECT_EQ(next()["gone"], true);
}

TEST_F(RequestLogTest, ContentIsToldOnlyWhereAskedFor) {
  TestServer& server = serve({.log_content = true});
  const Got got = server.post("/v1/chat/completions", kAsk);
  const Json told = next();
  EXPECT_EQ(told["request"], dump(kAsk));
  EXPECT_EQ(told["answer"], got.body);
  Json long_one = kAsk;
  long_one["user"] = std::string(100'000, 'x');
  server.post("/v1/chat/completions", long_one);
  EXPECT_EQ(next()["request"].get<std::string>().size(), std::size_t{64} << 10);
}

TEST(RequestLog, WhoReadsNothingHoldsNobodyUp) {
  int pipe_of[2];
  ASSERT_EQ(pipe(pipe_of), 0);
  const std::string line(std::size_t{1} << 20, 'x');
  {
    RequestLog log(pipe_of[1]);
    for (int i = 0; i < 20; ++i) log.add(line + "\n");  // the pipe has room for a fraction
    std::string got;
    std::vector<char> bytes(std::size_t{1} << 20);
    while (got.find("\n") == std::string::npos) {
      got.append(bytes.data(),
                 static_cast<std::size_t>(read(pipe_of[0], bytes.data(), bytes.size())));
    }
    EXPECT_EQ(got.substr(0, got.find('\n')), line);
  }  // ends, though nobody reads on
  close(pipe_of[0]);
  close(pipe_of[1]);
}

TEST(RequestLog, ADescriptorThatNobodyReadsEndsNothing) {
  int pipe_of[2];
  ASSERT_EQ(pipe(pipe_of), 0);
  close(pipe_of[0]);
  {
    RequestLog log(pipe_of[1]);
    log.add("a line\n");
  }
  close(pipe_of[1]);
}

}  // namespace
}  // namespace dendrite::server
