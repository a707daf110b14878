#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>

#include "agent_modes.h"
#include "agents_prefill.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "options.h"

// agents: several agents at once. Each runs a tree of thoughts (`tot`), or decodes one branch
// (`callers`), in a session of its own:
//
//   joined     threads on one engine, whose calls share steps
//   turns      the same, but one call at a time
//   processes  an engine and a share of the threads for each
//   one-call   the branches of all agents in the calls of one thread: what the rows allow, without
//              any scheduling; its prompts are computed one after the other
//   alone      the first agent without the others
//
// All begin at once, and in all modes an agent draws the same tokens, which is checked. Last,
// `prefill`: see agents_prefill.h.

namespace dendrite::bench {
namespace {

struct AgentsOptions {
  CommonOptions common;
  std::vector<std::string> works = {"tot", "callers"};
  std::vector<std::string> modes = {"joined", "turns", "processes", "one-call", "alone"};
  std::vector<int> agents = {1, 2, 4, 8, 32};
  std::vector<int> callers = {16};
  AgentWork tot{.name = "tot",
                .prompt_length = 128,
                .depth = 4,
                .width = 4,
                .keep = 2,
                .length = 16,
                .judge_length = 8};
  AgentWork caller{.name = "callers", .prompt_length = 32, .length = 128};
  LongPromptOptions prefill;
  int trials = 3;
  int serve_threads = 0;  // not 0: this process is an agent of `processes`
};

/// One mode's trials.
struct Column {
  std::string mode;
  std::function<AgentRound(int trial)> run;
  std::vector<double> seconds{};
  std::vector<std::vector<double>> agent_s{}, first_ms{}, gaps_ms{};
  std::vector<double> steps{}, rows_of_step{}, early{}, between{};

  /// `before`, `after`: the engine's statistics.
  void count(const AgentRound& round, const EngineStats& before, const EngineStats& after) {
    seconds.push_back(round.seconds());
    const auto made = static_cast<double>(after.steps - before.steps);
    steps.push_back(made);
    rows_of_step.push_back(static_cast<double>(after.rows - before.rows) / made);
    early.push_back(static_cast<double>(after.steps_early - before.steps_early) / made);
    between.push_back(1 - (after.step_seconds - before.step_seconds) / round.seconds());
    std::vector<double>& agents = agent_s.emplace_back();
    std::vector<double>& firsts = first_ms.emplace_back();
    std::vector<double>& gaps = gaps_ms.emplace_back();
    for (const AgentRun& run : round.runs) {
      agents.push_back(run.end - round.begin);
      firsts.push_back((run.token_times[0] - round.begin) * 1e3);
      for (std::size_t i = 1; i < run.token_times.size(); ++i) {
        gaps.push_back((run.token_times[i] - run.token_times[i - 1]) * 1e3);
      }
    }
  }

  double gap_ms() const {
    std::vector<double> medians;
    for (const std::vector<double>& gaps : gaps_ms) medians.push_back(median(gaps));
    return median(medians);
  }
};

class AgentsBench {
 public:
  AgentsBench(const AgentsOptions& options, Report& report)
      : options_(options), engine_(load(options)), report_(report) {
    report_.describe(engine_, options.common.model_name());
  }

  /// With pages for as many agents of a work as there are at most at once.
  static Engine load(const AgentsOptions& options) {
    CommonOptions common = options.common;
    common.engine.prefix_index = false;  // every prompt is to be computed
    if (options.serve_threads > 0) common.engine.threads = options.serve_threads;
    if (common.engine.kv_tokens == 0) {
      const bool one = options.serve_threads > 0;
      const int agents = one ? 1 : std::ranges::max(options.agents);
      const int callers = one ? 1 : std::ranges::max(options.callers);
      common.engine.kv_tokens =
          std::max(agents * options.tot.kv_tokens(), callers * options.caller.kv_tokens()) + 1024;
    }
    return common.load();
  }

