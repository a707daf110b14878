// Responses that go on as they were generated, and whose pages are held.
#include "server/server_support.h"
#include "support/temporary_folder.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped("dendrite-tools");
  return kEngine;
}

const Json kAsk = {{"input", "What time is it in Lima?"}, {"max_output_tokens", 30}, {"seed", 3}};
const Json kAsGenerated = {{"history", "as_generated"}};

Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

/// A reply of 30 spaces, which the template trims where it writes it again.
Json spaces() {
  const std::string space = std::to_string(engine().encode(" ", false).front());
  return with(kAsk, {{"ignore_eos", true}, {"logit_bias", {{space, 100}}}});
}

class ResponsesHistory : public testing::Test {
 protected:
  Json ok(const Json& body) {
    const Got got = server_.post("/v1/responses", body);
    EXPECT_EQ(got.status, 200) << got.body;
    return got.json();
  }
  Json next(const Json& previous, const Json& extension = Json::object(),
            const Json& more = Json::object()) {
    return ok(with(with(kAsk, {{"input", "And in Oslo?"},
                               {"previous_response_id", previous["id"]},
                               {"dendrite", extension}}),
                   more));
  }
  TestServer server_{engine()};
};

int input_tokens(const Json& response) {
  return response["usage"]["input_tokens"];
}

TEST_F(ResponsesHistory, WhatIsWrittenAsItWasGeneratedIsTheSameEitherWay) {
  const Json first = ok(kAsk);
  const Json rendered = next(first);
  const Json generated = next(first, kAsGenerated);
  EXPECT_EQ(generated["output"][0]["content"].dump(), rendered["output"][0]["content"].dump());
  EXPECT_EQ(input_tokens(generated), input_tokens(rendered));
  EXPECT_EQ(generated["previous_response_id"], first["id"]);
}

TEST_F(ResponsesHistory, TokensStayThatTheTemplateWouldWriteOtherwise) {
  const Json first = ok(spaces());
  ASSERT_EQ(first["output"][0]["content"][0]["text"], std::string(30, ' '));
  const Json rendered = next(first);
  const Json generated = next(first, kAsGenerated);
  EXPECT_EQ(input_tokens(generated), input_tokens(rendered) + 30);
  // Only what is new is computed: the reply's last token, and what stands behind it.
  const Json usage = generated["usage"]["dendrite"];
  EXPECT_EQ(usage["shared"], input_tokens(first) + 29);
  EXPECT_EQ(usage["computed"], input_tokens(generated) - input_tokens(first) - 29);
  EXPECT_EQ(usage["recomputed"], 0);
  // So it does a turn later, and for a stream.
  const Json third = next(generated, kAsGenerated);
  EXPECT_GT(third["usage"]["dendrite"]["shared"].get<int>(), input_tokens(generated));
  const Got streamed =
      server_.post("/v1/responses", with(kAsk, {{"input", "And in Oslo?"},
                                                {"previous_response_id", first["id"]},
                                                {"dendrite", kAsGenerated},
                                                {"stream", true}}));
  const Json last = events_of(streamed.body).back();
  EXPECT_EQ(last["response"]["output"][0]["content"].dump(),
            generated["output"][0]["content"].dump());
}

TEST_F(ResponsesHistory, ResultsOfCallsGoOnToo) {
  const Json tools = Json::array(
      {{{"type", "function"},
        {"name", "get_time"},
        {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}});
  const Json tool = {{"tools", tools}, {"tool_choice", "required"}, {"max_output_tokens", 100}};
  const Json first = ok(with(kAsk, tool));
  ASSERT_EQ(first["output"][0]["type"], "function_call");
  const Json answer = {{"tools", tools},
                       {"input",
                        {{{"type", "function_call_output"},
                          {"call_id", first["output"][0]["call_id"]},
                          {"output", "07:30"}}}}};
  const Json rendered = next(first, Json::object(), answer);
  const Json generated = next(first, kAsGenerated, answer);
  EXPECT_EQ(input_tokens(generated), input_tokens(rendered));
  EXPECT_EQ(generated["output"][0]["content"].dump(), rendered["output"][0]["content"].dump());
}

TEST_F(ResponsesHistory, WhatCannotBeIsRefusedByName) {
  const Json first = ok(kAsk);
  const auto param = [&](const Json& body) {
    const Got got = server_.post("/v1/responses", with(kAsk, body));
    EXPECT_EQ(got.status, 400) << body << got.body;
    return got.json()["error"].value("param", "");
  };
  EXPECT_EQ(param({{"dendrite", kAsGenerated}}), "dendrite.history");
  EXPECT_EQ(param({{"dendrite", {{"history", "x"}}}}), "dendrite.history");
  EXPECT_EQ(param({{"dendrite", {{"hold_ms", 0}}}}), "dendrite.hold_ms");
  EXPECT_EQ(param({{"dendrite", kAsGenerated},
                   {"previous_response_id", first["id"]},
                   {"instructions", "Be brief"}}),
            "instructions");
  // Where there is no response before, nothing is said of it.
  const Json message =
      server_
          .post("/v1/messages", {{"max_tokens", 5},
                                 {"messages", {{{"role", "user"}, {"content", "x"}}}},
                                 {"dendrite", kAsGenerated}})
          .json();
  EXPECT_EQ(message["dendrite"]["ignored"][0], "dendrite.history");
}

TEST(ResponsesAfterARestart, TokensAreNotThereAsTheyWereGenerated) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  ServerOptions options;
  options.response_store = folder.path().string();
  Json first;
  {
    const TestServer server(engine(), options);
    first = server.post("/v1/responses", kAsk).json();
  }
  const TestServer server(engine(), options);
  const Json body = with(kAsk, {{"previous_response_id", first["id"]}, {"dendrite", kAsGenerated}});
  EXPECT_EQ(server.post("/v1/responses", body).json()["error"]["param"], "dendrite.history");
}

TEST(ResponsesHeld, PagesStayWhileOthersTakeTheRest) {
  const auto recomputed = [](const Json& extension) {
    const Engine small = shipped("dendrite-tools", 1024);
    const TestServer server(small);
    const auto ask = [&](const std::string& text, const Json& more) {
      const Got got = server.post(
          "/v1/responses", with({{"input", text}, {"max_output_tokens", 1}, {"seed", 1}}, more));
      EXPECT_EQ(got.status, 200) << got.body;
      return got.json();
    };
    const Json first = ask(std::string(300, 'a'), {{"dendrite", extension}});
    for (const char letter : {'b', 'c', 'd'}) ask(std::string(600, letter), Json::object());
    return ask("more", {{"previous_response_id", first["id"]}})["usage"]["dendrite"]["recomputed"]
        .get<int>();
  };
  EXPECT_GT(recomputed(Json::object()), 200);
  EXPECT_EQ(recomputed({{"hold_ms", 600'000}}), 0);
}

}  // namespace
}  // namespace dendrite::server
