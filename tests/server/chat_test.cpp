// /v1/chat/completions on shipped models.
#include <atomic>
#include <fstream>

#include "server_support.h"

namespace dendrite::server {
namespace {

const Engine& engine() {
  static const Engine kEngine = shipped();
  return kEngine;
}

const Engine& tools_engine() {
  static const Engine kEngine = shipped("dendrite-tools");
  return kEngine;
}

Json user(const std::string& text) {
  return {{{"role", "user"}, {"content", text}}};
}

Json ask(const std::string& text, const Json& more = Json::object()) {
  Json body = {{"messages", user(text)}, {"max_tokens", 60}};
  body.update(more);
  return body;
}

Json tools() {
  std::ifstream file(std::string(DENDRITE_MODELS_DIR) + "/dendrite-tools/tools.json");
  const Json all = Json::parse(file);
  Json out = Json::array();
  for (const Json& tool : all) {
    out.push_back(tool.contains("function") ? tool
                                            : Json{{"type", "function"}, {"function", tool}});
  }
  return out;
}

/// What a stream's chunks come to, as OpenAI's client puts them together: the whole answer's
/// choices.
Json accumulated(const std::vector<Json>& chunks) {
  Json choices = Json::array();
  for (const Json& chunk : chunks) {
    for (const Json& one : chunk["choices"]) {
      const std::size_t index = one["index"];
      EXPECT_LE(index, choices.size());
      if (index == choices.size()) {
        choices.push_back({{"index", index}, {"message", {{"role", ""}, {"content", ""}}}});
      }
      Json& message = choices[index]["message"];
      for (const auto& [name, value] : one["delta"].items()) {
        if (name == "tool_calls") {
          for (const Json& call : value) {
            const std::size_t at = call["index"];
            if (at == message["tool_calls"].size()) message["tool_calls"].push_back(Json::object());
            Json& made = message["tool_calls"][at];
            if (call.contains("id")) made["id"] = call["id"];
            if (call.contains("type")) made["type"] = call["type"];
            for (const auto& [key, text] : call["function"].items()) {
              Json& function = made["function"];
              const std::string before = function.contains(key) ? function[key] : Json("");
              function[key] = before + text.get<std::string>();
            }
          }
        } else {
          message[name] = message.value(name, "") + value.get<std::string>();
        }
      }
      if (one["logprobs"].is_object()) {
        for (const Json& token : one["logprobs"]["content"]) {
          choices[index]["logprobs"]["content"].push_back(token);
        }
      }
      if (!one["finish_reason"].is_null()) choices[index]["finish_reason"] = one["finish_reason"];
      if (one.contains("stop_reason")) choices[index]["stop_reason"] = one["stop_reason"];
    }
  }
  return choices;
}

/// Ids of calls are drawn anew for each answer, and empty fields may be left out.
Json comparable(Json choices) {
  for (Json& choice : choices) {
    Json& message = choice["message"];
    if (message.contains("tool_calls")) {
      for (Json& call : message["tool_calls"]) call.erase("id");
    }
    if (message["content"].is_null()) message["content"] = "";
    message.erase("refusal");
    if (choice.contains("logprobs") && choice["logprobs"].is_null()) choice.erase("logprobs");
    if (choice.contains("logprobs")) choice["logprobs"].erase("refusal");
  }
  // (Members in one order.)
  return nlohmann::json::parse(choices.dump());
}

void expect_streamed_like_whole(const TestServer& server, Json body) {
  const Got whole = server.post("/v1/chat/completions", body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const Got streamed = server.post("/v1/chat/completions", body);
  ASSERT_EQ(streamed.status, 200) << streamed.body;
  const std::vector<Json> chunks = events_of(streamed.body);
  EXPECT_EQ(comparable(accumulated(chunks)), comparable(whole.json()["choices"])) << body;
  const Json usage = chunks.back()["usage"];
  EXPECT_EQ(chunks.back()["choices"].size(), 0U);
  EXPECT_EQ(usage["completion_tokens"], whole.json()["usage"]["completion_tokens"]);
  EXPECT_EQ(usage["prompt_tokens"], whole.json()["usage"]["prompt_tokens"]);
  EXPECT_TRUE(streamed.body.ends_with("data: [DONE]\n\n"));
}

TEST(Chat, StreamsComeToTheWholeAnswer) {
  const TestServer server(engine());
  expect_streamed_like_whole(server, ask("4 5 6 10"));
  expect_streamed_like_whole(server, ask("4 5 6 10", {{"n", 3}, {"temperature", 1}, {"seed", 7}}));
  expect_streamed_like_whole(
      server, ask("3 5 9 13", {{"logprobs", true}, {"top_logprobs", 3}, {"stop", "24"}}));
  expect_streamed_like_whole(
      server, ask("3 5 9 13", {{"response_format", {{"type", "json_object"}}}, {"seed", 1}}));
}

TEST(Chat, CallsStreamLikeTheWholeAnswer) {
  const TestServer server(tools_engine());
  const Json with_tools = {{"tools", tools()}, {"max_tokens", 200}};
  expect_streamed_like_whole(server, ask("What time is it in Lima?", with_tools));
  Json required = with_tools;
  required["tool_choice"] = "required";
  expect_streamed_like_whole(server, ask("What time is it in Lima?", required));
}

TEST(Chat, AToolIsCalledAndItsResultSaid) {
  const TestServer server(tools_engine());
  Json body = ask("What time is it in Lima?", {{"tools", tools()}, {"max_tokens", 200}});
  const Json first = server.post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(first["finish_reason"], "tool_calls");
  ASSERT_EQ(first["message"]["tool_calls"].size(), 1U);
  const Json call = first["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "get_time");
  EXPECT_TRUE(Json::parse(call["function"]["arguments"].get<std::string>()).is_object());
  body["messages"].push_back(first["message"]);
  body["messages"].push_back(
      {{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "12:30"}});
  const Json second = server.post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(second["finish_reason"], "stop");
  EXPECT_EQ(second["message"]["content"], "The result: 12:30");
}

TEST(Chat, ANextTurnIsReadFromWhereTheReplyWasComputed) {
  const TestServer server(tools_engine());
  Json body = ask("What time is it in Rome?", {{"max_tokens", 200}});
  const Json first = server.post("/v1/chat/completions", body).json();
  body["messages"].push_back(first["choices"][0]["message"]);
  body["messages"].push_back({{"role", "user"}, {"content", "And in Lima?"}});
  const Json usage = server.post("/v1/chat/completions", body).json()["usage"];
  EXPECT_GE(usage["prompt_tokens_details"]["cached_tokens"].get<int>() + 1,
            first["usage"]["total_tokens"].get<int>());
}

TEST(Chat, ANamedToolIsCalledAndEndsWithStop) {
  const TestServer server(tools_engine());
  const Json body =
      ask("What time is it in Lima?",
          {{"tools", tools()},
           {"max_tokens", 300},
           {"tool_choice", {{"type", "function"}, {"function", {{"name", "get_weather"}}}}}});
  const Json choice = server.post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "get_weather");
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST(Chat, ACallThatIsCutIsLengthWithItsArgumentsAsTheyAre) {
  const TestServer server(tools_engine());
  const Json body =
      ask("What will the weather be in Oslo tomorrow?", {{"tools", tools()}, {"max_tokens", 45}});
  const Json choice = server.post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  const std::string arguments = choice["message"]["tool_calls"][0]["function"]["arguments"];
  EXPECT_TRUE(arguments.starts_with("{"));
  EXPECT_TRUE(Json::parse(arguments, nullptr, false).is_discarded());
}

TEST(Chat, SchemasHold) {
  const TestServer server(engine());
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"n", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}},
                         {"b", {{"type", "boolean"}}}}},
                       {"required", {"n", "b"}},
                       {"additionalProperties", false}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "x"}, {"schema", schema}, {"strict", true}}}};
  for (int seed = 0; seed < 5; ++seed) {
    const Json body =
        ask("4 5 6 10",
            {{"response_format", format}, {"temperature", 2}, {"seed", seed}, {"max_tokens", 200}});
    const Json choice = server.post("/v1/chat/completions", body).json()["choices"][0];
    ASSERT_EQ(choice["finish_reason"], "stop");
    const Json made = Json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_EQ(made.size(), 2U);
    EXPECT_TRUE(made["n"].is_number_integer() && made["b"].is_boolean());
  }
  const Json choices = {{"structured_outputs", {{"choice", {"left", "right"}}}},
                        {"temperature", 2}};
  const std::string text = server.post("/v1/chat/completions", ask("4 5 6 10", choices))
                               .json()["choices"][0]["message"]["content"];
  EXPECT_TRUE(text == "left" || text == "right") << text;
}

