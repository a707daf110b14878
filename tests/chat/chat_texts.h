#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "dendrite/tool_calls.h"

// What tests of texts and their calls share. They need no engine.
namespace dendrite::test {

inline const char* const kTools = R"([
  {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object",
    "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"},
      "wet": {"type": "boolean"}, "tags": {"type": "array"}, "more": {"type": "object"},
      "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "level": {"type": ["integer", "null"]}}}}},
  {"name": "get_time", "parameters": {"type": "object", "properties": {}}}])";

inline std::string call(const std::string& name, const std::string& arguments = "{}") {
  return R"({"name": ")" + name + R"(", "arguments": )" + arguments + "}";
}

/// Content and calls for a person to read: "said" [name {...}], and ! behind one that is not
/// complete. Calls stand where they were told.
inline std::string shown(const std::vector<ReplyEvent>& events) {
  std::string out;
  ReplyEvent::Kind last = ReplyEvent::Kind::kCallEnd;
  for (const ReplyEvent& event : events) {
    const bool goes_on = event.kind == last;
    last = event.kind;
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        out += (goes_on ? "" : "~") + event.text;
        break;
      case ReplyEvent::Kind::kContent:
        out += (goes_on ? "" : "'") + event.text;
        break;
      case ReplyEvent::Kind::kCallBegin:
        out += "[" + std::to_string(event.call) + event.name + " ";
        break;
      case ReplyEvent::Kind::kCallArguments:
        out += event.text;
        break;
      case ReplyEvent::Kind::kCallEnd:
        out += event.complete ? "]" : "!]";
    }
  }
  return out;
}

/// What a parser makes of pieces of a text.
template <typename Parser, typename Finish>
std::string parsed(Parser parser, const std::vector<std::string>& pieces, Finish finish) {
  std::vector<ReplyEvent> events;
  for (const std::string& piece : pieces) {
    for (ReplyEvent& event : parser.feed(piece)) events.push_back(std::move(event));
  }
  for (ReplyEvent& event : parser.finish(finish)) events.push_back(std::move(event));
  return shown(events);
}

/// Fails unless each cutting of the text gives the same.
inline void expect_same_for_all_cuttings(
    const std::string& text,
    const std::function<std::string(const std::vector<std::string>&)>& of_pieces) {
  const std::string wanted = of_pieces({text});
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(of_pieces(bytes), wanted);
  for (std::size_t at = 0; at < text.size(); ++at) {
    EXPECT_EQ(of_pieces({text.substr(0, at), text.substr(at)}), wanted) << at;
  }
  std::mt19937 draw(7);
  for (int i = 0; i < 20; ++i) {
    std::vector<std::string> pieces(1);
    for (const char c : text) {
      if (draw() % 5 == 0) pieces.emplace_back();
      pieces.back() += c;
    }
    EXPECT_EQ(of_pieces(pieces), wanted);
  }
}

}  // namespace dendrite::test
