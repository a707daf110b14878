// Effects of branches by HTTP: a call is made once on a lineage, and clients hear what became of
// it.
#include "server_support.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

std::string branch_path(const std::string& id, const std::string& what = "") {
  return "/v1/branches/" + id + (what.empty() ? "" : "/" + what);
}

class EffectsTest : public ::testing::Test {
 protected:
  Json ok(const std::string& path, const Json& body, int status = 200) {
    const Got got = server_.post(path, body);
    EXPECT_EQ(got.status, status) << path << " " << got.body;
    return got.json();
  }
  std::string made() {
    return ok("/v1/branches", {{"prompt", "S 24: 4 5 6 10\n"}})["data"][0]["id"];
  }
  std::string fork(const std::string& id, const Json& body = Json::object()) {
    return ok(branch_path(id, "fork"), body)["data"][0]["id"];
  }
  Json did(const std::string& id, const std::string& key, const std::string& value) {
    return ok(branch_path(id, "effects"), {{"key", key}, {"value", value}}, 201);
  }
  std::vector<std::string> keys(const std::string& id, const std::string& query = "") {
    std::vector<std::string> out;
    const Json list = server_.get(branch_path(id, "effects") + query).json();
    for (const Json& each : list["data"]) out.push_back(each["key"]);
    return out;
  }
  Json events(int after = 0) {
    return server_.get("/v1/effects/events?after=" + std::to_string(after)).json()["data"];
  }
  void drop(const std::string& id) { server_.ask("DELETE", branch_path(id)); }

  TestServer server_{engine()};
};

using Keys = std::vector<std::string>;

TEST_F(EffectsTest, ACallIsMadeOnceAtAPlaceOfALineage) {
  const std::string id = made();
  const Json begun = ok(branch_path(id, "effects"), {{"key", "pay 5"}}, 201);
  EXPECT_EQ(begun["new"], true);
  EXPECT_EQ(begun["status"], "begun");
  EXPECT_EQ(begun["parent"], nullptr);
  const Json again = ok(branch_path(id, "effects"), {{"key", "pay 5"}}, 409);
  EXPECT_EQ(again["error"]["code"], "effect_open");
  const std::string effect = begun["id"];
  EXPECT_EQ(ok("/v1/effects/" + effect, {{"value", "paid"}})["status"], "ended");
  const Json known = ok(branch_path(id, "effects"), {{"key", "pay 5"}});
  EXPECT_EQ(known["new"], false);
  EXPECT_EQ(known["value"], "paid");
  EXPECT_EQ(known["id"], effect);
  // A fork has it; so has one that is cut behind it.
  const std::string other = fork(id);
  EXPECT_EQ(ok(branch_path(other, "effects"), {{"key", "pay 5"}})["id"], effect);
  ok(branch_path(id, "append"), {{"text", "ok"}});
  const int length = begun["length"];
  EXPECT_EQ(keys(fork(id, {{"at", length}})), (Keys{"pay 5"}));
  // Before it, it was not made; and further on it is another call.
  EXPECT_EQ(keys(fork(id, {{"at", length - 1}})), Keys{});
  const Json further = ok(branch_path(id, "effects"), {{"key", "pay 5"}}, 201);
  EXPECT_EQ(further["parent"], effect);
}

TEST_F(EffectsTest, WhatIsRecordedIsNotRecordedOver) {
  const std::string id = made();
  const Json first = did(id, "a", "1");
  const Json second = ok(branch_path(id, "effects"), {{"key", "a"}, {"value", "2"}});
  EXPECT_EQ(second["value"], "1");
  EXPECT_EQ(second["id"], first["id"]);
  EXPECT_EQ(server_.post("/v1/effects/" + first["id"].get<std::string>(), {{"value", "2"}})
                .json()["error"]["code"],
            "effect_ended");
  did(id, "b", "");
  EXPECT_EQ(keys(id), (Keys{"a", "b"}));
  EXPECT_EQ(keys(id, "?key=b"), (Keys{"b"}));
  EXPECT_EQ(keys(id, "?key=c"), Keys{});
}

TEST_F(EffectsTest, WhatWasNeverDoneIsForgotten) {
  const std::string id = made();
  did(id, "a", "1");
  const std::string effect = ok(branch_path(id, "effects"), {{"key", "b"}}, 201)["id"];
  EXPECT_EQ(ok(branch_path(id, "commit"), Json::object(), 409)["error"]["code"], "effect_open");
  EXPECT_EQ(server_.ask("DELETE", "/v1/effects/" + effect).json()["deleted"], true);
  EXPECT_EQ(server_.ask("DELETE", "/v1/effects/" + effect).status, 409);
  EXPECT_EQ(keys(id), (Keys{"a"}));
  ok(branch_path(id, "effects"), {{"key", "b"}}, 201);
}

