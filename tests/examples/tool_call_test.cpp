// The checker of examples/tool_calls.cpp says exactly what is wrong with a call.
#include "examples/tool_call.h"

#include <gtest/gtest.h>

namespace tool_call {
namespace {

const Json kTools = Json::parse(R"([{"name": "f", "parameters": {
  "required": ["n"], "properties": {
    "n": {"type": "integer"}, "unit": {"type": "string", "enum": ["m", "s"]}}}},
  {"name": "g"}])");

TEST(ToolCall, AcceptsWhatTheSchemaAsksFor) {
  EXPECT_EQ(problem(kTools, R"({"name": "f", "arguments": {"n": 3}})"), "");
  EXPECT_EQ(problem(kTools, R"( {"arguments": {"unit": "s", "n": -1}, "name": "f"} )"), "");
  EXPECT_EQ(problem(kTools, R"({"name": "g", "arguments": {}})"), "");
}

TEST(ToolCall, TakesWhatStandsBetweenTags) {
  const std::string call = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n";
  EXPECT_EQ(problem(kTools, call), "");  // the closing tag was the stop string
  EXPECT_EQ(problem(kTools, "thinking " + call + "</tool_call> more"), "");
}

TEST(ToolCall, RefusesWhatIsNotOneObject) {
  for (const char* answer : {"", "{", R"({"name": "g", "arguments": {}} and more)",
                             R"({"name": "g", "arguments": {},})"}) {
    EXPECT_EQ(problem(kTools, answer), "not JSON") << answer;
  }
  for (const char* answer :
       {"[]", R"({"name": "g"})", R"({"name": "g", "arguments": "x"})",
        R"({"name": 1, "arguments": {}})", R"({"name": "g", "arguments": {}, "id": 1})"}) {
    EXPECT_EQ(problem(kTools, answer), "not an object of name and arguments") << answer;
  }
}

TEST(ToolCall, RefusesWhatTheSchemaDoesNotAllow) {
  EXPECT_EQ(problem(kTools, R"({"name": "h", "arguments": {}})"), "of an unknown tool h");
  EXPECT_EQ(problem(kTools, R"({"name": "f", "arguments": {}})"), "without the argument n");
  EXPECT_EQ(problem(kTools, R"({"name": "g", "arguments": {"x": 1}})"),
            "with an unknown argument x");
  EXPECT_EQ(problem(kTools, R"({"name": "f", "arguments": {"n": 1.5}})"),
            "n is not of type integer");
  EXPECT_EQ(problem(kTools, R"({"name": "f", "arguments": {"n": 1, "unit": "h"}})"),
            "unit is none of [\"m\",\"s\"]");
}

TEST(ToolCall, LooksIntoInnerObjects) {
  const Json tools = Json::parse(R"([{"name": "f", "parameters": {
    "required": ["at"], "properties": {"at": {"type": "object", "required": ["x"], "properties": {
      "x": {"type": "integer"}, "unit": {"type": "string", "enum": ["m", "s"]}}}}}}])");
  const auto problem_with = [&](const std::string& at) {
    return problem(tools, R"({"name": "f", "arguments": {"at": )" + at + "}}");
  };
  EXPECT_EQ(problem_with(R"({"x": 1, "unit": "m"})"), "");
  EXPECT_EQ(problem_with("1"), "at is not of type object");
  EXPECT_EQ(problem_with("{}"), "without the argument at.x");
  EXPECT_EQ(problem_with(R"({"x": "1"})"), "at.x is not of type integer");
  EXPECT_EQ(problem_with(R"({"x": 1, "y": 1})"), "with an unknown argument at.y");
  EXPECT_EQ(problem_with(R"({"x": 1, "unit": "h"})"), R"(at.unit is none of ["m","s"])");
}

}  // namespace
}  // namespace tool_call
