#pragma once

#include "server/service.h"
#include "server/turn.h"

namespace dendrite::server {

/// A body of /v1/chat/completions, read.
struct ChatBody {
  TurnRequest turn;
  std::string model;
  bool stream = false;
  bool include_usage = false, continuous_usage = false;
  bool token_ids = false;
  bool names_tool = false;  ///< tool_choice is a function: the reply ends with "stop"
  Ignored ignored;
};

/// Throws Fault. In a helper thread: schemas are compiled.
ChatBody read_chat(const Service& service, const Json& body);

/// Messages in OpenAI's form, checked, as ChatModel takes them. Throws Fault naming the path.
Json read_messages(const Json& messages, const std::string& path);

}  // namespace dendrite::server