TEST(Chat, ASeedGivesTheSameBytesUnderAnyLoad) {
  const TestServer server(engine());
  const Json body =
      ask("4 5 6 10", {{"temperature", 1.5}, {"seed", 42}, {"n", 2}, {"logprobs", true}});
  const Json alone = server.post("/v1/chat/completions", body).json()["choices"];
  std::atomic<bool> ends = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&, i] {
      for (int k = 0; !ends; ++k) {
        server.post("/v1/chat/completions",
                    ask(std::to_string(i + k % 7) + " 5 6 10", {{"temperature", 1}}));
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(server.post("/v1/chat/completions", body).json()["choices"], alone);
  }
  ends = true;
  for (std::thread& each : others) each.join();
}

TEST(Chat, WithoutASeedOneIsDrawnAndTold) {
  const TestServer server(engine());
  Json body = ask("4 5 6 10", {{"temperature", 2}});
  const Json first = server.post("/v1/chat/completions", body).json();
  body["seed"] = first["dendrite"]["seed"];
  const Json second = server.post("/v1/chat/completions", body).json();
  EXPECT_EQ(first["choices"], second["choices"]);
  EXPECT_EQ(first["system_fingerprint"], second["system_fingerprint"]);
}

TEST(Chat, AClientThatGoesGivesItsPagesBack) {
  const TestServer server(engine());
  server.post("/v1/chat/completions", ask("4 5 6 10"));
  const auto branches = [&] { return engine().stats().branches_live; };
  ASSERT_TRUE(soon([&] { return branches() == 1; }));  // kept for the next turn
  const std::int64_t pages = engine().stats().pages_used;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 30; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    Json body = ask("4 5 6 10", {{"stream", i % 2 == 0}, {"ignore_eos", true}, {"n", 2}});
    body["max_tokens"] = 900;
    clients.back()->send(request_text("POST", "/v1/chat/completions", dump(body)));
  }
  ASSERT_TRUE(soon([&] { return branches() > 1; }));
  clients.clear();
  EXPECT_TRUE(soon([&] { return branches() == 1; }));
  // (Prompts are remembered: there is one.)
  EXPECT_TRUE(soon([&] { return engine().stats().pages_used <= pages + 1; }));
  EXPECT_EQ(server.post("/v1/chat/completions", ask("4 5 6 10")).status, 200);
}

