// Several models behind one server: each request is one's, by its name or by what it goes on from.
#include <set>
#include <sstream>

#include "server_support.h"

namespace dendrite::server {
namespace {

const std::vector<Engine>& engines() {
  static const std::vector<Engine> kEngines = [] {
    EngineOptions options;
    options.threads = 1;
    options.memory_bytes = std::int64_t{128} << 20;
    const std::string folder = DENDRITE_MODELS_DIR;
    return Engine::load_all({folder + "/dendrite-24", folder + "/dendrite-tools"}, options);
  }();
  return kEngines;
}

const Json kAsk = {{"messages", {{{"role", "user"}, {"content", "Timer 5 min"}}}},
                   {"temperature", 0},
                   {"max_tokens", 12}};

class SeveralModels : public ::testing::Test {
 protected:
  explicit SeveralModels(ServerOptions options = {})
      : server_({{engines()[0]}, {engines()[1], {"tools", "t"}}}, std::move(options)) {}
  Json ok(const std::string& path, const Json& body, const std::string& headers = {}) {
    const Got got = server_.post(path, body, headers);
    EXPECT_EQ(got.status, 200) << path << " " << got.body;
    return got.json();
  }
  static Json with(Json body, const char* name, const Json& value) {
    body[name] = value;
    return body;
  }
  std::string branch_of(const char* model) {
    return ok("/v1/branches", {{"model", model}, {"prompt", "4 5 6"}})["data"][0]["id"];
  }
  /// Refused with a message that says both names.
  void expect_others(const Got& got, const std::string& id, const std::string& model) {
    EXPECT_EQ(got.status, 400) << got.body;
    const std::string message = got.json()["error"]["message"];
    EXPECT_NE(message.find(id), std::string::npos) << message;
    EXPECT_NE(message.find("is of the model \"" + model + "\""), std::string::npos) << message;
  }

  TestServer server_;
};

TEST_F(SeveralModels, AnswerByTheirNamesAsAlone) {
  const TestServer alone[] = {TestServer(engines()[0]), TestServer(engines()[1])};
  const auto said = [](const Got& got) { return got.json()["choices"][0]["message"]["content"]; };
  const std::string path = "/v1/chat/completions";
  const Json texts[] = {said(alone[0].post(path, kAsk)), said(alone[1].post(path, kAsk))};
  EXPECT_NE(texts[0], texts[1]);
  for (const auto& [name, place] : {std::pair("dendrite-24", 0), {"tools", 1}, {"t", 1}}) {
    const Json got = ok(path, with(kAsk, "model", name));
    EXPECT_EQ(got["choices"][0]["message"]["content"], texts[place]);
    EXPECT_EQ(got["model"], name);
  }
  EXPECT_EQ(said(server_.post(path, kAsk)), texts[0]);  // the first, where nobody says
}

TEST_F(SeveralModels, AreListedAndOthersAreNotFound) {
  const Json list = server_.get("/v1/models").json()["data"];
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0]["id"], "dendrite-24");
  EXPECT_EQ(list[2]["id"], "t");
  EXPECT_EQ(list[0]["max_model_len"], engines()[0].info().max_positions);
  EXPECT_EQ(server_.get("/v1/models/t").json()["max_model_len"], engines()[1].info().max_positions);
  for (const Got& got :
       {server_.get("/v1/models/other"), server_.get("/tokenizer_info?model=other"),
        server_.post("/v1/chat/completions", with(kAsk, "model", "other"))}) {
    EXPECT_EQ(got.status, 404);
    EXPECT_EQ(got.json()["error"]["code"], "model_not_found");
    EXPECT_NE(got.body.find("tools"), std::string::npos) << got.body;
    EXPECT_NE(got.body.find("dendrite-24"), std::string::npos) << got.body;
  }
}

TEST_F(SeveralModels, BranchesAreOfOneAndRefusedForAnother) {
  const std::string id = branch_of("tools");
  const std::string at = "/v1/branches/" + id;
  EXPECT_EQ(server_.get(at).status, 200);
  EXPECT_EQ(server_.get(at + "?model=tools").status, 200);
  expect_others(server_.get(at + "?model=dendrite-24"), id, "tools");
  const Json decode = {{"max_tokens", 4}, {"temperature", 0}};
  expect_others(server_.post(at + "/decode", with(decode, "model", "dendrite-24")), id, "tools");
  expect_others(server_.post("/v1/branches", {{"branch_id", id}, {"model", "dendrite-24"}}), id,
                "tools");
  const std::string fork = ok("/v1/branches", {{"branch_id", id}})["data"][0]["id"];
  EXPECT_EQ(ok("/v1/branches/" + fork + "/decode",
               with(decode, "model", "t"))["usage"]["completion_tokens"],
            4);
  // What is of both at once is of none.
  const std::string first = branch_of("dendrite-24");
  const Got both = server_.post("/v1/branches", {{"effects_of", first}, {"branch_id", id}});
  EXPECT_EQ(both.status, 400);
  EXPECT_NE(both.body.find("expected both of one"), std::string::npos) << both.body;
  EXPECT_EQ(server_.ask("DELETE", at).status, 200);
  EXPECT_EQ(server_.get(at).status, 404);
}

