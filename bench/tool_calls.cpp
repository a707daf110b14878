#include <cstdio>
#include <filesystem>

#include "common.h"  // the command line's: where the shipped models are
#include "options.h"
#include "tool_requests.h"

// tool-calls: how many held-out requests get a valid call, and exactly the call that was asked for,
// with answers held to the schemas of the tools and without: by greedy decoding, by single samples
// at some temperatures, and by the first of several free samples that a checker finds valid.

namespace dendrite::bench {
namespace {

using Call = tool_call::Json;

struct ToolCallsOptions {
  CommonOptions common;
  std::int64_t limit = 0;
  int n = 8;
  std::vector<double> temperatures = {1, 1.5};
  std::uint64_t seed = 0;
};

/// Shares of answers that are valid calls, and that are the call that was asked for.
struct Tally {
  std::int64_t trials = 0, valid = 0, exact = 0;

  void count(const Call& tools, const ToolRequest& request, const std::string& answer) {
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

/// Answers of one temperature.
struct Tallies {
  Tally free, constrained, first_valid;
};

/// Asks requests of one model, one session a request.
class Asking {
 public:
  Asking(const Engine& engine, const tool_call::OrderedJson& tools, const ToolCallsOptions& options)
      : engine_(engine),
        tools_(tools),
        options_(options),
        constraint_(call_constraint(engine, tools)) {}

  void ask(const ToolRequest& request, double temperature, std::uint64_t seed,
           Tallies& tallies) const {
    Session session(engine_, {.seed = seed});
    Branch root = session.prefill(tool_prompt(engine_, request), {.add_special = false});
    const int n = temperature == 0 ? 1 : options_.n;
    DecodeParams params{.temperature = temperature};
    std::vector<Branch> free = root.fork(n), constrained = root.fork(n);
    count(session.decode(free, params), request, tallies.free);
    params.constraint = constraint_;
    count(session.decode(constrained, params), request, tallies.constrained);
    if (n == 1) return;

    BestOfN strategy;
    strategy.n = n;
    strategy.first_success = true;
    strategy.sampling = {.temperature = temperature};
    strategy.solved = [&](const Branch&, const std::string& answer) {
      return tool_call::problem(tools_, answer).empty();
    };
    const SearchResult result = run(session, root.fork(), strategy);
    tallies.first_valid.count(tools_, request, result.solved ? result.path.back().text : "");
  }

 private:
  void count(const std::vector<Generation>& answers, const ToolRequest& request,
             Tally& tally) const {
    for (const Generation& answer : answers) tally.count(tools_, request, answer.text);
  }

  const Engine& engine_;
  const Call tools_;
  const ToolCallsOptions& options_;
  const Constraint constraint_;
};

void run_bench(ToolCallsOptions options) {
  if (options.common.model.empty() && options.common.shape.empty()) {
    options.common.model =
        (std::filesystem::path(cli::default_model()).parent_path() / "dendrite-tools").string();
  }
  const std::filesystem::path folder = options.common.model;
  const std::vector<ToolRequest> requests =
      read_tool_requests(folder / "heldout.jsonl", options.limit);
  const Engine engine = options.common.load();
  const Asking asking(engine, read_tools(folder / "tools.json"), options);
  Report report("tool-calls");
  report.describe(engine, options.common.model_name());
  options.temperatures.insert(options.temperatures.begin(), 0);
  for (const bool invented : {false, true}) {
    for (const double temperature : options.temperatures) {
      Tallies tallies;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        if (requests[i].invented != invented) continue;
        asking.ask(requests[i], temperature, options.seed + i, tallies);
      }
      Json params = {{"values", invented ? "invented" : "listed"}, {"temperature", temperature}};
      tallies.free.report(report, "free", params);
      tallies.constrained.report(report, "constrained", params);
      params["n"] = options.n;
      tallies.first_valid.report(report, "first valid", params);
    }
  }
  if (!options.common.json.empty()) report.write_json(options.common.json);
}

}  // namespace

void add_tool_calls(CLI::App& app) {
  auto options = std::make_shared<ToolCallsOptions>();
  CLI::App* command = app.add_subcommand(
      "tool-calls", "Held-out requests: valid and exact tool calls, free and constrained");
  options->common.add_to(*command);
  command->add_option("--limit", options->limit, "At most so many requests; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--n", options->n, "Samples a request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", options->temperatures, "Of the samples, beside greedy ones")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of all random draws")->capture_default_str();
  command->callback([options] { run_bench(*options); });
}

}  // namespace dendrite::bench