TEST(Chat, AServerMayGoWhileItsTurnsAreBeingCancelled) {
  for (int i = 0; i < 10; ++i) {
    const TestServer server(engine());
    Client client(server.port());
    Json body = ask("4 5 6 10", {{"stream", true}, {"ignore_eos", true}, {"n", 3}});
    body["max_tokens"] = 900;
    client.send(request_text("POST", "/v1/chat/completions", dump(body)));
    std::string seen;
    if (i % 2 == 0) {
      ASSERT_TRUE(client.until("assistant", seen));
    }
    client.close();
  }
  const TestServer server(engine());
  EXPECT_EQ(server.post("/v1/chat/completions", ask("4 5 6 10")).status, 200);
}

TEST(Chat, WhatDoesNotFitIsCutOrRefused) {
  const TestServer server(engine());
  Json body = ask("4 5 6 10", {{"ignore_eos", true}});
  body["max_tokens"] = 32000;
  const Json cut = server.post("/v1/chat/completions", body).json();
  EXPECT_EQ(cut["usage"]["total_tokens"], 1024);
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "7 ";
  const Got refused = server.post("/v1/chat/completions", ask(text, {{"stream", true}}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["code"], "context_length_exceeded");
}

TEST(Chat, AMessageCanGoOn) {
  const TestServer server(engine());
  Json body = ask("4 5 6 10", {{"temperature", 0}});
  const Json whole = server.post("/v1/chat/completions", body).json();
  const std::string text = whole["choices"][0]["message"]["content"];
  body["messages"].push_back({{"role", "assistant"}, {"content", text.substr(0, 9)}});
  body["continue_final_message"] = true;
  body["add_generation_prompt"] = false;
  const Json rest = server.post("/v1/chat/completions", body).json();
  const std::string more = rest["choices"][0]["message"]["content"];
  EXPECT_EQ((text.substr(0, 9) + more).substr(0, text.size()), text);
}

std::int64_t cached(const Json& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}

TEST(Chat, ACacheSaltKeepsPrefixesApart) {
  const Engine fresh = shipped();
  const TestServer server(fresh);
  Json body = {{"messages", {{{"role", "user"}, {"content", "4 5 6 10"}}}},
               {"max_tokens", 8},
               {"seed", 3},
               {"n", 2}};
  Json first;
  for (const char* salt : {"", "one", "two"}) {
    if (*salt != 0) body["cache_salt"] = salt;
    const Json answer = server.post("/v1/chat/completions", body).json();
    EXPECT_EQ(cached(answer), 0) << salt;
    if (first.is_null()) first = answer["choices"];
    EXPECT_EQ(answer["choices"], first);  // no bit depends on it
    EXPECT_GT(cached(server.post("/v1/chat/completions", body).json()), 0) << salt;
  }
}

TEST(Chat, WhatIsNotSupportedIsRefusedByName) {
  const TestServer server(engine());
  const std::vector<std::pair<std::string, Json>> refused = {
      {"guided_json", {{"type", "object"}}},
      {"guided_regex", "a"},
      {"guided_choice", {"a"}},
      {"guided_grammar", "x"},
      {"grammar", "root ::= \"a\""},
      {"regex", "a"},
      {"ebnf", "x"},
      {"json_schema", {{"type", "object"}}},
      {"structural_tag", "x"},
      {"allowed_token_ids", {1}},
      {"logits_processors", {"x"}},
      {"use_beam_search", true},
      {"prompt_logprobs", 1},
      {"truncate_prompt_tokens", 5},
      {"cache_salt", ""},
      {"cache_salt", 5},
      {"lora", {{"id", 0}}},
      {"functions", {{{"name", "f"}}}},
      {"function_call", "auto"},
      {"audio", {{"voice", "x"}}},
      {"web_search_options", {{"a", 1}}},
      {"moderation", true},
      {"thinking_token_budget", 5},
      {"modalities", {"audio"}},
      {"echo", true},
      {"best_of", 2},
      {"chat_template", "x"},
      {"documents", {{{"a", 1}}}},
      {"include_stop_str_in_output", true},
      {"skip_special_tokens", false},
      {"tools", Json::array()},
      {"tool_choice", "required"},
      {"temperature", -1},
      {"temperature", "hot"},
      {"top_p", 0},
      {"top_p", 1.1},
      {"top_k", -2},
      {"min_p", 2},
      {"repetition_penalty", 0},
      {"presence_penalty", 3},
      {"frequency_penalty", -3},
      {"n", 0},
      {"n", 1000000},
      {"seed", 1.5},
      {"stop", Json::array({""})},
      {"stop_token_ids", {-1}},
      {"min_tokens", -1},
      {"logit_bias", {{"x", 1}}},
      {"top_logprobs", 2},
      {"logprobs", 5},
      {"max_tokens", 0},
      {"max_completion_tokens", -1},
      {"stream_options", {{"include_usage", true}}},
      {"stream", "yes"},
      {"parallel_tool_calls", 1},
      {"priority", 1e12},
      {"continue_final_message", true},
      {"reasoning_effort", 3},
      {"messages", Json::array()},
  };
  for (const auto& [name, value] : refused) {
    const Got got = server.post("/v1/chat/completions", ask("4 5 6 10", {{name, value}}));
    EXPECT_EQ(got.status, 400) << name << " " << value;
    const std::string param = got.json()["error"].value("param", "");
    EXPECT_TRUE(param.starts_with(name)) << name << " " << got.body;
  }
}

TEST(Chat, ConstraintsThatCannotBeAreRefused) {
  const TestServer server(engine());
  const auto refused = [&](const Json& more) {
    const Got got = server.post("/v1/chat/completions", ask("4 5 6 10", more));
    EXPECT_EQ(got.status, 400) << more << got.body;
    return got.json()["error"].value("param", "");
  };
  const auto schema = [](const Json& schema) {
    return Json{{"response_format",
                 {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}}}};
  };
  EXPECT_EQ(refused(schema({{"type", "strange"}})), "response_format.json_schema.schema");
  EXPECT_EQ(refused(schema({{"not", {{"type", "object"}}}})), "response_format.json_schema.schema");
  EXPECT_EQ(refused({{"response_format", {{"type", "xml"}}}}), "response_format.type");
  EXPECT_EQ(refused({{"response_format", {{"type", "json_schema"}}}}),
            "response_format.json_schema");
  EXPECT_EQ(refused({{"structured_outputs", {{"regex", "("}}}}), "structured_outputs");
  EXPECT_EQ(refused({{"structured_outputs", {{"regex", "a"}, {"json", {{"type", "object"}}}}}}),
            "structured_outputs");
  EXPECT_EQ(refused({{"structured_outputs", Json::object()}}), "structured_outputs");
  Json deep = {{"type", "object"}};
  for (int i = 0; i < 40; ++i) deep = {{"type", "array"}, {"items", deep}};
  EXPECT_EQ(refused(schema(deep)), "response_format.json_schema.schema");
}