TEST_F(SeveralModels, ResponsesGoOnWithTheirModel) {
  const Json ask = {{"model", "tools"}, {"input", "Timer 5 min"}, {"max_output_tokens", 8}};
  const std::string id = ok("/v1/responses", ask)["id"];
  EXPECT_EQ(server_.get("/v1/responses/" + id).status, 200);
  const Json next = {{"previous_response_id", id}, {"input", "And?"}, {"max_output_tokens", 4}};
  expect_others(server_.post("/v1/responses", with(next, "model", "dendrite-24")), id, "tools");
  EXPECT_EQ(ok("/v1/responses", with(next, "model", "tools"))["model"], "tools");
  EXPECT_EQ(ok("/v1/responses", next)["model"], "tools");
  expect_others(server_.post("/v1/branches", {{"response_id", id}, {"model", "dendrite-24"}}), id,
                "tools");
}

TEST_F(SeveralModels, EffectsAreOfTheirBranches) {
  const std::string id = branch_of("tools");
  const Got begun = server_.post("/v1/branches/" + id + "/effects", {{"key", "pay"}});
  ASSERT_EQ(begun.status, 201) << begun.body;
  const std::string effect = begun.json()["id"];
  EXPECT_EQ(ok("/v1/effects/" + effect, {{"value", "done"}})["status"], "ended");
  ok("/v1/branches/" + id + "/commit", Json::object());
  EXPECT_EQ(server_.get("/v1/effects/events?model=tools").json()["data"].size(), 1U);
  EXPECT_EQ(server_.get("/v1/effects/events").json()["data"].size(), 0U);  // the first's
}

TEST_F(SeveralModels, ALongBodyIsReadForItsModel) {
  const std::string text(200'000, '7');
  const Json body = {{"content", text}, {"deep", {{"model", "dendrite-24"}}}, {"model", "tools"}};
  EXPECT_EQ(ok("/tokenize", body)["count"], engines()[1].encode(text, false).size());
  EXPECT_EQ(server_.ask("POST", "/tokenize", "{\"model\": \"tools\", ").status, 400);
}

TEST_F(SeveralModels, AreToldApartInMetrics) {
  ok("/v1/chat/completions", with(kAsk, "model", "tools"));
  const std::string text = server_.get("/metrics").body;
  std::set<std::string> families;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(families.insert(line.substr(0, line.find(' ', 7))).second) << line;
    }
    if (line.starts_with("#")) continue;
    EXPECT_NE(line.find("model_name=\""), std::string::npos) << line;
  }
  EXPECT_NE(text.find("dendrite:generation_tokens_total{model_name=\"tools\"} "),
            std::string::npos);
  EXPECT_NE(text.find("dendrite:generation_tokens_total{model_name=\"dendrite-24\"} "),
            std::string::npos);
  EXPECT_NE(text.find("dendrite_steps_total{model_name=\"tools\"} "), std::string::npos) << text;
}

class SeveralModelsOfKeys : public SeveralModels {
 protected:
  SeveralModelsOfKeys() : SeveralModels(keys()) {}
  static ServerOptions keys() {
    ServerOptions options;
    options.api_keys = {"one", "two"};
    return options;
  }
};

TEST_F(SeveralModelsOfKeys, WhatIsOfAnotherKeyIsNotTold) {
  const std::string mine = "x-api-key: one\r\n";
  const std::string id =
      ok("/v1/branches", {{"model", "tools"}, {"prompt", "4 5 6"}}, mine)["data"][0]["id"];
  const Json fork = {{"branch_id", id}, {"model", "dendrite-24"}};
  expect_others(server_.post("/v1/branches", fork, mine), id, "tools");
  EXPECT_EQ(server_.post("/v1/branches", fork, "x-api-key: two\r\n").status, 404);
}

TEST(SeveralModelsAtOnce, ShareTheirMemory) {
  std::int64_t taken = 0;
  for (const Engine& engine : engines()) {
    const EngineInfo& info = engine.info();
    taken += info.weight_bytes + info.kv_tokens * info.kv_token_bytes;
  }
  EXPECT_LE(taken, std::int64_t{128} << 20);
  EXPECT_GT(taken, std::int64_t{120} << 20);
}

TEST(SeveralModelsAtOnce, HaveNamesOfTheirOwn) {
  const auto refusal = [](std::vector<ServedModel> models) -> std::string {
    try {
      const TestServer server(std::move(models));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal({{engines()[0], {"m"}}, {engines()[1], {"n", "m"}}}).find("two models are"),
            std::string::npos);
  EXPECT_NE(refusal({}).find("no model"), std::string::npos);
}

}  // namespace
}  // namespace dendrite::server
