// A model that writes Harmony, served: thoughts, content and calls in their places in every API.
#include "server_support.h"
#include "support/harmony_model.h"

namespace dendrite::server {
namespace {

using test::HarmonyModel;

const Engine& engine() {
  static const HarmonyModel kModel;
  static const Engine kEngine = [] {
    EngineOptions options;
    options.threads = 1;
    options.kv_tokens = 8192;
    return Engine::load(kModel.path(), options);
  }();
  return kEngine;
}

const std::string kThink = "<|channel|>analysis<|message|>Sun?<|end|><|start|>assistant";
const std::string kLook = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
const std::string kCall =
    R"(<|channel|>commentary to=functions.get_weather<|message|>{"city": "Rome"})";
const std::string kFinal = "<|channel|>final<|message|>It rains.";
const Json kWeather = {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}};
const Json kFunction = {{"name", "get_weather"}, {"parameters", kWeather}};

Json user(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", HarmonyModel::asking_for(text)}}});
}

Json chat_of(const std::string& text) {
  return {{"messages", user(text)},
          {"max_tokens", 120},
          {"tools", Json::array({{{"type", "function"}, {"function", kFunction}}})}};
}

/// What a stream's deltas come to.
Json joined(const std::vector<Json>& chunks) {
  Json out = {{"reasoning_content", ""}, {"content", ""}, {"arguments", ""}};
  for (const Json& chunk : chunks) {
    const Json& delta = chunk["choices"][0]["delta"];
    for (const char* name : {"reasoning_content", "content"}) {
      out[name] = out[name].get<std::string>() + delta.value(name, "");
    }
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      out["arguments"] =
          out["arguments"].get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
  return out;
}

TEST(Harmony, ChatCompletions) {
  const TestServer server(engine());
  const auto ask = [&](const Json& body) {
    return server.post("/v1/chat/completions", body).json()["choices"][0];
  };
  Json body = chat_of(kThink + kLook + kCall);
  const Json called = ask(body);
  EXPECT_EQ(called["message"]["reasoning_content"], "Sun?") << called;
  EXPECT_EQ(called["message"]["content"], "I look.");
  EXPECT_EQ(called["message"]["tool_calls"][0]["function"],
            (Json{{"name", "get_weather"}, {"arguments", R"({"city": "Rome"})"}}));
  EXPECT_EQ(called["finish_reason"], "tool_calls");
  body["stream"] = true;
  EXPECT_EQ(joined(events_of(server.post("/v1/chat/completions", body).body)),
            (Json{{"reasoning_content", "Sun?"},
                  {"content", "I look."},
                  {"arguments", R"({"city": "Rome"})"}}));

  const Json said = ask(chat_of(kThink + kFinal));
  EXPECT_EQ(said["message"]["reasoning_content"], "Sun?");
  EXPECT_EQ(said["message"]["content"], "It rains.");
  EXPECT_EQ(said["finish_reason"], "stop");

  Json begun = {{"messages", user(kFinal)}, {"max_tokens", 20}, {"continue_final_message", true}};
  begun["messages"].push_back({{"role", "assistant"}, {"content", "It"}});
  EXPECT_EQ(ask(begun)["message"]["content"], " rains.");
}

TEST(Harmony, Responses) {
  const TestServer server(engine());
  Json tool = kFunction;
  tool["type"] = "function";
  const Json response = server
                            .post("/v1/responses", {{"input", user(kThink + kLook + kCall)},
                                                    {"max_output_tokens", 120},
                                                    {"reasoning", {{"effort", "minimal"}}},
                                                    {"tools", Json::array({tool})}})
                            .json();
  const Json& output = response["output"];
  ASSERT_EQ(output.size(), 3U) << response;
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"], "Sun?");
  EXPECT_EQ(output[1]["content"][0]["text"], "I look.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["arguments"], R"({"city": "Rome"})");

  Json input = user(kThink + kLook + kCall);
  for (const Json& item : output) input.push_back(item);
  input.push_back({{"type", "function_call_output"},
                   {"call_id", output[2]["call_id"]},
                   {"output", HarmonyModel::asking_for(kFinal)}});
  const Got next = server.post("/v1/responses", {{"input", input}, {"max_output_tokens", 60}});
  EXPECT_EQ(next.status, 200) << next.body;
}

TEST(Harmony, Messages) {
  const TestServer server(engine());
  const Json tool = {{"name", "get_weather"}, {"input_schema", kWeather}};
  const Json message = server
                           .post("/v1/messages", {{"messages", user(kThink + kLook + kCall)},
                                                  {"max_tokens", 120},
                                                  {"tools", Json::array({tool})}})
                           .json();
  const Json& content = message["content"];
  ASSERT_EQ(content.size(), 3U) << message;
  EXPECT_EQ(content[0]["thinking"], "Sun?");
  EXPECT_EQ(content[1]["text"], "I look.");
  EXPECT_EQ(content[2]["input"], (Json{{"city", "Rome"}}));
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

}  // namespace
}  // namespace dendrite::server