TEST_F(EffectsTest, ClientsHearWhatBecameOfThem) {
  const std::string id = made();
  const std::string shared = did(id, "shared", "")["id"];
  const std::string winner = fork(id);
  const std::string loser = fork(id);
  did(winner, "won", "");
  const Json lost = did(loser, "lost", "");
  const Json later = did(loser, "lost later", "");
  EXPECT_EQ(lost["parent"], shared);
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(ok(branch_path(winner, "commit"), Json::object())["data"][1]["status"], "committed");
  Json got = events();
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0]["type"], "effect.committed");
  EXPECT_EQ(got[0]["sequence_number"], 1);
  EXPECT_EQ(got[0]["effect"]["id"], shared);
  EXPECT_EQ(got[1]["effect"]["key"], "won");
  drop(loser);
  drop(winner);
  drop(id);
  ASSERT_TRUE(soon([&] { return events().size() == 4; }));
  got = events(2);
  EXPECT_EQ(got[0]["type"], "effect.aborted");
  EXPECT_EQ(got[0]["effect"]["id"], later["id"]);
  EXPECT_EQ(got[0]["effect"]["parent"], lost["id"]);
  EXPECT_EQ(got[1]["effect"]["id"], lost["id"]);
  EXPECT_TRUE(events(1000).empty());
}

TEST_F(EffectsTest, OneWhoseBranchIsGoneIsToldOfWhenItEnds) {
  const std::string id = made();
  const std::string effect = ok(branch_path(id, "effects"), {{"key", "slow"}}, 201)["id"];
  drop(id);
  ok("/v1/effects/" + effect, {{"value", "done"}});
  ASSERT_EQ(events().size(), 1U);
  EXPECT_EQ(events()[0]["type"], "effect.aborted");
  EXPECT_EQ(events()[0]["effect"]["id"], effect);
}

TEST_F(EffectsTest, EventsAreStreamedAndEndWithTheServer) {
  const std::string id = made();
  did(id, "a", "1");
  ok(branch_path(id, "commit"), Json::object());
  Client client(server_.port());
  client.send(request_text("GET", "/v1/effects/events?stream=true&after=0"));
  std::string seen;
  ASSERT_TRUE(client.until("\"sequence_number\":1", seen));
  EXPECT_NE(seen.find("event: effect.committed"), std::string::npos);
  did(fork(id), "b", "2");
  const std::string gone = fork(id);
  const std::string effect = did(gone, "c", "3")["id"];
  drop(gone);
  ASSERT_TRUE(client.until("\"sequence_number\":2", seen));
  ASSERT_TRUE(client.until("\n\n", seen));
  EXPECT_NE(seen.find(effect), std::string::npos) << seen;
  server_.begin_stop();
  EXPECT_TRUE(client.until("\r\n0\r\n\r\n", seen));
}

TEST_F(EffectsTest, WhatADecodeWritesIsBehindThem) {
  const std::string id = made();
  const std::string effect = did(id, "a", "1")["id"];
  ok(branch_path(id, "decode"), {{"max_tokens", 8}, {"temperature", 0}, {"ignore_eos", true}});
  EXPECT_EQ(keys(id), (Keys{"a"}));
  EXPECT_EQ(did(id, "a", "2")["parent"], effect);
}

TEST_F(EffectsTest, WhatCannotBeIsRefusedByName) {
  const std::string id = made();
  const auto param = [&](const std::string& path, const Json& body) {
    const Got got = server_.post(path, body);
    EXPECT_EQ(got.status, 400) << path << body << got.body;
    return got.json()["error"].value("param", "");
  };
  EXPECT_EQ(param(branch_path(id, "effects"), Json::object()), "key");
  EXPECT_EQ(param(branch_path(id, "effects"), {{"key", 5}}), "key");
  EXPECT_EQ(param(branch_path(id, "effects"), {{"key", "a"}, {"value", {1}}}), "value");
  EXPECT_EQ(param("/v1/effects/eff_1", Json::object()), "value");
  EXPECT_EQ(server_.get("/v1/effects/events?after=x").status, 400);
  EXPECT_EQ(server_.post("/v1/effects/eff_1", {{"value", ""}}).status, 404);
  const std::string effect = did(id, "a", "1")["id"];
  EXPECT_EQ(server_.post("/v1/effects/" + effect + "0", {{"value", ""}}).status, 404);
  EXPECT_EQ(server_.post(branch_path("br_0", "effects"), {{"key", "a"}}).status, 404);
  EXPECT_EQ(server_.get(branch_path("br_0", "effects")).status, 404);
}

