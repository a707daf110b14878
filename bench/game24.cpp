#include "game24.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "game24_search.h"
#include "machine.h"
#include "options.h"
#include "puzzles.h"

// game24: how many held-out puzzles each strategy solves with the shipped model, and what that
// takes.

namespace dendrite::bench {
namespace {

using game24::Puzzle;

struct Game24Options {
  CommonOptions common;
  std::string file;
  int target = 24;
  std::int64_t limit = 0;
  std::uint64_t seed = 0;
  std::vector<std::string> searches = {"best-of-n:8",  "best-of-n:32", "beam:8", "beam:32",
                                       "tot:1",        "tot:3",        "tot:5",  "depth-first:3",
                                       "best-first:3", "mcts:8"};
};

using Strategy = std::function<bool(Session&, const Puzzle&)>;

void measure(const Engine& engine, const std::vector<Puzzle>& puzzles, std::uint64_t seed,
             const std::string& name, Json params, const Strategy& strategy, Report& report) {
  std::int64_t solved = 0, computed = 0, independent = 0;
  std::vector<double> seconds;
  for (std::size_t i = 0; i < puzzles.size(); ++i) {
    Session session(engine, {.seed = seed + i});
    const double begin = now_seconds();
    solved += strategy(session, puzzles[i]);
    seconds.push_back(now_seconds() - begin);
    const Stats stats = session.stats();
    computed += stats.tokens_computed;
    independent += stats.tokens_independent;
  }
  const auto count = static_cast<std::int64_t>(puzzles.size());
  params["puzzles"] = count;
  report.add_share(name, params, "solved", solved, count,
                   {{"solved", solved},
                    {"solvable", count},
                    {"tokens_computed", computed},
                    {"tokens_independent", independent}});
  report.add(name + " time", params, "s", seconds);
  std::printf("%-24s solved %lld of %lld; tokens computed %lld, as independent prompts %lld\n", "",
              static_cast<long long>(solved), static_cast<long long>(count),
              static_cast<long long>(computed), static_cast<long long>(independent));
}

void run(const Game24Options& options) {
  const std::string file = options.file.empty() ? puzzles_for(options.common.model) : options.file;
  const std::vector<Puzzle> puzzles = read_puzzles(file, options.target, options.limit);
  const Engine engine = options.common.load();
  Report report("game24");
  report.describe(engine, options.common.model_name());
  const auto row = [&](const std::string& name, Json params, const Strategy& strategy) {
    params["set"] = std::filesystem::path(file).stem().string();
    measure(engine, puzzles, options.seed, name, std::move(params), strategy, report);
  };
  row("greedy", Json::object(), [](Session& session, const Puzzle& puzzle) {
    return game24::greedy(session, puzzle).solved;
  });
  for (const std::string& search : options.searches) {
    const std::size_t colon = search.find(':');
    const std::string name = search.substr(0, colon);
    const std::vector<std::string>& names = game24::strategy_names();
    if (colon == std::string::npos || std::find(names.begin(), names.end(), name) == names.end()) {
      throw Error("--search is \"" + search +
                  "\"; expected a strategy of `dendrite solve` and its "
                  "width, like tot:3");
    }
    const int width = std::atoi(search.c_str() + colon + 1);
    row(name, {{"width", width}}, [&name, width](Session& session, const Puzzle& puzzle) {
      return game24::solve(session, puzzle, {.strategy = name, .width = width}).solved;
    });
  }
  if (!options.common.json.empty()) report.write_json(options.common.json);
}

}  // namespace

void add_game24(CLI::App& app) {
  auto options = std::make_shared<Game24Options>();
  CLI::App* command =
      app.add_subcommand("game24", "Held-out puzzles: greedy, samples, beams, tree searches");
  options->common.add_to(*command);
  command->add_option(
      "--file", options->file,
      "Puzzles (default: game24_heldout.txt beside --model, else beside the shipped model)");
  command->add_option("--target", options->target, "What to make of the numbers")
      ->capture_default_str();
  command->add_option("--limit", options->limit, "At most so many solvable puzzles; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", options->seed, "Of all random draws")->capture_default_str();
  command
      ->add_option("--search", options->searches,
                   "Strategies of `dendrite solve` with their width, one row each")
      ->type_name("NAME:WIDTH")
      ->delimiter(',')
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
