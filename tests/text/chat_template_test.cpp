#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <functional>

#include "dendrite/engine.h"
#include "dendrite/error.h"
#include "golden.h"
#include "support/golden_data.h"

namespace dendrite {
namespace {

using test::Json;
using test::TempDir;

constexpr const char* kHi = R"([{"role": "user", "content": "hi"}])";

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string render_case(const ChatTemplate& chat_template, const Json& conversation) {
  const std::string tools = conversation.contains("tools") ? conversation["tools"].dump() : "";
  const std::string extra = conversation.contains("extra") ? conversation["extra"].dump() : "";
  return chat_template.render(
      conversation["messages"].dump(),
      {.add_generation_prompt = conversation.value("add_generation_prompt", true),
       .tools_json = tools,
       .extra_json = extra});
}

class ChatTemplateGolden : public testing::TestWithParam<std::string> {};

TEST_P(ChatTemplateGolden, RendersAsTransformers) {
  const auto folder = test::text_data() / "templates" / GetParam();
  const Json rendered = test::read_json(folder / "rendered.json");
  const ChatTemplate chat_template = ChatTemplate::open(folder);
  for (const Json& conversation : test::read_json(test::text_data() / "conversations.json")) {
    const auto name = conversation["name"].get<std::string>();
    const Json& expected = rendered.at(name);
    if (expected.is_null()) {
      EXPECT_THROW((void)render_case(chat_template, conversation), Error) << name;
      continue;
    }
    try {
      EXPECT_EQ(render_case(chat_template, conversation), expected.get<std::string>()) << name;
    } catch (const Error& error) {
      ADD_FAILURE() << name << ": " << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, ChatTemplateGolden, testing::ValuesIn(test::folders("templates")),
                         [](const auto& info) { return info.param; });

TEST(ChatTemplate, RendersPiecesOfJinjaAsTransformers) {
  const Json context = test::read_json(test::text_data() / "snippet_context.json");
  const std::string extra = context.dump();
  const TempDir dir("snippets");
  for (const Json& snippet : test::read_json(test::text_data() / "snippets.json")) {
    dir.write("chat_template.jinja", snippet[0].get<std::string>());
    const auto render = [&] {
      return ChatTemplate::open(dir.path())
          .render(R"([{"role": "user"}])", {.add_generation_prompt = false, .extra_json = extra});
    };
    if (snippet[1].is_null()) {
      EXPECT_THROW((void)render(), Error) << snippet[0];
      continue;
    }
    try {
      EXPECT_EQ(render(), snippet[1].get<std::string>()) << snippet[0];
    } catch (const Error& error) {
      ADD_FAILURE() << snippet[0] << ": " << error.what();
    }
  }
}

TEST(ChatTemplate, RefusesTheJinjaItDoesNotKnow) {
  const TempDir dir("unknown_jinja");
  for (const char* source :
       {"{{ 'a' | urlencode }}", "{{ cycler('a') }}", "{{ 'a'.zfill(3) }}", "{{ +1 }}",
        "{% set j = joiner() %}{{ j() }}", "{% include 'x' %}", "{% import 'x' as y %}"}) {
    dir.write("chat_template.jinja", source);
    EXPECT_THROW((void)ChatTemplate::open(dir.path()).render(kHi), Error) << source;
  }
}

TEST(ChatTemplate, KeepsIntegersBeyond64Bits) {
  const TempDir dir("large_integers");
  dir.write("chat_template.jinja",
            "{{ messages[0].n|tojson }} {{ messages[0].s }} {{ tools[0].m }} {{ x|tojson }}");
  const std::string messages =
      R"([{"role": "u", "n": [123456789012345678901, -98765432109876543210, 7, 1.5, 1e20],)"
      R"( "s": "integer 0: 123456789012345678901 \" 123456789012345678901"}])";
  EXPECT_EQ(
      ChatTemplate::open(dir.path())
          .render(messages, {.tools_json = R"([{"m": 18446744073709551616}])",
                             .extra_json = R"({"x": {"y": 340282366920938463463374607431}})"}),
      "[123456789012345678901, -98765432109876543210, 7, 1.5, 1e+20] "
      "integer 0: 123456789012345678901 \" 123456789012345678901 "
      "18446744073709551616 {\"y\": 340282366920938463463374607431}");
  EXPECT_THROW((void)ChatTemplate::open(dir.path()).render(R"([{"n": 00123456789012345678901}])"),
               Error);
}

TEST(ChatTemplate, SaysWhatIsWrongWithTheMessages) {
  const TempDir dir("bad_messages");
  dir.write("chat_template.jinja", "{{ messages }}");
  const ChatTemplate chat_template = ChatTemplate::open(dir.path());
  const std::pair<std::string, std::string> cases[] = {
      {"", "messages: not valid JSON"},
      {"[{\"role\": \"user\"", "messages: not valid JSON"},
      {"{\"role\": \"user\"}", "messages: got a JSON object, expected an array"},
      {"[]", "messages: got an empty JSON array"},
      {"[{}, \"hi\"]", "messages[1]: got a JSON string, expected an object"},
      {"[[{\"role\": \"user\"}]]", "messages[0]: got a JSON array, expected an object"},
      {"[{\"role\": \"\xff\"}]", "messages: not valid JSON"},
      {std::string(100000, '['), "messages: JSON nested deeper"},
  };
  for (const auto& [json, expected] : cases) {
    const std::string error = error_of([&] { (void)chat_template.render(json); });
    EXPECT_NE(error.find(expected), std::string::npos) << json.substr(0, 80) << ": " << error;
  }
  const auto options_error = [&](const RenderOptions& options) {
    return error_of([&] { (void)chat_template.render(kHi, options); });
  };
  EXPECT_EQ(options_error({.tools_json = "{}"}),
            "tools: got an empty JSON object, expected an array");
  EXPECT_EQ(options_error({.tools_json = "[1]"}),
            "tools[0]: got a JSON number, expected an object");
  EXPECT_EQ(options_error({.extra_json = "[]"}),
            "extra variables: got an empty JSON array, expected an object");
  EXPECT_EQ(options_error({.extra_json = "{\"messages\": 1}"}),
            "extra variables: got messages, which has an argument of its own");
}

TEST(ChatTemplate, EnginesHandToolsAndVariablesToIt) {
  const TempDir dir("chat_options");
  std::filesystem::copy(test::model_path("tinyllama") / "config.json", dir.path() / "config.json");
  dir.write("chat_template.jinja",
            "{{ messages[0].content }}{% for tool in tools or [] %} {{ tool.name }}{% endfor %}"
            "{% if enable_thinking is defined %} {{ enable_thinking }}{% endif %}"
            "{% if add_generation_prompt %} >{% endif %}");
  const Engine engine = Engine::load(dir.path().string(), {.weights = false});
  const std::string hi = kHi;
  EXPECT_EQ(engine.render_chat(hi), "hi >");
  EXPECT_EQ(engine.render_chat(hi, {.add_generation_prompt = false}), "hi");
  EXPECT_EQ(engine.render_chat(hi, {.tools_json = R"([{"name": "a"}, {"name": "b"}])",
                                    .extra_json = R"({"enable_thinking": false})"}),
            "hi a b False >");
  const auto error = [&](const ChatOptions& options) {
    return error_of([&] { (void)engine.render_chat(hi, options); });
  };
  EXPECT_EQ(error({.tools_json = "7"}), "tools: got a JSON number, expected an array");
  EXPECT_EQ(error({.extra_json = R"({"tools": []})"}),
            "extra variables: got tools, which has an argument of its own");
  // Half of a surrogate pair, as JSON or as bytes, is no text.
  for (const std::string half : {R"("\ud800")", "\"\xed\xa0\x80\"", "\"\xff\""}) {
    EXPECT_NE(error({.tools_json = "[{\"name\": " + half + "}]"}).find("tools: not valid JSON"),
              std::string::npos);
    EXPECT_NE(error({.extra_json = "{\"x\": " + half + "}"}).find("variables: not valid JSON"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                (void)engine.render_chat("[{\"content\": " + half + "}]");
              }).find("messages: not valid JSON"),
              std::string::npos);
  }
}

