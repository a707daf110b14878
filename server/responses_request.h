#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/json.h"

// Requests of OpenAI's Responses API, in the library's words.
namespace dendrite::server {

/// What a request says, checked. Its input is read apart, see responses_items.h.
struct ResponsesRequest {
  std::string model;  ///< as it was asked for; empty: any
  Json input;         ///< as it came
  std::string instructions;
  std::string previous_id;  ///< empty: none
  bool store = true, stream = false, background = false;
  Json tools = Json::array();  ///< in OpenAI's form for chats: those that can be called
  std::map<std::string, std::string> namespaces;  ///< of functions that stand in one
  std::string tool_choice = "auto";               ///< as ChatParams has it
  bool parallel_calls = true;
  Json variables = Json::object();  ///< of the template
  std::optional<std::int64_t> max_tokens;
  std::optional<Json> schema;  ///< text.format: what a text has to be
  bool any_object = false;     ///< the same: any JSON object
  bool logprobs = false;       ///< of the text
  int top_logprobs = 0;
  bool packed_reasoning = false;  ///< reasoning items carry their text for who keeps nothing else
  Json echo = Json::object();     ///< fields that a response says again
  Ignored ignored;                ///< what nothing was done with
};

/// Reads all fields but those of sampling. Throws Fault 400 that names the field.
ResponsesRequest read_responses(Fields& body);

}  // namespace dendrite::server
