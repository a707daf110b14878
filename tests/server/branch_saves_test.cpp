// Branches and their effects survive the server's process: after it has ended, and after a kill.
#include <filesystem>
#include <fstream>

#include "server_support.h"
#include "support/temporary_folder.h"

namespace dendrite::server {
namespace {

namespace fs = std::filesystem;

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

const Json kGreedy = {{"max_tokens", 10}, {"temperature", 0}, {"ignore_eos", true}};

std::string branch_path(const std::string& id, const std::string& what = "") {
  return "/v1/branches/" + id + (what.empty() ? "" : "/" + what);
}

ServerOptions stored_in(const fs::path& folder) {
  ServerOptions options;
  options.response_store = folder.string();
  return options;
}

class BranchSavesTest : public ::testing::Test {
 protected:
  BranchSavesTest() { start(folder_.path()); }
  void start(const fs::path& folder, const Engine& with = engine()) {
    at_ = folder;
    server_ = std::make_unique<TestServer>(with, stored_in(folder));
  }
  /// A server that finds what a kill at this moment would have left.
  void kill() {
    const fs::path copy = folder_.path() / ("killed" + std::to_string(++kills_));
    fs::create_directory(copy);
    for (const auto& file : fs::directory_iterator(at_)) {
      if (file.is_regular_file()) fs::copy(file, copy);
    }
    other_ = std::move(server_);  // which goes on, and is asked for nothing
    start(copy);
  }
  Json ok(const std::string& path, const Json& body, int status = 200) {
    const Got got = server_->post(path, body);
    EXPECT_EQ(got.status, status) << path << " " << got.body;
    return got.json();
  }
  std::string made() {
    return ok("/v1/branches", {{"prompt", "S 24: 4 5 6 10\n"}})["data"][0]["id"];
  }
  Json get(const std::string& path) { return server_->get(path).json(); }
  std::string decoded(const std::string& id, const Json& params = kGreedy) {
    return ok(branch_path(id, "decode"), params)["choices"][0]["text"];
  }

  TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  fs::path at_;
  std::unique_ptr<TestServer> server_, other_;
  int kills_ = 0;
};

TEST_F(BranchSavesTest, TheyGoOnWithTheSameBits) {
  const std::string id = made();
  decoded(id);
  const std::string fork = ok(branch_path(id, "fork"), Json::object())["data"][0]["id"];
  const Json before = get(branch_path(fork));
  kill();
  EXPECT_EQ(get(branch_path(fork)), before);
  const Json draw = {{"max_tokens", 12}, {"temperature", 1.5}};
  const std::string text = decoded(fork, draw);
  std::swap(server_, other_);
  EXPECT_EQ(decoded(fork, draw), text);
  // So do forks that are made afterwards.
  const auto forked = [&] {
    return decoded(ok(branch_path(id, "fork"), Json::object())["data"][0]["id"], draw);
  };
  const std::string theirs = forked();
  std::swap(server_, other_);
  EXPECT_EQ(forked(), theirs);
}

TEST_F(BranchSavesTest, ARestoredBranchRepeatsNoCall) {
  const std::string id = made();
  const Json ended = ok(branch_path(id, "effects"), {{"key", "pay 5"}, {"value", "paid"}}, 201);
  const Json open = ok(branch_path(id, "effects"), {{"key", "pay 6"}}, 201);
  kill();
  const Json known = ok(branch_path(id, "effects"), {{"key", "pay 5"}});
  EXPECT_EQ(known["id"], ended["id"]);
  EXPECT_EQ(known["value"], "paid");
  EXPECT_EQ(ok(branch_path(id, "effects"), {{"key", "pay 6"}}, 409)["error"]["code"],
            "effect_open");
  ok("/v1/effects/" + open["id"].get<std::string>(), {{"value", "paid, too"}});
  kill();
  EXPECT_EQ(ok(branch_path(id, "effects"), {{"key", "pay 6"}})["value"], "paid, too");
  const Json next = ok(branch_path(id, "effects"), {{"key", "pay 7"}}, 201);
  EXPECT_NE(next["id"], open["id"]);
  EXPECT_EQ(next["parent"], open["id"]);
}

TEST_F(BranchSavesTest, WhatWasDoneForAResponseIsNotDoneAgain) {
  const auto response = [&](const Json& more) -> std::string {
    Json body = {{"input", "4 5 6 10"}, {"max_output_tokens", 4}};
    body.update(more);
    return ok("/v1/responses", body)["id"];
  };
  const std::string first = response(Json::object());
  const std::string one = ok("/v1/branches", {{"response_id", first}})["data"][0]["id"];
  const Json paid = ok(branch_path(one, "effects"), {{"key", "call_1"}, {"value", "paid"}}, 201);
  kill();
  const Json known = ok(branch_path(one, "effects"), {{"key", "call_1"}});
  EXPECT_EQ(known["id"], paid["id"]);
  EXPECT_EQ(known["value"], "paid");
  const Json gone = ok("/v1/branches", {{"response_id", first}}, 400);
  EXPECT_EQ(gone["error"]["code"], "unsupported_value");
  const std::string second = response({{"previous_response_id", first}});
  const Json asked = {{"response_id", second}, {"effects_of", one}};
  const std::string two = ok("/v1/branches", asked)["data"][0]["id"];
  kill();
  EXPECT_EQ(get(branch_path(two, "effects"))["data"][0]["id"], paid["id"]);
}

TEST_F(BranchSavesTest, KeepTheirSalt) {
  const Json body = {{"prompt", "S 24: 1 2 3 4\n"}, {"cache_salt", "x"}};
  ok("/v1/branches", body);  // saved with K and V at the end
  server_.reset();
  const Engine fresh = shipped();
  start(folder_.path(), fresh);
  const auto shared = [&](const Json& with) -> std::int64_t {
    return ok("/v1/branches", with)["data"][0]["shared"];
  };
  EXPECT_EQ(shared({{"prompt", body["prompt"]}}), 0);
  EXPECT_GT(shared(body), 0);
  server_.reset();
}

TEST_F(BranchSavesTest, EventsThatWereToldHoldAfterAKill) {
  const std::string id = made();
  const std::string fork = ok(branch_path(id, "fork"), Json::object())["data"][0]["id"];
  const std::string lost =
      ok(branch_path(fork, "effects"), {{"key", "lost"}, {"value", ""}}, 201)["id"];
  ok(branch_path(id, "effects"), {{"key", "won"}, {"value", ""}}, 201);
  ok(branch_path(id, "commit"), Json::object());
  server_->ask("DELETE", branch_path(fork));
  ASSERT_TRUE(soon([&] { return get("/v1/effects/events")["data"].size() == 2; }));
  const Json events = get("/v1/effects/events");
  EXPECT_EQ(events["data"][1]["effect"]["id"], lost);
  kill();
  EXPECT_EQ(get("/v1/effects/events"), events);
  EXPECT_EQ(server_->get(branch_path(fork)).status, 404);
  EXPECT_EQ(get(branch_path(id, "effects"))["data"][0]["status"], "committed");
  ok(branch_path(id, "effects"), {{"key", "more"}, {"value", ""}}, 201);
  ok(branch_path(id, "commit"), Json::object());
  EXPECT_EQ(get("/v1/effects/events?after=2")["data"][0]["sequence_number"], 3);
}

TEST_F(BranchSavesTest, AnEndKeepsThemWithTheirKV) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "4 5 6 10\n";
  const std::string id = ok("/v1/branches", {{"prompt", text}})["data"][0]["id"];
  const Json before = get(branch_path(id));
  ASSERT_GT(before["length"], 200);
  server_ = nullptr;
  const Engine fresh = shipped();
  start(folder_.path(), fresh);
  EXPECT_EQ(get(branch_path(id)), before);
  const std::int64_t rows = fresh.stats().rows;  // those of the session that was saved, too
  decoded(id);
  EXPECT_LT(fresh.stats().rows - rows, 30);
  server_->ask("DELETE", branch_path(id));
  server_ = nullptr;
  start(folder_.path());
  EXPECT_EQ(server_->get(branch_path(id)).status, 404);
}

TEST_F(BranchSavesTest, OneThatIsBeingDecodedIsAsItWasBefore) {
  const std::string id = made();
  decoded(id);
  const Json before = get(branch_path(id));
  Client client(server_->port());
  client.send(request_text("POST", branch_path(id, "decode"),
                           dump({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}})));
  std::string seen;
  ASSERT_TRUE(client.until("data: ", seen));
  made();  // so that it is saved
  kill();
  EXPECT_EQ(get(branch_path(id)), before);
  client.close();
}

TEST_F(BranchSavesTest, KeysHaveFilesOfTheirOwn) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  ServerOptions options = stored_in(folder.path());
  options.api_keys = {"a", "b"};
  const auto with_key = [](const std::string& key) { return "x-api-key: " + key + "\r\n"; };
  std::string id;
  {
    const TestServer server(engine(), options);
    id = server.post("/v1/branches", {{"prompt", "x"}}, with_key("b")).json()["data"][0]["id"];
  }
  options.api_keys = {"b", "c", "a"};  // in another order
  const TestServer server(engine(), options);
  EXPECT_EQ(server.ask("GET", branch_path(id), "", with_key("b")).status, 200);
  EXPECT_EQ(server.ask("GET", branch_path(id), "", with_key("a")).status, 404);
}

TEST_F(BranchSavesTest, WhatCannotBeSavedIsNotAcknowledged) {
  const std::string id = made();
  std::string file;
  for (const auto& each : fs::directory_iterator(folder_.path())) {
    if (each.path().extension() == ".dendrite") file = each.path().string();
  }
  ASSERT_FALSE(file.empty());
  fs::create_directory(file + ".new");  // where the next one would be written
  const Got got = server_->post(branch_path(id, "effects"), {{"key", "a"}, {"value", ""}});
  EXPECT_EQ(got.status, 500);
  EXPECT_EQ(got.header("x-should-retry"), "false");
  fs::remove(file + ".new");
  EXPECT_EQ(ok(branch_path(id, "effects"), {{"key", "b"}}, 201)["new"], true);
}

TEST_F(BranchSavesTest, AFileThatIsDamagedIsNamed) {
  made();
  server_ = nullptr;
  for (const auto& each : fs::directory_iterator(folder_.path())) {
    if (each.path().extension() == ".dendrite") fs::resize_file(each, fs::file_size(each) / 2);
  }
  try {
    start(folder_.path());
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("branches-"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace dendrite::server
