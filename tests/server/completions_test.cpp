// /v1/completions on a shipped model.
#include "server_support.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

TEST(Completions, LogprobsOfThePromptAreThoseOfScoring) {
  const TestServer server(engine());
  const std::vector<Token> ids = engine().encode("S 24: 4 5 6 10\n");
  const Json body = {{"prompt", Json::array({ids})},
                     {"max_tokens", 1},
                     {"logprobs", 1},
                     {"echo", true},
                     {"temperature", 0}};
  const Json choice = server.post("/v1/completions", body).json()["choices"][0];
  const Json lists = choice["logprobs"];
  ASSERT_EQ(lists["token_logprobs"].size(), ids.size() + 1);
  ASSERT_EQ(lists["top_logprobs"].size(), ids.size() + 1);
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  Session session(engine());
  Branch first = session.prefill(std::span(ids).first(1));
  const Score score = first.score_tokens({{ids.begin() + 1, ids.end()}}).front();
  for (std::size_t i = 0; i < score.tokens.size(); ++i) {
    EXPECT_EQ(lists["token_logprobs"][i + 1].get<double>(), score.tokens[i]);
    // What was chosen is in its dictionary, by the same number.
    const Json top = lists["top_logprobs"][i + 1];
    EXPECT_EQ(top[lists["tokens"][i + 1].get<std::string>()], lists["token_logprobs"][i + 1]);
    EXPECT_LE(top.size(), 2U);
  }
  // Greedy: what was generated is the largest.
  const Json last = lists["top_logprobs"][ids.size()];
  for (const auto& [text, logprob] : last.items()) {
    EXPECT_LE(logprob.get<double>(), lists["token_logprobs"][ids.size()].get<double>()) << text;
  }
}

TEST(Completions, PromptsComeInEveryForm) {
  const TestServer server(engine());
  const std::string text = "S 24: 4 5 6 10\n";
  const std::vector<Token> ids = engine().encode(text);
  const auto texts = [&](const Json& prompt) {
    const Json got =
        server.post("/v1/completions", {{"prompt", prompt}, {"temperature", 0}, {"n", 2}}).json();
    std::vector<std::string> out;
    for (const Json& choice : got["choices"]) out.push_back(choice["text"]);
    return out;
  };
  const std::vector<std::string> one = texts(text);
  ASSERT_EQ(one.size(), 2U);
  EXPECT_EQ(one[0].size(), 16U);  // OpenAI's max_tokens
  EXPECT_EQ(texts(ids), one);
  const std::vector<std::string> two = texts(Json::array({text, text}));
  EXPECT_EQ(two, (std::vector<std::string>{one[0], one[1], one[0], one[1]}));
  EXPECT_EQ(texts(Json::array({ids, ids})), two);
}

TEST(Completions, StreamsComeToTheWholeAnswer) {
  const TestServer server(engine());
  Json body = {{"prompt", Json::array({"S 24: 4 5 6 10\n", "S 24: 1 2 3 4\n"})},
               {"temperature", 1},
               {"seed", 3},
               {"n", 2},
               {"echo", true},
               {"logprobs", 2}};
  const Json whole = server.post("/v1/completions", body).json()["choices"];
  body["stream"] = true;
  std::vector<std::string> texts(4);
  std::vector<std::size_t> logprobs(4);
  for (const Json& chunk : events_of(server.post("/v1/completions", body).body)) {
    for (const Json& one : chunk["choices"]) {
      texts[one["index"]] += one["text"].get<std::string>();
      if (one["logprobs"].is_object()) logprobs[one["index"]] += one["logprobs"]["tokens"].size();
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(texts[i], whole[i]["text"]);
    EXPECT_EQ(logprobs[i], whole[i]["logprobs"]["tokens"].size());
  }
}

TEST(Completions, StreamedIdsDoNotWaitForText) {
  const TestServer server(engine());
  const Json body = {{"prompt", "S 24: 4 5 6 10\n"},
                     {"temperature", 0},
                     {"logit_bias", {{"258", 100}}},  // <|pad|>, which is never in a text
                     {"max_tokens", 3},
                     {"return_token_ids", true},
                     {"stream", true}};
  std::vector<Token> before, last;
  for (const Json& chunk : events_of(server.post("/v1/completions", body).body)) {
    const Json& choice = chunk["choices"][0];
    EXPECT_EQ(choice["text"], "");
    std::vector<Token>& ids = choice["finish_reason"].is_null() ? before : last;
    for (const Json& id : choice["token_ids"]) ids.push_back(id.get<Token>());
  }
  EXPECT_EQ(before, (std::vector<Token>{258, 258, 258}));
  EXPECT_TRUE(last.empty());
}

TEST(Completions, AnEngineThatGoesBeyondItsPositionsDoesSoWhenServed) {
  EngineOptions load;
  load.threads = 1;
  load.kv_tokens = 2048;
  load.beyond_positions = true;
  const Engine far = Engine::load(std::string(DENDRITE_MODELS_DIR) + "/dendrite-24", load);
  const Json body = {{"prompt", std::vector<Token>(1100, 7)}, {"max_tokens", 2}};
  const TestServer strict(far), server(far, {.beyond_positions = true});
  EXPECT_EQ(strict.post("/v1/completions", body).json()["error"]["code"],
            "context_length_exceeded");
  EXPECT_EQ(server.post("/v1/completions", body).json()["usage"]["prompt_tokens"], 1100);
  EXPECT_EQ(server.get("/v1/models").json()["data"][0]["max_model_len"], 2048);
}

TEST(Completions, WhatIsNotSupportedIsRefusedByName) {
  const TestServer server(engine());
  const std::vector<std::pair<std::string, Json>> refused = {
      {"suffix", "x"},         {"best_of", 3},        {"prompt", Json::array()},
      {"prompt", {1, 100000}}, {"prompt", {{1, -1}}}, {"prompt", 5},
      {"logprobs", 1000},      {"logprobs", true},    {"echo", "yes"},
      {"guided_regex", "a"},   {"max_tokens", -1},
  };
  for (const auto& [name, value] : refused) {
    Json body = {{"prompt", "S 24: 4 5 6 10\n"}};
    body[name] = value;
    const Got got = server.post("/v1/completions", body);
    EXPECT_EQ(got.status, 400) << name << " " << value;
    EXPECT_TRUE(got.json()["error"].value("param", "").starts_with(name)) << got.body;
  }
  EXPECT_EQ(server.post("/v1/completions", Json::object()).status, 400);
  const Got model = server.post("/v1/completions", {{"prompt", "a"}, {"model", "none"}});
  EXPECT_EQ(model.status, 404);
}

}  // namespace
}  // namespace dendrite::server
