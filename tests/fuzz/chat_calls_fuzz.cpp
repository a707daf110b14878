// Any bytes as what a model answers: the parsers of calls, thoughts and Harmony give the same
// however it is cut, a call that is complete has arguments that are JSON, and of a text without
// calls nothing is lost. And as the messages of a request: an Error, or JSON that a template can
// read.
#include <string>

#include "chat/messages.h"
#include "dendrite/chat.h"
#include "dendrite/error.h"
#include "fuzz.h"
#include "support/json_object.h"

namespace {

using namespace dendrite;

const char* const kTools = R"([
  {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"},
    "days": {"type": "integer"}, "tags": {"type": "array"}, "more": {"type": "object"},
    "share": {"type": ["number", "null"]}, "wet": {"type": "boolean"}}}},
  {"name": "get_time", "parameters": {}}, {"name": "get", "parameters": {}}])";

/// Pieces of lengths that follow from a number, 0: one.
template <typename Parser, typename Finish>
ParsedReply parsed(Parser parser, std::string_view text, unsigned cut, Finish finish) {
  ParsedReply reply;
  for (std::size_t at = 0; at < text.size();) {
    cut = cut * 1103515245U + 12345U;
    const std::size_t size = cut == 12345U ? text.size() : 1 + (cut >> 16) % 7;
    if (text.size() < 4096 && (cut & 0x300000U) == 0) parser = Parser(parser);  // as branches fork
    reply.add(parser.feed(text.substr(at, size)));
    at += std::min(size, text.size() - at);
  }
  reply.add(parser.finish(finish));
  return reply;
}

void check_same(const ParsedReply& one, const ParsedReply& other) {
  fuzz_check(one.content == other.content, "content does not depend on the cutting");
  fuzz_check(one.reasoning == other.reasoning, "thoughts do not depend on the cutting");
  fuzz_check(one.calls == other.calls, "calls do not depend on the cutting");
}

void check_calls(const ParsedReply& reply) {
  for (const ToolCall& call : reply.calls) {
    fuzz_check(call.name == "get_weather" || call.name == "get_time" || call.name == "get",
               "calls are of known tools");
    fuzz_check(call.arguments.starts_with('{') || (call.arguments.empty() && !call.complete),
               "arguments are an object");
    fuzz_check(!call.complete || test::is_json_object(call.arguments), "whole arguments are JSON");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const unsigned cut = data[0];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const ToolCallParser kCalls(kTools);
  for (const bool cut_short : {false, true}) {
    const ParsedReply whole = parsed(kCalls, text, 0, cut_short);
    check_same(whole, parsed(kCalls, text, cut + 1, cut_short));
    check_calls(whole);
    fuzz_check(!whole.calls.empty() || whole.content == text, "without calls all is content");
  }
  static const ReplyParser kThoughts(ReasoningTags{"<|channel>", "<channel|>", 1, 2, "thought"},
                                     false, kTools);
  check_same(parsed(kThoughts, text, 0, Finish::kEos),
             parsed(kThoughts, text, cut + 1, Finish::kEos));
  static const HarmonyParser kHarmony(kTools);
  check_same(parsed(kHarmony, text, 0, false), parsed(kHarmony, text, cut + 1, false));
  try {
    const chats::Json messages = chats::for_template(text);
    chats::with_short_ids(messages).dump(-1, ' ', false, chats::Json::error_handler_t::replace);
    chats::with_results_in_calls(messages).dump(-1, ' ', false,
                                                chats::Json::error_handler_t::replace);
  } catch (const Error&) {
  }
  return 0;
}
