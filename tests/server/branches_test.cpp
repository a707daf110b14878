// /v1/branches: forks, rewinds, appends, decodes and scores by ids.
#include <cmath>

#include "server_support.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

const char* const kPrompt = "S 24: 4 5 6 10\n";

class BranchesTest : public ::testing::Test {
 protected:
  explicit BranchesTest(ServerOptions options = {}) : server_(engine(), std::move(options)) {}
  Json ok(const std::string& path, const Json& body) {
    const Got got = server_.post(path, body);
    EXPECT_EQ(got.status, 200) << path << " " << got.body;
    return got.json();
  }
  std::string made(const Json& body = {{"prompt", kPrompt}}) {
    return ok("/v1/branches", body)["data"][0]["id"];
  }
  static std::string at(const std::string& id, const std::string& what = "") {
    return "/v1/branches/" + id + (what.empty() ? "" : "/" + what);
  }

  TestServer server_;
};

TEST_F(BranchesTest, ABranchGoesOnLikeACompletion) {
  const Json params = {{"max_tokens", 12}, {"temperature", 0}};
  Json whole = params;
  whole["prompt"] = kPrompt;
  whole["max_tokens"] = 24;
  const std::string text = ok("/v1/completions", whole)["choices"][0]["text"];
  const std::string id = made();
  const std::string first = ok(at(id, "decode"), params)["choices"][0]["text"];
  const std::string second = ok(at(id, "decode"), params)["choices"][0]["text"];
  EXPECT_EQ(first + second, text);
  const Json now = server_.get(at(id)).json();
  EXPECT_EQ(now["text"], text);
  EXPECT_EQ(now["length"].get<int>(), now["prompt_length"].get<int>() + 24);
}

TEST_F(BranchesTest, ForksGoTheirOwnWaysAndRewindsComeBack) {
  const std::string id = made();
  ok(at(id, "decode"), {{"max_tokens", 10}, {"temperature", 0}});
  const int prompt = server_.get(at(id)).json()["prompt_length"];
  const Json forks = ok(at(id, "fork"), {{"n", 3}})["data"];
  ASSERT_EQ(forks.size(), 3U);
  EXPECT_EQ(forks[0]["parent"], id);
  EXPECT_EQ(forks[0]["length"], prompt + 10);
  const std::string back = ok(at(id, "fork"), {{"at", prompt}})["data"][0]["id"];
  const std::string again =
      ok(at(back, "decode"), {{"max_tokens", 10}, {"temperature", 0}})["choices"][0]["text"];
  EXPECT_EQ(again, server_.get(at(id)).json()["text"]);
  ok(at(forks[0]["id"], "append"), {{"text", "ok"}});
  EXPECT_EQ(server_.get(at(id)).json()["length"], prompt + 10);
  EXPECT_EQ(server_.post(at(id, "fork"), {{"at", 1000}}).status, 400);
}

TEST_F(BranchesTest, ScoresAreThoseOfScoringAndLeaveNoTrace) {
  const std::string id = made();
  const Json got = ok(at(id, "score"), {{"continuations", {"10-4=6", "10-4=7"}}})["data"];
  Session session(engine());
  Branch branch = session.prefill(kPrompt);
  const std::vector<Score> scores = branch.score({"10-4=6", "10-4=7"});
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got[i]["logprob"].get<double>(), scores[i].logprob);
    EXPECT_EQ(got[i]["token_logprobs"].size(), scores[i].tokens.size());
  }
  const Json draw = {{"max_tokens", 20}, {"temperature", 2}, {"seed", 9}};
  const std::string other = made();
  EXPECT_EQ(
      ok(at(ok(at(id, "fork"), Json::object())["data"][0]["id"], "decode"), draw)["choices"],
      ok(at(ok(at(other, "fork"), Json::object())["data"][0]["id"], "decode"), draw)["choices"]);
}