TEST(Chat, MessagesAreCheckedByTheirPath) {
  const TestServer server(engine());
  const auto param = [&](const Json& messages) {
    const Got got = server.post("/v1/chat/completions", {{"messages", messages}});
    EXPECT_EQ(got.status, 400) << messages;
    return got.json()["error"].value("param", "");
  };
  EXPECT_EQ(param("hi"), "messages");
  EXPECT_EQ(param({{{"role", "king"}, {"content", "hi"}}}), "messages[0].role");
  EXPECT_EQ(param({{{"role", "user"}}}), "messages[0].content");
  EXPECT_EQ(param({{{"role", "user"},
                    {"content", {{{"type", "image_url"}, {"image_url", {{"url", "x"}}}}}}}}),
            "messages[0].content[0].type");
  EXPECT_EQ(param({{{"role", "assistant"}, {"tool_calls", {{{"id", "x"}}}}}}),
            "messages[0].tool_calls[0].function");
}

TEST(Chat, WhatIsUnknownIsIgnoredAndNamed) {
  const TestServer server(engine());
  const Got got = server.post("/v1/chat/completions",
                              ask("4 5 6 10", {{"strange", 1}, {"user", "me"}, {"store", true}}));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.header("x-dendrite-ignored"), "strange");
  EXPECT_EQ(got.json()["dendrite"]["ignored"], Json({"strange"}));
}

