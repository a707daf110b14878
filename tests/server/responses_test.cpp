// OpenAI's Responses API: what a request comes to, and the events of a reply.
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "fault_support.h"
#include "server/responses_items.h"
#include "server/responses_request.h"
#include "server/responses_script.h"

namespace dendrite::server {
namespace {

ResponsesRequest read(const std::string& text) {
  const Json json = Json::parse(text);
  Fields body(json, "");
  ResponsesRequest request = read_responses(body);
  body.rest(request.ignored);
  return request;
}

std::string refused(const std::string& text) {
  return param_of([&] { read(text); });
}

struct Read {
  Json messages = Json::array();
  Ignored ignored;
};

Read messages_of(const std::string& input) {
  Read read;
  add_items(items_of_input(Json::parse(input), "input", [](auto&) { return Json(); }), "input",
            read.messages, read.ignored);
  return read;
}

TEST(ResponsesItems, ATextIsAUsersMessage) {
  EXPECT_EQ(messages_of(R"("hi")").messages.dump(), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages_of(R"("")").messages.dump(), "[]");
  EXPECT_EQ(messages_of("null").messages.dump(), "[]");
}

TEST(ResponsesItems, PartsAreLinesAndDevelopersAreTheSystem) {
  EXPECT_EQ(messages_of(R"([{"type":"message","id":"msg_1","role":"developer","content":[
              {"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
              {"role":"user","content":"c"}])")
                .messages.dump(),
            R"([{"role":"system","content":"a\nb"},{"role":"user","content":"c"}])");
}

TEST(ResponsesItems, WhatAModelWroteIsOneMessage) {
  const Read read = messages_of(R"([{"role":"user","content":"q"},
    {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I ","annotations":[]},
                                                    {"type":"output_text","text":"look"}]},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"},
    {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
    {"type":"function_call_output","call_id":"c1","output":"rain"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"x"},
                                                            {"type":"input_text","text":"y"}]},
    {"type":"message","role":"assistant","content":"It rains."},
    {"type":"message","role":"assistant","content":"Really."}])");
  EXPECT_EQ(read.messages.dump(), Json::parse(R"([{"role":"user","content":"q"},
    {"role":"assistant","content":"I look","reasoning_content":"hm","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
      {"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"rain"},
    {"role":"tool","tool_call_id":"c2","content":"x\ny"},
    {"role":"assistant","content":"It rains."},
    {"role":"assistant","content":"Really."}])")
                                      .dump());
  EXPECT_TRUE(read.ignored.empty());
}

TEST(ResponsesItems, ItemsThatAreNothingForAModelAreNamed) {
  const Read read = messages_of(R"([{"type":"web_search_call","id":"ws_1","status":"completed"},
    {"type":"custom_tool_call","call_id":"c","name":"apply_patch","input":"*** x"}])");
  EXPECT_EQ(read.ignored.header(), "input[0](web_search_call)");
  EXPECT_EQ(read.messages[0]["tool_calls"][0]["function"]["arguments"], R"({"input":"*** x"})");
}

TEST(ResponsesItems, RefusalsNameTheField) {
  const auto refused_input = [](const std::string& input) {
    return param_of([&] { messages_of(input); });
  };
  EXPECT_EQ(refused_input("5"), "input");
  EXPECT_EQ(refused_input("[5]"), "input[0]");
  EXPECT_EQ(refused_input(R"([{"role":"user","content":[{"type":"input_image"}]}])"),
            "input[0].content[0]");
  EXPECT_EQ(refused_input(R"([{"role":"robot","content":""}])"), "input[0].role");
  EXPECT_EQ(refused_input(R"([{"type":"function_call","name":"f","call_id":"c"}])"),
            "input[0].arguments");
  EXPECT_EQ(refused_input(R"([{"type":"item_reference","id":"msg_1"}])"), "input[0].id");
}

TEST(ResponsesItems, PackedReasoningComesBack) {
  for (const std::string text : {"", "a", "ab", "abc", "thöughts \n\xF0\x9F\x8C\xB3"}) {
    EXPECT_EQ(unpack_reasoning(pack_reasoning(text)), text);
  }
  EXPECT_EQ(unpack_reasoning("gAAAA"), "");
  const std::string packed = pack_reasoning("hm");
  EXPECT_EQ(
      messages_of(R"([{"type":"reasoning","summary":[],"encrypted_content":")" + packed + R"("}])")
          .messages[0]["reasoning_content"],
      "hm");
}