TEST_F(BranchesTest, OneThatIsBeingDecodedForksAndIsOtherwiseBusy) {
  const std::string id = made();
  Client client(server_.port());
  client.send(request_text(
      "POST", at(id, "decode"),
      dump({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}, {"temperature", 1}})));
  std::string seen;
  ASSERT_TRUE(client.until("data: ", seen));
  EXPECT_EQ(server_.get(at(id)).json()["status"], "decoding");
  EXPECT_EQ(server_.post(at(id, "append"), {{"text", "x"}}).status, 409);
  EXPECT_EQ(server_.post(at(id, "decode"), Json::object()).status, 409);
  const Json fork = ok(at(id, "fork"), Json::object())["data"][0];
  EXPECT_GT(fork["length"], fork["prompt_length"]);
  client.close();
  // It is given back with what it has.
  EXPECT_TRUE(soon([&] { return server_.get(at(id)).json()["status"] == "idle"; }));
  EXPECT_GE(server_.get(at(id)).json()["length"], fork["length"]);
}

TEST_F(BranchesTest, WhatIsDeletedGivesItsPagesBack) {
  const std::string id = made({{"prompt", kPrompt}, {"n", 4}, {"hold_ms", 60000}});
  EXPECT_EQ(engine().stats().branches_live, 4);
  EXPECT_EQ(server_.ask("DELETE", at(id)).json()["deleted"], true);
  EXPECT_EQ(engine().stats().branches_live, 3);
  EXPECT_EQ(server_.get(at(id)).status, 404);
  EXPECT_EQ(server_.ask("DELETE", at(id)).status, 404);
  EXPECT_EQ(server_.post(at(id, "decode"), Json::object()).status, 404);
}

TEST_F(BranchesTest, WhatCannotBeIsRefusedByName) {
  const std::string id = made();
  const auto param = [&](const std::string& path, const Json& body) {
    const Got got = server_.post(path, body);
    EXPECT_EQ(got.status, 400) << path << body << got.body;
    return got.json()["error"].value("param", "");
  };
  EXPECT_EQ(param("/v1/branches", Json::object()), "prompt");
  EXPECT_EQ(param("/v1/branches", {{"prompt", 5}}), "prompt");
  EXPECT_EQ(param("/v1/branches", {{"prompt", "x"}, {"n", 0}}), "n");
  EXPECT_EQ(param(at(id, "append"), Json::object()), "text");
  EXPECT_EQ(param(at(id, "append"), {{"tokens", {-1}}}), "tokens[0]");
  EXPECT_EQ(param(at(id, "decode"), {{"n", 2}}), "n");
  EXPECT_EQ(param(at(id, "decode"), {{"echo", true}}), "echo");
  EXPECT_EQ(param(at(id, "decode"), {{"guided_regex", "a"}}), "guided_regex");
  EXPECT_EQ(param(at(id, "score"), {{"continuations", {""}}}), "continuations[0]");
  EXPECT_EQ(param(at(id, "hold"), {{"hold_ms", -1}}), "hold_ms");
}

TEST(Branches, AnotherKeyFindsNone) {
  ServerOptions options;
  options.api_keys = {"a", "b"};
  const TestServer server(engine(), options);
  const std::string id = server.post("/v1/branches", {{"prompt", kPrompt}}, "x-api-key: a\r\n")
                             .json()["data"][0]["id"];
  const std::string path = "/v1/branches/" + id;
  EXPECT_EQ(server.ask("GET", path, "", "x-api-key: a\r\n").status, 200);
  EXPECT_EQ(server.ask("GET", path, "", "x-api-key: b\r\n").status, 404);
  EXPECT_EQ(server.ask("DELETE", path, "", "x-api-key: b\r\n").status, 404);
  EXPECT_EQ(server.post(path + "/decode", Json::object(), "x-api-key: b\r\n").status, 404);
}

}  // namespace
}  // namespace dendrite::server
