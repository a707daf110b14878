// Chats: one or many, calls of tools, thoughts apart, and chats that go on.
#include "dendrite/chat.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat/chat_support.h"
#include "chat/chat_texts.h"
#include "chat/messages.h"
#include "chat/model_files.h"
#include "support/temporary_folder.h"

namespace dendrite::test {
namespace {

using Json = nlohmann::ordered_json;

std::string user(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}}).dump();
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

const std::string kAsk = user("Will it rain in Rome today?");
const ToolCall kRain{"", "get_weather", R"({"city":"Rome","day":"today"})"};

class ChatTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine_ = new Engine(load("dendrite-tools"));
    model_ = new ChatModel(*engine_);
  }
  static void TearDownTestSuite() {
    delete model_;
    delete engine_;
  }
  Engine& engine() { return *engine_; }
  const ChatModel& model() { return *model_; }
  ChatParams with_tools() {
    ChatParams params;
    params.tools_json = text_of(model_path("dendrite-tools") / "tools.json");
    return params;
  }
  std::vector<ChatReply> ask(const ChatParams& params, const std::string& messages = kAsk) {
    Session session(engine());
    return chat(session, model(), std::span(&messages, 1), params).front();
  }
  static Engine* engine_;
  static ChatModel* model_;
};
Engine* ChatTest::engine_ = nullptr;
ChatModel* ChatTest::model_ = nullptr;

TEST_F(ChatTest, CallsOfHeldOutRequestsAreThoseExpected) {
  std::ifstream file(model_path("dendrite-tools") / "heldout.jsonl");
  std::vector<std::string> conversations;
  std::vector<ToolCall> wanted;
  for (std::string line; conversations.size() < 40 && std::getline(file, line);) {
    const Json entry = Json::parse(line);
    conversations.push_back(user(entry["request"].get<std::string>()));
    const Json& call = entry["call"];
    wanted.push_back({"", call["name"].get<std::string>(), call["arguments"].dump()});
  }
  ASSERT_EQ(wanted.size(), 40u);
  Session session(engine());
  const auto replies = chat(session, model(), conversations, with_tools());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const ChatReply& reply = replies[i].front();
    EXPECT_EQ(reply.tool_calls, std::vector<ToolCall>{wanted[i]}) << conversations[i];
    EXPECT_EQ(reply.text + reply.reasoning, "");
    EXPECT_STREQ(reply.finish_reason(), "tool_calls");
    EXPECT_TRUE(reply.warnings.empty());
  }
}

TEST_F(ChatTest, ToolChoiceDecidesWhatIsCalled) {
  ChatParams params = with_tools();
  const ChatReply reply = ask(params).front();
  EXPECT_EQ(reply.tool_calls, std::vector<ToolCall>{kRain});
  EXPECT_EQ(reply.finish, reply.generation.finish);
  params.tool_choice = "get_time";
  EXPECT_EQ(ask(params).front().tool_calls.front().name, "get_time");
  params.tool_choice = "required";
  EXPECT_EQ(ask(params).front().tool_calls.front(), kRain);
  params.tool_choice = "none";
  params.generate.decode.max_tokens = 9;
  const ChatReply none = ask(params).front();
  EXPECT_EQ(none.text, R"({"name":")");
  EXPECT_TRUE(none.tool_calls.empty());
  EXPECT_STREQ(none.finish_reason(), "length");
  params.tools_json.clear();
  EXPECT_EQ(ask(params).front().generation.ids, none.generation.ids);
}

TEST_F(ChatTest, ARequiredCallIsAlwaysValid) {
  ChatParams params = with_tools();
  params.tool_choice = "required";
  params.parallel_calls = false;
  params.generate.n = 24;
  params.generate.decode = {.max_tokens = 400, .temperature = 4.0};
  const Json tools = Json::parse(params.tools_json);
  std::set<std::string> names;
  for (const ChatReply& reply : ask(params)) {
    EXPECT_EQ(reply.text, "");
    ASSERT_EQ(reply.tool_calls.size(), 1u);
    const ToolCall& call = reply.tool_calls.front();
    EXPECT_EQ(call.complete, reply.finish == Finish::kStop);
    names.insert(call.name);
    if (!call.complete) continue;
    const auto tool =
        std::ranges::find_if(tools, [&](const Json& t) { return t["name"] == call.name; });
    ASSERT_NE(tool, tools.end());
    const Json arguments = Json::parse(call.arguments);
    for (const Json& key : (*tool)["parameters"]["required"]) {
      EXPECT_TRUE(arguments.contains(key.get<std::string>())) << call.arguments;
    }
    for (const auto& [key, value] : arguments.items()) {
      EXPECT_TRUE((*tool)["parameters"]["properties"].contains(key)) << call.arguments;
    }
  }
  EXPECT_GT(names.size(), 1u);
}

