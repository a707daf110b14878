#include "game24.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "common.h"  // the command line's: where the shipped model is
#include "game24_search.h"
#include "machine.h"
#include "options.h"

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

/// Solvable puzzles of a file with lines "0 1 1 1 3" or "1 4 5 6 10" (whether, then the numbers),
/// or "206: 1 5 11 16 18" (all solvable, each with its target).
std::vector<Puzzle> read_puzzles(const std::string& path, int target, std::int64_t limit) {
  std::ifstream file(path);
  if (!file) throw Error(path + ": cannot be read; expected a file of puzzles");
  std::vector<Puzzle> puzzles;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Puzzle puzzle{{}, target};
    int solvable = 1;
    const std::size_t colon = line.find(':');
    std::istringstream words(colon == std::string::npos ? line : line.substr(colon + 1));
    if (colon == std::string::npos) {
      words >> solvable;
    } else {
      puzzle.target = std::atoi(line.c_str());
    }
    for (int number = 0; words >> number;) puzzle.numbers.push_back(number);
    if (solvable == 0) continue;
    puzzle.numbers = game24::check_numbers(puzzle.numbers, puzzle.target);
    puzzles.push_back(std::move(puzzle));
    if (limit > 0 && static_cast<std::int64_t>(puzzles.size()) == limit) break;
  }
  if (puzzles.empty()) {
    throw Error(path +
                ": has no solvable puzzle; expected lines like \"1 4 5 6 10\" or \"50: 2 3 4 5\"");
  }
  return puzzles;
}

/// Held-out puzzles lie beside their model. A model without any gets the shipped model's.
std::string puzzles_for(const std::string& model) {
  std::vector<std::string> folders;
  if (!model.empty()) folders.push_back(model);
  try {
    folders.push_back(cli::default_model());
  } catch (const Error&) {
    if (model.empty()) throw;
  }
  std::string missing;
  for (const std::string& folder : folders) {
    const std::string path = (std::filesystem::path(folder) / "game24_heldout.txt").string();
    if (std::filesystem::exists(path)) return path;
    missing += (missing.empty() ? "" : ", ") + path;
  }
  throw Error("no puzzles, looked for: " + missing + "; expected one of these files, or --file");
}

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
