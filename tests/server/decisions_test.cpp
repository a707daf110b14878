// /v1/decisions: chances of labels, which are those of scoring.
#include <cmath>

#include "server/decision_questions.h"
#include "server_support.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

const Json kPredicate = {{"type", "predicate"}, {"instructions", "Is it so?"}, {"name", "so"}};

TEST(Decisions, ChancesAreThoseOfScoring) {
  const TestServer server(engine());
  const Json body = {{"input", "4 5 6 10"}, {"questions", Json::array({kPredicate})}};
  const Got got = server.post("/v1/decisions", body);
  ASSERT_EQ(got.status, 200) << got.body;
  const Json answer = got.json()["answers"][0];
  EXPECT_EQ(answer["name"], "so");
  const Json messages = Json::array(
      {{{"role", "user"}, {"content", "4 5 6 10\n\nIs it so?\nAnswer with yes or no only."}}});
  const std::vector<Token> prompt = engine().encode(engine().render_chat(messages.dump()), false);
  Session session(engine());
  Branch branch = session.prefill(std::span<const Token>(prompt));
  const std::vector<Score> scores = branch.score({"yes", "no"});
  const double yes = std::exp(scores[0].logprob);
  const double no = std::exp(scores[1].logprob);
  EXPECT_NEAR(answer["probability"].get<double>(), yes / (yes + no), 1e-9);
  EXPECT_EQ(got.json()["usage"]["input_tokens"], prompt.size());
}

TEST(Decisions, QuestionsShareTheirInput) {
  const TestServer server(engine());
  Json questions = Json::array();
  for (int i = 0; i < 40; ++i) {
    Json question = kPredicate;
    question["instructions"] = "Is it " + std::to_string(i) + "?";
    questions.push_back(question);
  }
  std::string input;
  for (int i = 0; i < 300; ++i) input += "7 ";
  const std::int64_t before = engine().stats().rows;
  const Got got = server.post("/v1/decisions", {{"input", input}, {"questions", questions}});
  ASSERT_EQ(got.status, 200) << got.body;
  const Got alone =
      server.post("/v1/decisions", {{"input", input}, {"questions", Json::array({questions[7]})}});
  EXPECT_EQ(got.json()["answers"].size(), 40U);
  EXPECT_EQ(got.json()["answers"][7], alone.json()["answers"][0]);
  // The input once, and of each question its own tokens and labels.
  EXPECT_LT(engine().stats().rows - before, 600 + 41 * 80);
}

TEST(Decisions, AnswersAreWhatTheLogprobsSay) {
  Question question;
  question.kind = Question::Kind::kScore;
  question.options = {{"0", "low"}, {"1", "high"}};
  const Json level = answer_json(question, {std::log(0.1), std::log(0.3)});
  EXPECT_NEAR(level["score"].get<double>(), 0.75, 1e-12);
  EXPECT_NEAR(level["confidence"].get<double>(), 0.3, 1e-12);
  EXPECT_EQ(level["probabilities"][1]["label"], "high");
  question.kind = Question::Kind::kChoice;
  question.options = {{"A", "true"}, {"B", true}};
  const Json choice = answer_json(question, {-INFINITY, -1});
  EXPECT_EQ(choice["choice"], true);
  EXPECT_EQ(choice["probabilities"][0]["probability"], 0.0);
}

TEST(Decisions, LabelsAreNotTheBeginningOfOthers) {
  Json choices = Json::array();
  for (int i = 0; i < 200; ++i) choices.push_back({{"value", std::to_string(i)}});
  const std::vector<Question> questions = read_questions(
      Json::array({{{"type", "choice"}, {"instructions", "x"}, {"choices", choices}}}),
      "questions");
  EXPECT_EQ(questions[0].options[7].label, "007");
  EXPECT_EQ(questions[0].options[199].label, "199");
}

const Json kNamed = {
    {"so", {{"type", "noul"}, {"instructions", "Is it so?"}}},
    {"team",
     {{"type", "choice"},
      {"instructions", "Whose is it?"},
      {"criteria", {{"billing", "payments"}, {"other", nullptr}}}}},
    {"size",
     {{"type", "score"}, {"instructions", "How large?"}, {"criteria", {"low", "mid", "high"}}}}};