TEST_F(ChatTest, StreamsAreTheWholeReply) {
  const ChatRequest request = model().request(kAsk, with_tools());
  Session session(engine());
  Branch branch = session.prefill(std::span<const Token>(request.prompt));
  ReplyParser parser = request.parser;
  std::vector<ReplyEvent> events;
  const auto take = [&](std::vector<ReplyEvent> more) {
    std::ranges::move(more, std::back_inserter(events));
  };
  DecodeParams decode = request.decode;
  decode.on_token = [&](const TokenEvent& event) { take(parser.feed(event.token, event.text)); };
  const Generation generation = session.decode(branch, decode);
  take(parser.finish(generation.finish));
  EXPECT_GT(events.size(), 5u);  // arguments come as they are generated
  EXPECT_EQ(shown(events), R"([0get_weather {"city":"Rome","day":"today"}])");
  EXPECT_EQ(model().reply(request, generation).tool_calls, std::vector<ToolCall>{kRain});
}

TEST_F(ChatTest, OneBosAndPromptTokens) {
  const ChatRequest request = model().request(kAsk, {});
  EXPECT_EQ(std::ranges::count(request.prompt, engine().info().bos.front()), 1);
  ChatParams params;
  params.generate.decode.max_tokens = 1;
  EXPECT_EQ(ask(params).front().prompt_tokens, std::ssize(request.prompt));
}

TEST_F(ChatTest, AMessageGoesOnWithTheChat) {
  const ChatReply reply = ask(with_tools()).front();
  const Json message = Json::parse(reply.message_json());
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["tool_calls"][0]["id"], reply.tool_calls[0].id);
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], kRain.arguments);
  const Json read = chats::for_template(Json::array({message}).dump());
  EXPECT_EQ(read[0]["tool_calls"][0]["function"]["arguments"]["city"], "Rome");

  const char* parts = R"([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]},
                          {"role": "assistant", "content": null}])";
  EXPECT_EQ(chats::for_template(parts).dump(),
            R"([{"role":"user","content":"a\nb"},{"role":"assistant","content":""}])");
}

TEST_F(ChatTest, WhatIsWrongIsSaid) {
  const auto says = [&](const ChatParams& params, const std::string& messages = kAsk) {
    return error_of([&] { ask(params, messages); });
  };
  ChatParams params = with_tools();
  params.tool_choice = "call_mum";
  EXPECT_NE(says(params).find(R"(tool_choice is "call_mum"; expected auto, required, none)"),
            std::string::npos);
  params = {};
  params.tool_choice = "required";
  EXPECT_NE(says(params).find("a call is required, and there are no tools"), std::string::npos);
  params = with_tools();
  params.generate.decode.constraint = Constraint::regex("a");
  EXPECT_NE(says(params).find("got a constraint of kind regex; expected a json_schema beside"),
            std::string::npos);
  params = {};
  params.tools_json = R"([{"parameters": {}}])";
  EXPECT_NE(says(params).find("tools[0] has no name"), std::string::npos);
  EXPECT_NE(says({}, R"([{"role": "user", "content": [{"type": "image_url"}]}])")
                .find(R"(conversation 0: got content of type "image_url"; expected "text" alone)"),
            std::string::npos);
  EXPECT_NE(says({}, "[]").find("got no messages; expected a JSON array"), std::string::npos);
  EXPECT_NE(says({}, "hello").find("got no JSON; expected a JSON array"), std::string::npos);
}

TEST_F(ChatTest, AnAnswerMayHaveASchema) {
  ChatParams params = with_tools();
  params.tool_choice = "none";
  params.generate.decode.constraint = Constraint::json_schema(R"({"const": "no"})");
  EXPECT_EQ(ask(params).front().text, "\"no\"");
}