TEST(Effects, AnotherKeyFindsNone) {
  ServerOptions options;
  options.api_keys = {"a", "b"};
  const TestServer server(engine(), options);
  const std::string one = "x-api-key: a\r\n";
  const std::string other = "x-api-key: b\r\n";
  const std::string id =
      server.post("/v1/branches", {{"prompt", "x"}}, one).json()["data"][0]["id"];
  const std::string path = branch_path(id, "effects");
  const std::string effect = server.post(path, {{"key", "a"}}, one).json()["id"];
  EXPECT_EQ(server.post(path, {{"key", "a"}}, other).status, 404);
  EXPECT_EQ(server.ask("GET", path, "", other).status, 404);
  EXPECT_EQ(server.post("/v1/effects/" + effect, {{"value", ""}}, other).status, 404);
  EXPECT_EQ(server.ask("DELETE", "/v1/effects/" + effect, "", other).status, 404);
  server.post("/v1/effects/" + effect, {{"value", ""}}, one);
  server.post(branch_path(id, "commit"), Json::object(), one);
  const auto events = [&](const std::string& key) {
    return server.ask("GET", "/v1/effects/events", "", key).json()["data"].size();
  };
  EXPECT_EQ(events(one), 1U);
  EXPECT_EQ(events(other), 0U);
}

/// A turn of a conversation by /v1/responses: its id.
std::string response(const TestServer& server, const Json& more = Json::object(),
                     const std::string& headers = {}) {
  Json body = {{"input", "4 5 6 10"}, {"max_output_tokens", 6}, {"ignore_eos", true}};
  body.update(more);
  const Got got = server.post("/v1/responses", body, headers);
  EXPECT_EQ(got.status, 200) << got.body;
  return got.json()["id"];
}

TEST_F(EffectsTest, HangOnTheBranchOfAResponseAndGoOnWithTheNextTurn) {
  const std::string first = response(server_);
  const Json made = ok("/v1/branches", {{"response_id", first}})["data"][0];
  EXPECT_EQ(made["length"], made["shared"]);
  EXPECT_EQ(made["parent"], first);
  EXPECT_EQ(made["length"], made["prompt_length"].get<int>() + 6);
  const std::string one = made["id"];
  const Json paid = did(one, "pay 5", "paid");

  const std::string second = response(server_, {{"previous_response_id", first}});
  const Json next = ok("/v1/branches", {{"response_id", second}, {"effects_of", one}, {"n", 2}});
  const std::string two = next["data"][0]["id"];
  EXPECT_EQ(keys(two), Keys{"pay 5"});
  EXPECT_EQ(keys(next["data"][1]["id"]), Keys{"pay 5"});
  const Json more = ok(branch_path(two, "effects"), {{"key", "pay 5"}}, 201);  // further on
  EXPECT_EQ(more["parent"], paid["id"]);
  EXPECT_EQ(keys(one), Keys{"pay 5"});
  // What the last turn has is not gone with the branches of those before.
  drop(one);
  drop(next["data"][1]["id"]);
  EXPECT_EQ(keys(two), (Keys{"pay 5", "pay 5"}));

  // So it is with chats.
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "4 5 6 10"}}}},
                     {"effects_of", two}};
  EXPECT_EQ(keys(ok("/v1/branches", chat)["data"][0]["id"]), (Keys{"pay 5", "pay 5"}));
}

TEST_F(EffectsTest, AreOfBranchesThatAreThere) {
  const std::string id = response(server_);
  const Json cut = ok("/v1/branches", {{"response_id", id}, {"at", 3}})["data"][0];
  EXPECT_EQ(cut["length"], 3);
  ok("/v1/branches", {{"response_id", id}, {"at", 1000}}, 400);
  ok("/v1/branches", {{"response_id", "resp_none"}}, 404);
  ok("/v1/branches", {{"response_id", id}, {"effects_of", "br_none"}}, 404);
  ok("/v1/branches", {{"prompt", "x"}, {"effects_of", "br_none"}}, 404);
  const std::string branch = cut["id"];
  const Json refused = ok("/v1/branches", {{"branch_id", branch}, {"effects_of", branch}}, 400);
  EXPECT_EQ(refused["error"]["param"], "effects_of");
  for (const char* of : {"branch_id", "response_id"}) {
    const Json salted = {{of, *of == 'b' ? branch : id}, {"cache_salt", "x"}};
    EXPECT_EQ(ok("/v1/branches", salted, 400)["error"]["param"], "cache_salt");
  }
  const std::string unstored = response(server_, {{"store", false}});
  ok("/v1/branches", {{"response_id", unstored}}, 404);
}

TEST(EffectsOfKeys, NobodyHasABranchOfAnothersResponse) {
  const TestServer server(engine(), {.api_keys = {"one", "two"}});
  const std::string id = response(server, Json::object(), "x-api-key: one\r\n");
  EXPECT_EQ(server.post("/v1/branches", {{"response_id", id}}, "x-api-key: two\r\n").status, 404);
  EXPECT_EQ(server.post("/v1/branches", {{"response_id", id}}, "x-api-key: one\r\n").status, 200);
}

}  // namespace
}  // namespace dendrite::server
