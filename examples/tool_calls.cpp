// Tool calls as JSON: several candidates are sampled in one batch from one prompt, an exact checker
// (tool_call.h) looks at each as it ends, and the first valid call drops the others in that step.
// With --constrained one candidate is enough: it is held to the schemas of the tools, in the form
// that the model writes calls in, so that it cannot be anything but a valid call. A tool whose
// schema cannot be compiled is named and left out.
//
//   tool_calls [--constrained] [MODEL [REQUEST [TOOLS.json]]]
//
// The shipped model was trained on the 24 tools of its tools.json and knows no others; any larger
// model that was trained to call tools takes those that the prompt lists.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>
#include <fstream>

#include "tool_call.h"

namespace {
using namespace dendrite;
using tool_call::Json;
using tool_call::OrderedJson;

std::string prompt(const Engine& engine, const Json& tools, const std::string& request) {
  const std::string rules =
      "Answer with one call of one of these tools and nothing else, as JSON of the form "
      "{\"name\": ..., \"arguments\": {...}}:\n" +
      tools.dump(1);
  if (!engine.info().has_chat_template) return rules + "\n\nRequest: " + request + "\nCall: ";
  return engine.render_chat(Json::array({{{"role", "system"}, {"content", rules}},
                                         {{"role", "user"}, {"content", request}}})
                                .dump());
}

OrderedJson read_tools(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(path + ": cannot be read; expected an array of tools");
  return OrderedJson::parse(file);
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool constrained = std::erase(arguments, "--constrained") > 0;
  const std::vector<std::string> defaults = {"models/dendrite-tools",
                                             "What will the weather be in Oslo tomorrow?",
                                             "models/dendrite-tools/tools.json"};
  while (arguments.size() < defaults.size()) arguments.push_back(defaults[arguments.size()]);
  const std::string& request = arguments[1];
  const OrderedJson schemas = read_tools(arguments[2]);
  const Json tools = schemas;
  const Engine engine = Engine::load(arguments[0]);
  Session session(engine, {.seed = 1});

  BestOfN strategy;
  strategy.n = 8;
  strategy.first_success = true;
  strategy.sampling = {.max_tokens = 200, .stop = {"</tool_call>"}, .temperature = 0.8};
  if (constrained) {
    strategy.n = 1;
    strategy.sampling.temperature = 0;
    strategy.sampling.stop.clear();  // the grammar says where a call ends
    const ToolGrammar grammar =
        ToolGrammars(engine).of(schemas.dump(), {.required = true, .parallel = false});
    for (const std::string& warning : grammar.warnings) {
      std::fprintf(stderr, "tool_calls: %s\n", warning.c_str());
    }
    strategy.sampling.constraint = grammar.constraint;
  }
  strategy.solved = [&](const Branch&, const std::string& answer) {
    const std::string problem = tool_call::problem(tools, answer);
    if (!problem.empty()) std::printf("a candidate is %s\n", problem.c_str());
    return problem.empty();
  };
  // The template, if any, has written the special tokens.
  Branch root = session.prefill(prompt(engine, tools, request),
                                {.add_special = !engine.info().has_chat_template});
  const SearchResult result = run(session, std::move(root), strategy);
  const Stats stats = session.stats();
  std::printf("%lld tokens computed, %lld as independent requests\n",
              static_cast<long long>(stats.tokens_computed),
              static_cast<long long>(stats.tokens_independent));
  if (!result.solved) {
    std::printf("no call: none of %d candidates is a valid call of these tools (%s)\n", strategy.n,
                name_of(result.finish));
    return 1;
  }
  const std::string call = tool_call::json_of(result.path.back().text);
  std::printf("%s\n", nlohmann::ordered_json::parse(call).dump().c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tool_calls: %s\n", error.what());
  return 1;
}