TEST(ChatTemplate, ReportsWhatTheTemplateRaises) {
  const TempDir dir("raises");
  dir.write("chat_template.jinja", "\n{{ raise_exception('roles must alternate') }}");
  const std::string error = error_of([&] { (void)ChatTemplate::open(dir.path()).render(kHi); });
  EXPECT_EQ(error, (dir.path() / "chat_template.jinja").string() +
                       ": line 2 of the chat template: roles must alternate");
}

TEST(ChatTemplate, IsSoughtInTheOrderOfTransformers) {
  const TempDir dir("order");
  EXPECT_FALSE(ChatTemplate::try_open(dir.path()).has_value());
  EXPECT_NE(error_of([&] { ChatTemplate::open(dir.path()); }).find(dir.path().string()),
            std::string::npos);
  const auto render = [&] { return ChatTemplate::open(dir.path()).render(kHi); };
  dir.write("chat_template.json", R"({"chat_template": "legacy"})");
  EXPECT_EQ(render(), "legacy");
  dir.write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(render(), "config");
  dir.write("chat_template.jinja", "file");
  EXPECT_EQ(render(), "file");
}

TEST(ChatTemplate, BrokenTemplatesAreNamed) {
  const TempDir dir("broken");
  dir.write("chat_template.jinja", "ok\n{% if %}");
  const std::string error = error_of([&] { ChatTemplate::open(dir.path()); });
  EXPECT_NE(error.find("chat_template.jinja: line 2"), std::string::npos) << error;

  dir.write("chat_template.jinja", "\xff");
  EXPECT_NE(error_of([&] { ChatTemplate::open(dir.path()); }).find("utf-8"), std::string::npos);

  const TempDir config("broken_list");
  config.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  const std::string names = error_of([&] { (void)ChatTemplate::open(config.path()).render(kHi); });
  EXPECT_NE(names.find("named rag"), std::string::npos) << names;
  config.write("tokenizer_config.json", R"({"chat_template": 7})");
  EXPECT_NE(error_of([&] { ChatTemplate::open(config.path()); }).find("a JSON number"),
            std::string::npos);
}

TEST(ChatTemplate, EndlessTemplatesAreErrors) {
  const TempDir dir("endless");
  for (const char* source :
       {"{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 'x' * 10 ** 15 }}"}) {
    dir.write("chat_template.jinja", source);
    EXPECT_THROW((void)ChatTemplate::open(dir.path()).render(kHi), Error) << source;
  }
}

}  // namespace
}  // namespace dendrite