TEST(ResponsesRequest, ToolsOfOtherKindsAreDroppedAndNamed) {
  const ResponsesRequest request = read(R"({"input":"a","tools":[
    {"type":"function","name":"f","description":"d","strict":true,"parameters":{"type":"object"}},
    {"type":"custom","name":"apply_patch"},{"type":"web_search"},
    {"type":"namespace","name":"team","tools":[{"type":"function","name":"g","parameters":{}},
                                               {"type":"function","name":"f","parameters":{}}]}]})");
  EXPECT_EQ(request.tools.dump(),
            R"([{"type":"function","function":{"name":"f","description":"d",)"
            R"("parameters":{"type":"object"}}},)"
            R"({"type":"function","function":{"name":"g","parameters":{}}}])");
  EXPECT_EQ(request.namespaces.at("g"), "team");
  EXPECT_EQ(request.ignored.header(),
            "tools[1](apply_patch), tools[2](web_search), tools[3].tools[1](f)");
}

TEST(ResponsesRequest, ChoicesOfTools) {
  const std::string tools = R"({"tools":[{"type":"function","name":"f"},
    {"type":"function","name":"g"},{"type":"web_search"}],"tool_choice":)";
  EXPECT_EQ(read(tools + R"("required"})").tool_choice, "required");
  EXPECT_EQ(read(tools + R"({"type":"function","name":"g"}})").tool_choice, "g");
  const ResponsesRequest allowed = read(
      tools +
      R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}})");
  EXPECT_EQ(allowed.tool_choice, "required");
  EXPECT_EQ(allowed.tools.size(), 1U);
  EXPECT_EQ(refused(tools + R"({"type":"web_search"}})"), "tool_choice");
  EXPECT_EQ(refused(tools + R"({"type":"function","name":"h"}})"), "tool_choice");
  EXPECT_EQ(refused(R"({"tool_choice":"required"})"), "tool_choice");
}

TEST(ResponsesRequest, FormatsReasoningAndIncludes) {
  const ResponsesRequest request = read(R"({"text":{"format":{"type":"json_schema","name":"n",
    "schema":{"type":"object"}},"verbosity":"low"},"reasoning":{"effort":"low","summary":"auto"},
    "include":["reasoning.encrypted_content","message.output_text.logprobs","other"],
    "top_logprobs":3})");
  EXPECT_EQ(request.schema->dump(), R"({"type":"object"})");
  EXPECT_EQ(request.variables.dump(), R"({"reasoning_effort":"low","enable_thinking":true})");
  EXPECT_TRUE(request.packed_reasoning);
  EXPECT_TRUE(request.logprobs);
  EXPECT_EQ(request.top_logprobs, 3);
  EXPECT_EQ(request.ignored.header(), "include[2]");
  EXPECT_FALSE(read("{}").logprobs);
}

TEST(ResponsesRequest, RefusalsNameTheField) {
  EXPECT_EQ(refused(R"({"conversation":"c"})"), "conversation");
  EXPECT_EQ(refused(R"({"prompt":{"id":"p"}})"), "prompt");
  EXPECT_EQ(refused(R"({"context_management":[{}]})"), "context_management");
  EXPECT_EQ(refused(R"({"truncation":"auto"})"), "truncation");
  EXPECT_EQ(refused(R"({"background":true,"store":false})"), "background");
  EXPECT_EQ(refused(R"({"max_output_tokens":0})"), "max_output_tokens");
  EXPECT_EQ(refused(R"({"text":{"format":{"type":"json_schema"}}})"), "text.format.schema");
  EXPECT_EQ(refused(R"({"text":{"format":{"type":"xml"}}})"), "text.format.type");
  EXPECT_EQ(refused(R"({"tools":[{"type":"function"}]})"), "tools[0].name");
  EXPECT_EQ(read(R"({"conversation":null,"truncation":"disabled","nonsense":1})").ignored.header(),
            "nonsense");
}

