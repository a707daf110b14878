#include <cstdio>
#include <filesystem>
#include <fstream>

#include "common.h"  // the command line's: where the shipped models are
#include "examples/tool_call.h"
#include "options.h"

// tool-calls: how many held-out requests get a valid call, and exactly the call that was asked for:
// by greedy decoding, by single samples, and by the first of several samples that a checker of the
// schemas finds valid.

namespace dendrite::bench {
namespace {

using Call = tool_call::Json;  // compares objects whatever the order of their keys

struct ToolCallsOptions {
  CommonOptions common;
  std::int64_t limit = 0;
  int n = 8;
  double temperature = 1.5;
  std::uint64_t seed = 0;
};

struct Request {
  std::string text;
  Call call;
  bool invented = false;  // a value of it is on no list of the training data
};

Call read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(path.string() + ": cannot be read; expected the tools of the model");
  return Call::parse(file);
}

std::vector<Request> read_requests(const std::filesystem::path& path, std::int64_t limit) {
  std::ifstream file(path);
  if (!file)
    throw Error(path.string() + ": cannot be read; expected the model's held-out requests");
  std::vector<Request> requests;
  for (std::string line; std::getline(file, line);) {
    const Call row = Call::parse(line);
    requests.push_back({row.at("request"), row.at("call"), row.at("invented")});
    if (limit > 0 && static_cast<std::int64_t>(requests.size()) == limit) break;
  }
  return requests;
}

/// Shares of answers that are valid calls, and that are the call that was asked for.
struct Tally {
  std::int64_t trials = 0, valid = 0, exact = 0;

  void count(const Call& tools, const Request& request, const std::string& answer) {
    ++trials;
    if (!tool_call::problem(tools, answer).empty()) return;
    ++valid;
    exact += Call::parse(tool_call::json_of(answer)) == request.call;
  }

  void report(Report& report, const std::string& name, const Json& params) const {
    if (trials == 0) return;
    for (const auto& [what, hits] : {std::pair{" valid", valid}, std::pair{" exact", exact}}) {
      report.add_share(name + what, params, "share", hits, trials, {{"hits", hits}});
    }
  }
};

struct Tallies {
  Tally greedy, samples, first_valid;
};

void ask(const Engine& engine, const Call& tools, const Request& request,
         const ToolCallsOptions& options, std::uint64_t seed, Tallies& tallies) {
  Session session(engine, {.seed = seed});
  const std::string prompt =
      engine.render_chat(Call::array({{{"role", "user"}, {"content", request.text}}}).dump());
  Branch root = session.prefill(prompt, {.add_special = false});

  std::vector<Branch> one = root.fork(1);
  tallies.greedy.count(tools, request, session.decode(one, {.temperature = 0})[0].text);

  const DecodeParams sampling{.temperature = options.temperature};
  std::vector<Branch> several = root.fork(options.n);
  for (const Generation& sample : session.decode(several, sampling)) {
    tallies.samples.count(tools, request, sample.text);
  }

  BestOfN strategy;
  strategy.n = options.n;
  strategy.first_success = true;
  strategy.sampling = sampling;
  strategy.solved = [&](const Branch&, const std::string& answer) {
    return tool_call::problem(tools, answer).empty();
  };
  const SearchResult result = run(session, root.fork(), strategy);
  tallies.first_valid.count(tools, request, result.solved ? result.path.back().text : "");
}

void run_bench(ToolCallsOptions options) {
  if (options.common.model.empty() && options.common.shape.empty()) {
    options.common.model =
        (std::filesystem::path(cli::default_model()).parent_path() / "dendrite-tools").string();
  }
  const std::filesystem::path folder = options.common.model;
  const Call tools = read_json(folder / "tools.json");
  const std::vector<Request> requests = read_requests(folder / "heldout.jsonl", options.limit);
  const Engine engine = options.common.load();
  Report report("tool-calls");
  report.describe(engine, options.common.model_name());
  for (const bool invented : {false, true}) {
    Tallies tallies;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].invented != invented) continue;
      ask(engine, tools, requests[i], options, options.seed + i, tallies);
    }
    const Json values = {{"values", invented ? "invented" : "listed"}};
    Json sampled = values;
    sampled["temperature"] = options.temperature;
    tallies.greedy.report(report, "greedy", values);
    tallies.samples.report(report, "one sample", sampled);
    sampled["n"] = options.n;
    tallies.first_valid.report(report, "first valid", sampled);
  }
  if (!options.common.json.empty()) report.write_json(options.common.json);
}

}  // namespace

void add_tool_calls(CLI::App& app) {
  auto options = std::make_shared<ToolCallsOptions>();
  CLI::App* command = app.add_subcommand(
      "tool-calls", "Held-out requests: valid and exact tool calls, greedy and sampled");
  options->common.add_to(*command);
  command->add_option("--limit", options->limit, "At most so many requests; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--n", options->n, "Samples a request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "Of the samples")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of all random draws")->capture_default_str();
  command->callback([options] { run_bench(*options); });
}

}  // namespace dendrite::bench