  void measure(const AgentWork& work, int agents) {
    std::vector<Column> columns;
    for (const std::string& mode : options_.modes) {
      if (agents == 1 && mode != "joined") continue;
      if (auto run = runner(mode, work, agents)) columns.push_back({mode, std::move(run)});
    }
    // On a GPU the first passes of a size load and record kernels.
    const int uncounted = engine_.info().device == "cpu" ? 1 : 2;
    for (int trial = 0; trial < uncounted + options_.trials; ++trial) {
      std::vector<AgentRun> expected;
      for (Column& column : columns) {
        const EngineStats before = engine_.stats();
        AgentRound round = column.run(trial);
        if (trial >= uncounted) column.count(round, before, engine_.stats());
        // The callers of one call all sample like the first.
        if (!(work.caller() && column.mode == "one-call")) check(round, column.mode, expected);
      }
    }
    report(columns, work, agents);
  }

 private:
  /// How a mode runs; empty where it cannot, which is said.
  std::function<AgentRound(int)> runner(const std::string& mode, const AgentWork& work,
                                        int agents) {
    if (mode == "joined") {
      return [=, this](int trial) { return run_threads(engine_, work, agents, trial, nullptr); };
    }
    if (mode == "turns") {
      return [=, this](int trial) { return run_threads(engine_, work, agents, trial, &turns_); };
    }
    if (mode == "alone") {
      return [=, this](int trial) { return run_threads(engine_, work, 1, trial, nullptr); };
    }
    if (mode == "one-call") {
      return [=, this](int trial) { return run_one_call(engine_, work, agents, trial); };
    }
    try {
      check_room(work, agents);
      auto processes =
          std::make_shared<AgentProcesses>(agents, std::max(1, engine_.info().threads / agents));
      processes->run(work, 0);
      return [=](int trial) { return processes->run(work, trial); };
    } catch (const Error& error) {
      std::printf("%d processes are left out: %s\n", agents, error.what());
      return {};
    }
  }

  /// Throws Error where so many engines more do not fit, before the system runs out of memory.
  void check_room(const AgentWork& work, int agents) const {
    constexpr std::int64_t kPasses = std::int64_t{1} << 28;  // beside weights and pages, at least
    const EngineInfo& info = engine_.info();
    const std::int64_t wanted =
        agents * (info.weight_bytes + work.kv_tokens() * info.kv_token_bytes + kPasses);
    const std::int64_t free = core_of(engine_)->backend->memory().free;
    if (wanted <= free) return;
    throw Error("they take " + size_text(wanted) + ", and " + size_text(free) + " are free");
  }

  /// `expected`: what agents drew in this trial before, in whatever mode.
  void check(const AgentRound& round, const std::string& mode,
             std::vector<AgentRun>& expected) const {
    if (!options_.common.engine.deterministic) return;
    for (std::size_t i = 0; i < std::min(round.runs.size(), expected.size()); ++i) {
      if (round.runs[i].tokens == expected[i].tokens) continue;
      throw Error(mode + ": agent " + std::to_string(i) +
                  " drew other tokens than in another mode; expected the same in any company");
    }
    if (expected.size() < round.runs.size()) expected = round.runs;
  }

  void report(const std::vector<Column>& columns, const AgentWork& work, int agents) {
    Json params{{"work", work.name}, {"agents", agents}};
    params.update(work.params());
    for (const Column& column : columns) {
      report_.add(column.mode, params, "s", column.seconds);
      report_.add_pooled(column.mode + ", an agent", params, "s", column.agent_s);
      report_.add_pooled(column.mode + ", first token", params, "ms", column.first_ms);
      report_.add_pooled(column.mode + ", gap", params, "ms", column.gaps_ms);
      if (column.mode == "processes") continue;  // their steps are their engines'
      report_.add(column.mode + ", steps", params, "steps", column.steps);
      report_.add(column.mode + ", rows of a step", params, "rows", column.rows_of_step);
      report_.add(column.mode + ", steps begun early", params, "of steps", column.early);
      report_.add(column.mode + ", between steps", params, "of time", column.between);
    }
    const auto ratio = [&](const std::string& name, const Column* ours, const Column* theirs) {
      if (ours == nullptr || theirs == nullptr) return;
      std::vector<double> ratios;
      for (std::size_t i = 0; i < ours->seconds.size(); ++i) {
        ratios.push_back(theirs->seconds[i] / ours->seconds[i]);
      }
      report_.add_ratio(name, params, ratios, median(ours->seconds), median(theirs->seconds));
    };
    const auto find = [&](const std::string& mode) -> const Column* {
      const auto found = std::ranges::find(columns, mode, &Column::mode);
      return found == columns.end() ? nullptr : &*found;
    };
    const Column *joined = find("joined"), *one_call = find("one-call"), *alone = find("alone");
    ratio("joined_vs_turns", joined, find("turns"));
    ratio("joined_vs_processes", joined, find("processes"));
    ratio("rows_allow", one_call, find("turns"));
    ratio("share_of_rows", joined, one_call);
    if (one_call != nullptr && alone != nullptr) {
      report_.add_value(
          "steps_allow", params, "x", agents * alone->gap_ms() / one_call->gap_ms(),
          {{"step_of_one_ms", alone->gap_ms()}, {"step_of_all_ms", one_call->gap_ms()}});
    }
  }