/// What a client makes of a stream, by the rules of the API; they are checked on the way.
class Client {
 public:
  void read(const ResponseWriter::Events& events) {
    for (const std::string& each : events) {
      std::istringstream lines(each);
      std::string name, line;
      std::getline(lines, name);
      std::getline(lines, line);
      const Json event = Json::parse(line.substr(6));
      ASSERT_EQ(name, "event: " + event["type"].get<std::string>());
      ASSERT_EQ(event["sequence_number"], count_++);
      take(event);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  Json response;  // of the last event
  bool ended = false;

 private:
  void take(const Json& event) {
    const std::string type = event["type"];
    ASSERT_FALSE(ended);
    if (event.contains("response")) {
      const Json& is = event["response"];
      ASSERT_EQ(type, count_ == 1   ? "response.created"
                      : count_ == 2 ? "response.in_progress"
                                    : "response." + is["status"].get<std::string>());
      if (count_ > 1) {
        ASSERT_EQ(is["id"], response["id"]);
      }
      response = is;
      ended = count_ > 2;
      if (type == "response.completed") {
        ASSERT_EQ(is["output"].dump(), output_.dump());
      }
      return;
    }
    if (type == "response.output_item.added") {
      ASSERT_TRUE(item_.is_null());
      ASSERT_EQ(event["output_index"], output_.size());
      item_ = event["item"];
      ASSERT_EQ(item_["status"], "in_progress");
      return;
    }
    ASSERT_FALSE(item_.is_null());
    ASSERT_EQ(event["output_index"], output_.size());
    if (type == "response.output_item.done") {
      Json done = event["item"];
      if (done["type"] != "function_call") {
        ASSERT_TRUE(closed_);
      }
      for (const char* name : {"status", "encrypted_content"}) {
        if (done.contains(name)) item_[name] = done[name];
      }
      ASSERT_EQ(done.dump(), item_.dump());
      output_.push_back(std::move(item_));
      item_ = nullptr;
      return;
    }
    ASSERT_EQ(event["item_id"], item_["id"]);
    if (type == "response.content_part.added") {
      item_["content"].push_back(event["part"]);
      closed_ = false;
    } else if (type == "response.content_part.done") {
      ASSERT_EQ(event["part"].dump(), item_["content"][0].dump());
      closed_ = true;
    } else if (type == "response.function_call_arguments.delta") {
      item_["arguments"].get_ref<std::string&>() += event["delta"];
    } else if (type == "response.function_call_arguments.done") {
      ASSERT_EQ(event["arguments"], item_["arguments"]);
    } else if (type.ends_with("text.delta")) {
      item_["content"][0]["text"].get_ref<std::string&>() += event["delta"];
      for (const Json& each : event.value("logprobs", Json::array())) {
        item_["content"][0]["logprobs"].push_back(each);
      }
    } else {
      ASSERT_TRUE(type.ends_with("text.done")) << type;
      ASSERT_EQ(event["text"], item_["content"][0]["text"]);
    }
  }
  int count_ = 0;
  bool closed_ = false;
  Json item_;
  Json output_ = Json::array();
};

using Kind = ReplyEvent::Kind;

ResponseHead head() {
  ResponseHead head;
  head.id = "resp_0123456789abcdef0123456789abcdef";
  head.model = "m";
  head.created = 5;
  head.echo = {{"previous_response_id", nullptr}};
  head.namespaces = {{"f", "team"}};
  head.logprob = [](const ChosenToken& token) { return Json{{"token", std::to_string(token.id)}}; };
  return head;
}

const std::vector<TurnPiece> kCalling = {
    {{{.kind = Kind::kReasoning, .text = "h"}}, {}, {{1, -1.0F, {}}}},
    {{{.kind = Kind::kReasoning, .text = "m"}, {.kind = Kind::kContent, .text = " I"}}, {}, {}},
    {{}, {}, {{2, -0.5F, {{2, -0.5F}, {3, -2.25F}}}}},
    {{{.kind = Kind::kContent, .text = " look"}}, {}, {{4, -0.1F, {}}}},
    {{{.kind = Kind::kCallBegin, .call = 0, .id = "call_1", .name = "f"},
      {.kind = Kind::kCallArguments, .text = R"({"a":)", .call = 0}},
     {},
     {}},
    {{{.kind = Kind::kCallArguments, .text = "1}", .call = 0},
      {.kind = Kind::kCallEnd, .call = 0, .complete = true}},
     {},
     {}}};
const TurnUsage kUsage{.prompt = 10, .cached = 4, .computed = 6, .output = 5, .reasoning = 2};

ResponseWriter::Events told(ResponseWriter& writer, const std::vector<TurnPiece>& pieces,
                            const TurnEnd& end) {
  Script script;
  for (const TurnPiece& each : pieces) script.add(each);
  return events_of(writer, script, ScriptEnd{end, kUsage, 9, {}});
}

TEST(ResponsesReply, StreamedIsWhole) {
  ResponseWriter writer(head());
  Client client;
  client.read(told(writer, kCalling, {.finish = Finish::kEos, .has_calls = true}));
  EXPECT_TRUE(client.ended);
  EXPECT_EQ(client.response.dump(), writer.response().dump());
  const Json& response = writer.response();
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["completed_at"], 9);
  const Json& output = response["output"];
  ASSERT_EQ(output.size(), 3U);
  EXPECT_EQ(output[0]["content"][0]["text"], "hm");
  EXPECT_EQ(output[1]["content"][0]["text"], " I look");
  EXPECT_EQ(output[1]["content"][0]["logprobs"].dump(), R"([{"token":"2"},{"token":"4"}])");
  EXPECT_EQ(output[2]["arguments"], R"({"a":1})");
  EXPECT_EQ(output[2]["call_id"], "call_1");
  EXPECT_EQ(output[2]["namespace"], "team");
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(response["usage"]["total_tokens"], 15);
  EXPECT_EQ(response_of_item(output[2]["id"]), head().id);
  EXPECT_EQ(response_of_item("msg_abc"), "");
}

TEST(ResponsesReply, AScriptThatIsReadAgainSaysTheSame) {
  Script script;
  ResponseWriter writer(head());
  ResponseWriter::Events events = writer.begin();
  const auto add = [&](ResponseWriter::Events more) {
    events.insert(events.end(), more.begin(), more.end());
  };
  for (const TurnPiece& each : kCalling) {
    script.add(each);
    add(writer.piece(each));
  }
  const ScriptEnd end{{.finish = Finish::kEos, .has_calls = true}, kUsage, 9, {}};
  add(writer.end(end.end));
  add(writer.done(end.usage, end.time));

  ResponseHead again = head_of(Json::parse(json_of(head()).dump()));
  again.logprob = head().logprob;
  ResponseWriter second(again);
  EXPECT_EQ(events_of(second, Script(script.text()), end_of(Json::parse(json_of(end).dump()))),
            events);
}

TEST(ResponsesReply, WhatIsCutIsIncomplete) {
  ResponseWriter writer(head());
  Client client;
  client.read(told(writer,
                   {{{{.kind = Kind::kCallBegin, .id = "call_1", .name = "g"},
                      {.kind = Kind::kCallArguments, .text = R"({"a)"}},
                     {},
                     {}}},
                   {.finish = Finish::kLength}));
  EXPECT_TRUE(client.ended);
  const Json& response = writer.response();
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"].dump(), R"({"reason":"max_output_tokens"})");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["arguments"], R"({"a)");
}

TEST(ResponsesReply, AFaultIsTheLastEvent) {
  ResponseWriter writer(head());
  Script script;
  script.add({{{.kind = Kind::kContent, .text = "a"}}, {}, {}});
  ScriptEnd end;
  end.fault.emplace(unavailable("server_overloaded", "no memory"));
  Client client;
  client.read(events_of(writer, script, end_of(json_of(end))));
  EXPECT_TRUE(client.ended);
  EXPECT_EQ(client.response["status"], "failed");
  EXPECT_EQ(client.response["error"].dump(),
            R"({"code":"server_overloaded","message":"no memory"})");
}

TEST(ResponsesReply, TokensThatWereKnownAndMadeAgainAreCounted) {
  ResponseHead known = head();
  known.known = 9;
  ResponseWriter writer(known);
  told(writer, {}, {.finish = Finish::kEos});
  EXPECT_EQ(writer.response()["usage"]["dendrite"].dump(),
            R"({"shared":4,"computed":6,"recomputed":4,"forked_from":null})");
}

}  // namespace
}  // namespace dendrite::server
