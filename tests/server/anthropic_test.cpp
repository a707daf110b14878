// Anthropic's Messages API: what a request comes to, and the events of a reply.
#include <gtest/gtest.h>

#include <sstream>

#include "fault_support.h"
#include "server/anthropic_reply.h"
#include "server/anthropic_request.h"
#include "server/conversation.h"

namespace dendrite::server {
namespace {

AnthropicRequest read(const std::string& text, bool counting = false) {
  const Json json = Json::parse(text);
  Fields body(json, "");
  AnthropicRequest request = read_anthropic(body, counting);
  body.rest(request.ignored);
  return request;
}

/// Of one user's message and these further fields.
AnthropicRequest read_with(const std::string& fields) {
  return read(R"({"max_tokens":9,"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
}

std::string refused(const std::string& fields) {
  return param_of([&] { read_with(fields); });
}

std::string refused_messages(const std::string& messages) {
  return param_of([&] { read(R"({"max_tokens":9,"messages":)" + messages + "}"); });
}

TEST(AnthropicRequest, SystemComesFirstAndBlocksAreLines) {
  const AnthropicRequest request = read(R"({"model":"m","max_tokens":9,"stream":true,
    "system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},
              {"type":"text","text":"b"}],
    "messages":[{"role":"user","content":[{"type":"text","text":"one"},
                                          {"type":"text","text":" two "}]}]})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.messages.dump(),
            R"([{"role":"system","content":"a\nb"},{"role":"user","content":"one\n two "}])");
  EXPECT_TRUE(request.ignored.empty());
}

TEST(AnthropicRequest, AProgramsHeaderIsNoText) {
  const AnthropicRequest request = read_with(
      R"("system":[{"type":"text","text":"x-anthropic-billing-header: v=1; cch=2"},
                   {"type":"text","text":"you are"}])");
  EXPECT_EQ(request.messages[0]["content"], "you are");
  EXPECT_EQ(request.ignored.header(), "system[0]");
}

TEST(AnthropicRequest, CallsResultsAndThoughtsGoOn) {
  const AnthropicRequest request = read(R"({"max_tokens":9,"messages":[
    {"role":"user","content":"weather?"},
    {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
      {"type":"redacted_thinking","data":"x"},{"type":"text","text":"I look."},
      {"type":"tool_use","id":"toolu_1","name":"f","input":{"b":1,"a":"é"}}]},
    {"role":"user","content":[
      {"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"rain"}]},
      {"type":"tool_result","tool_use_id":"toolu_2","content":"none","is_error":true},
      {"type":"text","text":"and?"}]}]})");
  EXPECT_EQ(request.messages.dump(), Json::parse(R"([{"role":"user","content":"weather?"},
    {"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[{"id":"toolu_1",
      "type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":\"é\"}"}}]},
    {"role":"tool","tool_call_id":"toolu_1","content":"rain"},
    {"role":"tool","tool_call_id":"toolu_2","content":"Error: none"},
    {"role":"user","content":"and?"}])")
                                         .dump());
  EXPECT_EQ(request.ignored.header(), "messages[1].content[1]");
}

TEST(AnthropicRequest, TurnsOfOneSideAreOne) {
  const AnthropicRequest request = read(
      R"({"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]})");
  EXPECT_EQ(request.messages.dump(), R"([{"role":"user","content":"a\nb"}])");
}

TEST(AnthropicRequest, SystemMessagesStandAnywhereAndCanBeMoved) {
  const AnthropicRequest request = read(R"({"max_tokens":9,"system":"s","messages":[
    {"role":"user","content":"a"},{"role":"system","content":"note"}]})");
  EXPECT_EQ(request.messages[2].dump(), R"({"role":"system","content":"note"})");
  EXPECT_EQ(with_one_system_message(request.messages)->dump(),
            R"([{"role":"system","content":"s\nnote"},{"role":"user","content":"a"}])");
  EXPECT_FALSE(with_one_system_message(read_with(R"("system":"s")").messages));
}

