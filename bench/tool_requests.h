#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "examples/tool_call.h"

namespace dendrite::bench {

struct ToolRequest {
  std::string text;
  tool_call::Json call;   // compares objects whatever the order of their keys
  bool invented = false;  // a value of it is on no list of the training data
};

/// The tools of a model that calls some.
tool_call::OrderedJson read_tools(const std::filesystem::path& path);
/// Its held-out requests, at most `limit`; 0: all.
std::vector<ToolRequest> read_tool_requests(const std::filesystem::path& path, std::int64_t limit);
/// One call of one of the tools, and nothing else, as the model writes calls.
Constraint call_constraint(const Engine& engine, const tool_call::OrderedJson& tools);
/// To be encoded without special tokens.
std::string tool_prompt(const Engine& engine, const ToolRequest& request);

}  // namespace dendrite::bench