TEST(ChatGoesOn, ComputingWhatIsNew) {
  const Engine engine = load("dendrite-24");
  const ChatModel model(engine);
  Session session(engine);
  ChatBranches branches(2);
  ChatParams params;
  params.keep = &branches;
  params.generate.decode.max_tokens = 80;
  Json messages = Json::parse(user("24: 10 4 6 5"));
  const auto ask = [&] {
    const std::string text = messages.dump();
    return chat(session, model, std::span(&text, 1), params).front().front();
  };
  const ChatReply first = ask();
  const std::int64_t before = session.stats().tokens_computed;
  messages.push_back(Json::parse(first.message_json()));
  messages.push_back({{"role", "user"}, {"content", "24: 2 3 5 12"}});
  params.generate.decode.max_tokens = 1;
  const ChatReply second = ask();
  EXPECT_LT(session.stats().tokens_computed - before, second.prompt_tokens - first.prompt_tokens);
  messages = Json::parse(user("24: 1 2 3 4"));
  ask();
  messages = Json::parse(user("24: 2 2 3 4"));
  ask();
  EXPECT_EQ(branches.size(), 2u);
  EXPECT_EQ(session.stats().branches_live, 2);
  branches.clear();
  EXPECT_EQ(session.stats().branches_live, 0);

  Branch branch = session.prefill("S 24: 4 5 6 10\n");
  branches.keep(branch.fork());
  session.decode(branch, {.max_tokens = 4});
  branches.keep(branch.fork());
  EXPECT_EQ(branches.size(), 1u);  // it goes on from the other
  ChatBranches none(0);
  none.keep(branch.fork());
  EXPECT_EQ(none.size(), 0u);
}

TEST(ChatModelFiles, TellTheirTags) {
  const TemporaryFolder folder;
  const auto tags = [&] {
    const auto added = chats::added_tokens(folder.path().string());
    return chats::reasoning_tags_of(folder.path().string(), added);
  };
  EXPECT_EQ(tags(), std::nullopt);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder.path() / name) << text;
  };
  write("chat_template.jinja", "{{ '[/THINK]' }}");
  EXPECT_EQ(tags(), (ReasoningTags{"[THINK]", "[/THINK]"}));
  write("chat_template.jinja", "{{ bos_token }}");
  EXPECT_EQ(tags(), std::nullopt);
  write("tokenizer_config.json", R"({"chat_template": "{{ '<think>\n\n</think>' }}"})");
  EXPECT_EQ(tags(), (ReasoningTags{"<think>", "</think>"}));
  write("tokenizer.json", R"({"model": {"vocab": {"added_tokens": 1}}, "added_tokens": [
    {"id": 7, "content": "[THINK]", "special": true}, {"id": 9, "content": "</think>", "special": false},
    {"id": 8, "content": "word", "special": false}]})");
  EXPECT_EQ(chats::added_tokens(folder.path().string()),
            (std::map<std::string, Token>{{"[THINK]", 7}, {"</think>", 9}}));
  EXPECT_EQ(tags(), (ReasoningTags{"<think>", "</think>", std::nullopt, 9}));
  write("tokenizer_config.json", "{");
  EXPECT_NE(error_of(tags).find("tokenizer_config.json: got no JSON object"), std::string::npos);
}

TEST(ReplyParser, ACallBehindThoughts) {
  const std::string text = "<think>rain?</think>\n<tool_call>" + call("get_time") + "</tool_call>";
  const ReplyParser parser(ReasoningTags{"<think>", "</think>"}, false, kTools);
  const auto of = [&](const std::vector<std::string>& pieces) {
    return parsed(parser, pieces, Finish::kEos);
  };
  EXPECT_EQ(of({text}), "~rain?[0get_time {}]");
  expect_same_for_all_cuttings(text, of);
  ReplyParser plain(std::nullopt, false, "");
  EXPECT_EQ(shown(plain.feed("<think>a</think>")), "'<think>a</think>");
  EXPECT_EQ(
      parsed(ReplyParser(std::nullopt, false, kTools), {"<function=get_time>"}, Finish::kLength),
      "'<function=get_time>");
}

}  // namespace
}  // namespace dendrite::test
