#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/json.h"

// Requests of Anthropic's Messages API, in the library's words.
namespace dendrite::server {

/// What a request says, checked.
struct AnthropicRequest {
  std::string model;                 ///< as it was asked for; empty: any
  Json messages = Json::array();     ///< in OpenAI's form, system messages where they stood
  std::string reply_begins;          ///< text of the last message, where that is the assistant's
  Json tools = Json::array();        ///< in OpenAI's form: those that can be called
  std::string tool_choice = "auto";  ///< as ChatParams has it
  bool parallel_calls = true;
  Json variables = Json::object();  ///< of the template
  std::vector<std::string> stop;
  std::optional<Json> schema;   ///< output_config.format: what a text has to be
  std::int64_t max_tokens = 0;  ///< of a request that is to be counted: 0
  bool stream = false;
  Ignored ignored;  ///< what nothing was done with
};

/// Reads all fields but those of sampling. `counting`: the body is one of count_tokens, which has
/// no max_tokens. Throws Fault 400 that names the field.
AnthropicRequest read_anthropic(Fields& body, bool counting);

}  // namespace dendrite::server