TEST(AnthropicRequest, ALastMessageOfTheAssistantIsContinued) {
  const AnthropicRequest request = read(R"({"max_tokens":9,"messages":[
    {"role":"user","content":"a"},{"role":"assistant","content":"It is "}]})");
  EXPECT_EQ(request.reply_begins, "It is ");
  EXPECT_EQ(request.messages.size(), 1U);
}

TEST(AnthropicRequest, ToolsThatCannotBeCalledAreDroppedAndNamed) {
  const AnthropicRequest request = read_with(R"("tools":[
    {"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{}},
    {"type":"web_search_20250305","name":"web_search","max_uses":3}])");
  EXPECT_EQ(request.tools.dump(), R"([{"type":"function","function":{"name":"f",)"
                                  R"("description":"d","parameters":{"type":"object"}}}])");
  EXPECT_EQ(request.ignored.header(), "tools[1](web_search)");
}

TEST(AnthropicRequest, ChoicesOfTools) {
  const std::string tools = R"("tools":[{"name":"f","input_schema":{}},
                                        {"type":"web_search_1","name":"w"}],"tool_choice":)";
  EXPECT_EQ(read_with(tools + R"({"type":"auto"})").tool_choice, "auto");
  EXPECT_EQ(read_with(tools + R"({"type":"any"})").tool_choice, "required");
  EXPECT_EQ(read_with(tools + R"({"type":"none"})").tool_choice, "none");
  const AnthropicRequest named =
      read_with(tools + R"({"type":"tool","name":"f","disable_parallel_tool_use":true})");
  EXPECT_EQ(named.tool_choice, "f");
  EXPECT_FALSE(named.parallel_calls);
  EXPECT_EQ(refused(tools + R"({"type":"tool","name":"w"})"), "tool_choice.name");
  EXPECT_EQ(refused(R"("tool_choice":{"type":"any"})"), "tool_choice");
  EXPECT_EQ(refused(tools + R"({"type":"all"})"), "tool_choice.type");
}

TEST(AnthropicRequest, ThinkingAndEffortAreVariablesOfTheTemplate) {
  EXPECT_EQ(read_with(R"("a":1)").variables.dump(), R"({"enable_thinking":false})");
  EXPECT_EQ(read_with(R"("thinking":{"type":"adaptive"},"output_config":{"effort":"high"})")
                .variables.dump(),
            R"({"enable_thinking":true,"reasoning_effort":"high"})");
  const AnthropicRequest budget =
      read_with(R"("thinking":{"type":"enabled","budget_tokens":2000})");
  EXPECT_EQ(budget.variables["enable_thinking"], true);
  EXPECT_EQ(budget.ignored.header(), "thinking.budget_tokens");
}

TEST(AnthropicRequest, WhatIsNotObeyedIsNamed) {
  EXPECT_EQ(read_with(R"("context_management":{"edits":[{"type":"clear_thinking_20251015"},
                         {"type":"clear_tool_uses_20250919"}]},"mcp_servers":[{}],
                         "metadata":{"user_id":"u"},"service_tier":"auto")")
                .ignored.header(),
            "context_management.edits[1], mcp_servers");
}

TEST(AnthropicRequest, StopsAndSchemas) {
  const AnthropicRequest request = read_with(
      R"("stop_sequences":["X"],"output_config":{"format":{"type":"json_schema","schema":{}}})");
  EXPECT_EQ(request.stop, std::vector<std::string>{"X"});
  EXPECT_EQ(request.schema->dump(), "{}");
  EXPECT_EQ(read_with(R"("output_format":{"type":"json_schema","schema":{"a":1}})").schema->dump(),
            R"({"a":1})");
}