TEST(Decisions, TheirOtherFormIsTheSameCall) {
  const TestServer server(engine());
  const Got got = server.post("/v1/systemone", {{"state", "4 5 6 10"}, {"questions", kNamed}});
  ASSERT_EQ(got.status, 200) << got.body;
  const Json choice = {
      {"type", "choice"},
      {"instructions", "Whose is it?"},
      {"choices", {{{"value", "billing"}, {"description", "payments"}}, {{"value", "other"}}}}};
  const Json score = {{"type", "score"},
                      {"instructions", "How large?"},
                      {"levels", {{{"label", "low"}}, {{"label", "mid"}}, {{"label", "high"}}}}};
  const Json same = server
                        .post("/v1/decisions",
                              {{"input", "4 5 6 10"}, {"questions", {kPredicate, choice, score}}})
                        .json();
  const Json answers = got.json()["answers"];
  EXPECT_EQ(answers["so"], (Json{{"type", "noul"}, {"noul", same["answers"][0]["probability"]}}));
  EXPECT_EQ(answers["team"]["choice"], same["answers"][1]["choice"]);
  EXPECT_EQ(answers["team"]["probabilities"]["billing"],
            same["answers"][1]["probabilities"][0]["probability"]);
  EXPECT_EQ(answers["size"]["score"], same["answers"][2]["score"]);
  EXPECT_EQ(answers["size"]["legend"], (Json{{"0", "low"}, {"1", "mid"}, {"2", "high"}}));
  EXPECT_EQ(answers["size"]["probabilities"]["2"],
            same["answers"][2]["probabilities"][2]["probability"]);
  EXPECT_EQ(got.json()["usage"]["input_tokens"], same["usage"]["input_tokens"]);
  // A state may be any JSON, and its clients ask for a model of their maker's.
  const Got any =
      server.post("/v1/systemone",
                  {{"state", {{"a", {1, 2}}}}, {"questions", kNamed}, {"model", "jev-latest"}});
  EXPECT_EQ(any.status, 200) << any.body;
  EXPECT_EQ(any.header("x-dendrite-ignored"), "model(jev-latest)");
}

TEST(Decisions, NamedConfidenceIsHowFarItIsFromEvenChances) {
  Question question;
  question.kind = Question::Kind::kChoice;
  question.options = {{"A", "a"}, {"B", "b"}, {"C", "c"}};
  const Json even = named_answer_json(question, {-2, -2, -2});
  EXPECT_NEAR(even["confidence"].get<double>(), 0, 1e-12);
  const Json sure = named_answer_json(question, {std::log(0.94), std::log(0.06), -INFINITY});
  EXPECT_NEAR(sure["confidence"].get<double>(), 0.91, 1e-12);
  EXPECT_EQ(sure["choice"], "a");
}

TEST(Decisions, AConnectionGoesOnAfterwards) {
  const TestServer server(engine());
  Client client(server.port());
  const std::string body = dump({{"input", "x"}, {"questions", Json::array({kPredicate})}});
  for (int i = 0; i < 20; ++i) {
    client.send(request_text("POST", "/v1/decisions", body));
    EXPECT_EQ(client.answer().status, 200);
  }
}

TEST(Decisions, WhatIsWrongIsNamedByItsPath) {
  const TestServer server(engine());
  const auto param = [&](const Json& body) {
    const Got got = server.post("/v1/decisions", body);
    EXPECT_EQ(got.status, 400) << body << got.body;
    return got.json()["error"].value("param", "");
  };
  const auto asked = [](const Json& question) {
    return Json{{"input", "x"}, {"questions", Json::array({question})}};
  };
  EXPECT_EQ(param({{"questions", Json::array({kPredicate})}}), "input");
  EXPECT_EQ(param({{"input", "x"}, {"questions", Json::array()}}), "questions");
  EXPECT_EQ(param(asked({{"type", "essay"}})), "questions[0].type");
  EXPECT_EQ(param(asked({{"type", "predicate"}})), "questions[0].instructions");
  EXPECT_EQ(
      param(asked({{"type", "choice"}, {"instructions", "x"}, {"choices", {{{"value", "a"}}}}})),
      "questions[0].choices");
  EXPECT_EQ(param(asked({{"type", "choice"},
                         {"instructions", "x"},
                         {"choices", {{{"value", "a"}}, {{"value", "a"}}}}})),
            "questions[0].choices[1].value");
  std::string longer;
  for (int i = 0; i < 2000; ++i) longer += "7 ";
  EXPECT_EQ(param({{"input", longer}, {"questions", Json::array({kPredicate})}}), "input");
  const auto named = [&](const Json& question) {
    const Got got =
        server.post("/v1/systemone", {{"state", "x"}, {"questions", {{"q", question}}}});
    EXPECT_EQ(got.status, 400) << question << got.body;
    return got.json()["error"].value("param", "");
  };
  EXPECT_EQ(server.post("/v1/systemone", {{"questions", kNamed}}).json()["error"]["param"],
            "state");
  EXPECT_EQ(named(5), "questions.q");
  EXPECT_EQ(named({{"type", "boolean"}, {"instructions", "x"}}), "questions.q.type");
  EXPECT_EQ(named({{"type", "noul"}}), "questions.q.instructions");
  EXPECT_EQ(named({{"type", "choice"}, {"instructions", "x"}, {"criteria", {{"a", nullptr}}}}),
            "questions.q.criteria");
  EXPECT_EQ(named({{"type", "score"}, {"instructions", "x"}, {"criteria", {"low"}}}),
            "questions.q.criteria");
  EXPECT_EQ(param({{"input", {{{"role", "king"}, {"content", "x"}}}},
                   {"questions", Json::array({kPredicate})}}),
            "input[0].role");
}

}  // namespace
}  // namespace dendrite::server