TEST(Chat, ToolsThatCannotBeCalledAreDroppedAndNamed) {
  const TestServer server(tools_engine());
  Json all = tools();
  all.push_back({{"type", "web_search"}});
  const Got got =
      server.post("/v1/chat/completions", ask("What time is it in Lima?", {{"tools", all}}));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.header("x-dendrite-ignored"), "tools[24]");
}

TEST(Chat, LogProbsDoNotHoldAStreamBack) {
  const TestServer server(engine());
  const auto before = engine().stats().tokens_generated;
  Client client(server.port());
  Json body = ask("4 5 6 10", {{"stream", true}, {"ignore_eos", true}, {"logprobs", true}});
  body["max_tokens"] = 900;
  client.send(request_text("POST", "/v1/chat/completions", dump(body)));
  std::string seen;
  ASSERT_TRUE(client.until("\"content\":[{", seen));  // of "logprobs"
  client.close();
  EXPECT_TRUE(soon([] { return engine().stats().branches_live == 0; }));
  EXPECT_LT(engine().stats().tokens_generated - before, 900);
}

TEST(Chat, BytesOfTokensComeToTheText) {
  const TestServer server(engine());
  const Json choice =
      server
          .post("/v1/chat/completions", ask("3 5 9 13", {{"logprobs", true}, {"top_logprobs", 2}}))
          .json()["choices"][0];
  std::string text;
  for (const Json& token : choice["logprobs"]["content"]) {
    for (const Json& byte : token["bytes"]) text += static_cast<char>(byte.get<int>());
    for (const Json& other : token["top_logprobs"]) EXPECT_TRUE(other["bytes"].is_array());
  }
  EXPECT_EQ(text, choice["message"]["content"]);
}

}  // namespace
}  // namespace dendrite::server