TEST(AnthropicRequest, RefusalsNameTheField) {
  EXPECT_EQ(param_of([] { read(R"({"messages":[{"role":"user","content":"a"}]})"); }),
            "max_tokens");
  EXPECT_EQ(read(R"({"messages":[{"role":"user","content":"a"}]})", true).max_tokens, 0);
  EXPECT_EQ(refused_messages("[]"), "messages");
  EXPECT_EQ(refused_messages(R"([{"role":"robot","content":"a"}])"), "messages[0].role");
  EXPECT_EQ(refused_messages(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(refused_messages(R"([{"role":"user","content":[{"type":"image","source":{}}]}])"),
            "messages[0].content[0]");
  EXPECT_EQ(refused_messages(R"([{"role":"user","content":[{"type":"tool_result"}]}])"),
            "messages[0].content[0].tool_use_id");
  EXPECT_EQ(refused(R"("tools":[{"name":"f"}])"), "tools[0].input_schema");
  EXPECT_EQ(refused(R"("stop_sequences":[""])"), "stop_sequences[0]");
  EXPECT_EQ(refused(R"("thinking":{"type":"perhaps"})"), "thinking.type");
  EXPECT_EQ(refused(R"("output_config":{"format":{"type":"json_schema"}})"),
            "output_config.format.schema");
}

/// What a client makes of a stream, by the rules of the API; they are checked on the way.
class Client {
 public:
  void read(const std::string& stream) {
    std::istringstream lines(stream);
    for (std::string line, name; std::getline(lines, line);) {
      if (line.starts_with("event: ")) name = line.substr(7);
      if (!line.starts_with("data: ")) continue;
      const Json event = Json::parse(line.substr(6));
      ASSERT_EQ(event["type"], name);
      take(event);
    }
  }
  Json message;
  bool stopped = false;

 private:
  void take(const Json& event) {
    const std::string type = event["type"];
    ASSERT_FALSE(stopped);
    if (type == "ping") return;
    if (type == "message_start") {
      ASSERT_TRUE(message.is_null());
      message = event["message"];
      ASSERT_TRUE(message["content"].empty());
    } else if (type == "content_block_start") {
      ASSERT_FALSE(open_);
      ASSERT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      json_.clear();
      open_ = true;
    } else if (type == "content_block_delta") {
      ASSERT_TRUE(open_);
      ASSERT_EQ(event["index"], message["content"].size() - 1);
      add(message["content"].back(), event["delta"]);
    } else if (type == "content_block_stop") {
      ASSERT_TRUE(std::exchange(open_, false));
      Json& block = message["content"].back();
      if (block["type"] == "tool_use") block["input"] = whole_members(json_);
    } else if (type == "message_delta") {
      ASSERT_FALSE(open_);
      for (const auto& [key, value] : event["delta"].items()) message[key] = value;
      message["usage"] = event["usage"];
    } else {
      ASSERT_EQ(type, "message_stop");
      stopped = true;
    }
  }
  void add(Json& block, const Json& delta) {
    ASSERT_EQ(delta.size(), 2U);  // nothing of ours
    const std::string type = delta["type"];
    if (type == "input_json_delta") {
      json_ += delta["partial_json"];
      return;
    }
    const std::string name = type.substr(0, type.find('_'));
    if (name == "signature") {
      block[name] = delta[name];
    } else {
      block[name] = block[name].get<std::string>() + delta[name].get<std::string>();
    }
  }
  bool open_ = false;
  std::string json_;
};

using Kind = ReplyEvent::Kind;

TurnPiece piece(std::vector<ReplyEvent> events) {
  return {std::move(events), {}, {}};
}

/// Both: the stream and the whole.
Json told(const std::vector<TurnPiece>& pieces, const TurnEnd& end,
          std::vector<std::string> stop = {}) {
  MessageWriter writer({"msg_1", "m", 7, std::move(stop), {}});
  std::string stream = writer.begin({.prompt = 10, .cached = 4, .computed = 6});
  for (const TurnPiece& each : pieces) stream += writer.piece(each);
  stream += writer.end(end);
  stream += writer.done({.prompt = 10, .cached = 4, .computed = 6, .output = 5, .reasoning = 2});
  Client client;
  client.read(stream);
  EXPECT_TRUE(client.stopped);
  EXPECT_EQ(client.message.dump(), writer.message().dump());
  return writer.message();
}

const std::vector<TurnPiece> kCalling = {
    piece({{.kind = Kind::kReasoning, .text = "h"}, {.kind = Kind::kReasoning, .text = "m"}}),
    piece({{.kind = Kind::kContent, .text = " I "}}),
    piece({{.kind = Kind::kContent, .text = "look "},
           {.kind = Kind::kCallBegin, .call = 0, .id = "call_ab", .name = "f"},
           {.kind = Kind::kCallArguments, .text = R"({"a":)", .call = 0}}),
    piece({{.kind = Kind::kCallArguments, .text = R"("x"})", .call = 0},
           {.kind = Kind::kCallEnd, .call = 0, .complete = true}})};

TEST(AnthropicReply, StreamedIsWhole) {
  const Json message = told(kCalling, {.finish = Finish::kEos, .has_calls = true});
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["content"].size(), 3U);
  EXPECT_EQ(message["content"][0]["thinking"], "hm");
  EXPECT_FALSE(message["content"][0]["signature"].get<std::string>().empty());
  EXPECT_EQ(message["content"][1].dump(), R"({"type":"text","text":" I look "})");
  EXPECT_EQ(message["content"][2].dump(),
            R"({"type":"tool_use","id":"toolu_ab","name":"f","input":{"a":"x"}})");
  EXPECT_EQ(message["usage"]["input_tokens"], 6);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(message["usage"]["output_tokens"], 5);
}

TEST(AnthropicReply, AnEmptyReplyHasNoBlocks) {
  EXPECT_EQ(told({}, {.finish = Finish::kEos})["content"].dump(), "[]");
}

TEST(AnthropicReply, ReasonsOfEnds) {
  const std::vector<TurnPiece> text = {piece({{.kind = Kind::kContent, .text = "a"}})};
  EXPECT_EQ(told(text, {.finish = Finish::kEos})["stop_reason"], "end_turn");
  EXPECT_EQ(told(text, {.finish = Finish::kLength})["stop_reason"], "max_tokens");
  const Json stopped = told(text, {.finish = Finish::kStop, .stop = "X"}, {"X"});
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "X");
  // A stop text of the model's own is its end.
  EXPECT_EQ(told(text, {.finish = Finish::kStop, .stop = "Y"}, {"X"})["stop_reason"], "end_turn");
}