  const AgentsOptions& options_;
  Engine engine_;
  Report& report_;
  std::mutex turns_;
};

void run(const AgentsOptions& options) {
  if (options.serve_threads > 0) return serve_agent(AgentsBench::load(options));
  Report report("agents");
  const auto asked = [&](const char* work) { return std::ranges::count(options.works, work) > 0; };
  if (asked("tot") || asked("callers")) {
    AgentsBench bench(options, report);
    if (asked("tot")) {
      for (const int agents : options.agents) bench.measure(options.tot, agents);
    }
    if (asked("callers")) {
      for (const int callers : options.callers) bench.measure(options.caller, callers);
    }
  }
  if (asked("prefill")) measure_prefill(options.common, options.prefill, options.trials, report);
  if (!options.common.json.empty()) report.write_json(options.common.json);
}

void add_sizes(CLI::App& app, AgentsOptions& options) {
  AgentWork& tot = options.tot;
  add_count(app, "--prompt-length,--prefix", tot.prompt_length, "tot: tokens of a prompt");
  add_count(app, "--depth", tot.depth, "tot: levels");
  add_count(app, "--width", tot.width, "tot: children of a kept path");
  add_count(app, "--keep", tot.keep, "tot: paths that go on to the next level");
  add_count(app, "--length", tot.length, "tot: tokens of a child");
  app.add_option("--judge-length", tot.judge_length,
                 "tot: tokens of the suffix whose log-prob judges a child; 0: its own log-prob")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_count(app, "--caller-prompt", options.caller.prompt_length, "callers: tokens of a prompt");
  add_count(app, "--caller-length", options.caller.length, "callers: tokens of the branch");
  app.add_option("--targets", options.prefill.targets_ms,
                 "prefill: step targets in ms; inf: none (default: inf and 200 to 25, on a GPU 100 "
                 "to 6.25)")
      ->delimiter(',')
      ->check(CLI::Range(0.01, std::numeric_limits<double>::infinity()));
  app.add_option("--long-prompt", options.prefill.prompt_length,
                 "prefill: tokens of the prompt; 0: 32768, on a CPU 960")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_count(app, "--others", options.prefill.others, "prefill: branches that decode beside it");
  add_count(app, "--others-prompt", options.prefill.others_prompt,
            "prefill: tokens of their prompts");
  add_count(app, "--others-length", options.prefill.others_length,
            "prefill: tokens of their calls");
}

}  // namespace

void add_agents(CLI::App& app) {
  auto options = std::make_shared<AgentsOptions>();
  CLI::App* command = app.add_subcommand(
      "agents",
      "Agents at once on one engine: joined, in turns, in processes; a long prompt beside");
  options->common.add_to(*command);
  command->add_option("--work", options->works, "Trees of thoughts, single branches, a long prompt")
      ->delimiter(',')
      ->check(CLI::IsMember({"tot", "callers", "prefill"}))
      ->capture_default_str();
  command->add_option("--modes", options->modes, "How tot and callers run")
      ->delimiter(',')
      ->check(CLI::IsMember({"joined", "turns", "processes", "one-call", "alone"}))
      ->capture_default_str();
  for (const auto& [name, counts] :
       {std::pair{"--agents", &options->agents}, std::pair{"--callers", &options->callers}}) {
    command->add_option(name, *counts, "How many at once, some rows each")
        ->delimiter(',')
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
  }
  add_count(*command, "--trials", options->trials, "Trials of each");
  add_sizes(*command, *options);
  command->add_option("--serve-agent", options->serve_threads)->group("");  // hidden
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
