// JSON from outside: what is refused before anything is built of it, and how fields are read.
#include <gtest/gtest.h>

#include "server/json.h"

namespace dendrite::server {
namespace {

/// What the Fault says; empty: there is none.
template <typename Function>
std::string fault_of(const Function& function) {
  try {
    function();
    return "";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.status, 400);
    return fault.message;
  }
}

std::string refused(const std::string& text, const JsonLimits& limits = {}) {
  return fault_of([&] { parse_json(text, limits); });
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Json, DepthAndNumberOfValuesAreBounded) {
  EXPECT_EQ(refused(repeated("[", 64) + repeated("]", 64)), "");
  EXPECT_NE(refused(repeated("[", 65) + repeated("]", 65)), "");
  EXPECT_NE(refused(repeated("[", 1'000'000)), "");
  EXPECT_NE(refused(repeated(R"({"a":)", 1'000'000)), "");
  EXPECT_EQ(refused("[1,2,3]", {.values = 4}), "");
  EXPECT_NE(refused("[1,2,3,4]", {.values = 4}), "");
}

TEST(Json, AKeyStandsOnceInAnObjectHoweverItIsWritten) {
  EXPECT_NE(refused(R"({"a":1,"a":2})"), "");
  EXPECT_NE(refused(R"({"a":1,"\u0061":2})"), "");
  EXPECT_EQ(refused(R"({"a":{"a":1},"b":{"a":1}})"), "");
}

TEST(Json, WhatIsNoJsonOrNoUtf8IsRefused) {
  for (const std::string text :
       {"", "{", "{}x", "nul", "NaN", "[1,]", "{'a':1}", "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"",
        "\"\\ud800\"", "1e999", "[01]", "\"a\nb\"", "// c\n{}"}) {
    EXPECT_NE(refused(text), "") << text;
  }
  EXPECT_EQ(refused("\"\\ud83d\\ude00 \xf0\x9f\x98\x80\""), "");
}

TEST(Json, ABodyIsAnObject) {
  EXPECT_NE(fault_of([] { parse_body("[]"); }), "");
  EXPECT_EQ(fault_of([] { parse_body("{}"); }), "");
}

TEST(Json, ErrorsNameThePathAndEchoLittle) {
  const Json body = {{"n", std::string(5000, 'x')}, {"m", 1.5}, {"deep", {{"k", 1}}}};
  Fields fields(body, "");
  const std::string text = fault_of([&] { fields.integer("n", 1, 9); });
  EXPECT_EQ(text.substr(0, 7), "n: got ");
  EXPECT_LT(text.size(), 400U);
  EXPECT_EQ(fault_of([&] { fields.integer("m", 1, 9); }),
            "m: got \"1.5\"; expected a whole number from 1 to 9");
  Fields deep(body["deep"], "deep");
  EXPECT_EQ(fault_of([&] { deep.text("k"); }), "deep.k: got \"1\"; expected a text");
  EXPECT_LE(Fault(400, "", "", "", std::string(5000, 'x')).message.size(), 1024U);
}

TEST(Json, NumbersOutOfRangeAreRefused) {
  const Json body = Json::parse(R"({"a":18446744073709551615,"b":-1,"c":1e300,"d":3.0,"e":2.5})");
  Fields fields(body, "");
  EXPECT_NE(fault_of([&] { fields.integer("a", INT64_MIN, INT64_MAX); }), "");
  EXPECT_NE(fault_of([&] { fields.integer("b", 0, 9); }), "");
  EXPECT_NE(fault_of([&] { fields.integer("c", INT64_MIN, INT64_MAX); }), "");
  EXPECT_EQ(fields.integer("d", 0, 9), 3);
  EXPECT_NE(fault_of([&] { fields.number("e", 0, 2); }), "");
}

TEST(Json, NullIsAbsentAndWhatNobodyAskedForIsNamed) {
  const Json body = Json::parse(R"({"a":null,"b":1,"c":{"d":2},"bad name":1})");
  Fields fields(body, "");
  EXPECT_EQ(fields.text("a"), std::nullopt);
  Ignored ignored;
  fields.rest(ignored);
  EXPECT_EQ(ignored.header(), "b, c");
  EXPECT_EQ(ignored.paths().size(), 3U);
}

TEST(Json, OnlyWhatWouldHaveAnEffectIsRefused) {
  const Json body = Json::parse(R"({"a":false,"b":[],"c":"","d":null,"e":true,"f":0})");
  Fields fields(body, "");
  for (const char* name : {"a", "b", "c", "d"}) {
    EXPECT_EQ(fault_of([&] { fields.refuse(name, "no"); }), "") << name;
  }
  EXPECT_EQ(fault_of([&] { fields.refuse("e", "no"); }), "e: no");
  EXPECT_EQ(fault_of([&] { fields.refuse("f", "no"); }), "f: no");
}

TEST(Json, EventsStayOnOneLineForEveryClient) {
  const Json data = {{"text", "a\n\xC2\x85\xE2\x80\xA8\xE2\x80\xA9\r\xff"}};
  const std::string text = event(data, "name");
  EXPECT_EQ(text, "event: name\ndata: {\"text\":\"a\\n\\u0085\\u2028\\u2029\\r\xEF\xBF\xBD\"}\n\n");
}

}  // namespace
}  // namespace dendrite::server