TEST(AnthropicReply, ACallThatIsCutKeepsWhatIsWhole) {
  const Json message = told({piece({{.kind = Kind::kCallBegin, .id = "call_1", .name = "f"},
                                    {.kind = Kind::kCallArguments, .text = R"({"a":1,"b":"x)"},
                                    {.kind = Kind::kCallEnd, .complete = false}})},
                            {.finish = Finish::kLength});
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_EQ(message["content"][0]["input"].dump(), R"({"a":1})");
}

TEST(AnthropicReply, WholeMembersOfAnyBeginning) {
  const std::string text = R"({"a":[1,{"b":"x, y\"}"}],"c":{"d":null},"e":2.5})";
  EXPECT_EQ(whole_members(text), Json::parse(text));
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_TRUE(whole_members(std::string_view(text).substr(0, size)).is_object()) << size;
  }
  EXPECT_EQ(whole_members(R"({"a":[1,{"b":"x, y\"}"},)").dump(), R"({"a":[1,{"b":"x, y\"}"}]})");
}

TEST(AnthropicReply, ErrorsHaveAnthropicsForm) {
  const Fault fault = bad_request("messages", "10 tokens, 5 fit", "context_length_exceeded");
  EXPECT_EQ(Json::parse(anthropic_error(fault, "req_1").body).dump(),
            R"({"type":"error","error":{"type":"invalid_request_error",)"
            R"("message":"prompt is too long: messages: 10 tokens, 5 fit"},"request_id":"req_1"})");
  EXPECT_EQ(anthropic_error(fault, "req_1").status, 400);
  const std::string event = anthropic_error_event(unavailable("server_overloaded", "busy"), "r");
  EXPECT_TRUE(event.starts_with("event: error\ndata: "));
  EXPECT_NE(event.find("overloaded_error"), std::string::npos);
}

}  // namespace
}  // namespace dendrite::server
