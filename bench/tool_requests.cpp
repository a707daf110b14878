#include "tool_requests.h"

#include <fstream>

namespace dendrite::bench {

using tool_call::Json;

tool_call::OrderedJson read_tools(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(path.string() + ": cannot be read; expected the tools of the model");
  return tool_call::OrderedJson::parse(file);
}

std::vector<ToolRequest> read_tool_requests(const std::filesystem::path& path, std::int64_t limit) {
  std::ifstream file(path);
  if (!file)
    throw Error(path.string() + ": cannot be read; expected the model's held-out requests");
  std::vector<ToolRequest> requests;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    requests.push_back({row.at("request"), row.at("call"), row.at("invented")});
    if (limit > 0 && static_cast<std::int64_t>(requests.size()) == limit) break;
  }
  return requests;
}

Constraint call_constraint(const Engine& engine, const tool_call::OrderedJson& tools) {
  return ToolGrammars(engine)
      .of(tools.dump(), {.required = true, .parallel = false})
      .constraint.value();
}

std::string tool_prompt(const Engine& engine, const ToolRequest& request) {
  return engine.render_chat(Json::array({{{"role", "user"}, {"content", request.text}}}).dump());
}

}  // namespace dendrite::bench
