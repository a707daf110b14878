#include "speculate_puzzles.h"

#include <algorithm>
#include <filesystem>

#include "engine/branches/engine_counts.h"
#include "game24_search.h"
#include "puzzles.h"
#include "stats_since.h"

namespace dendrite::bench {
namespace {

using game24::Puzzle;

/// All puzzles, one after the other.
struct Pass {
  double seconds = 0;
  Stats stats;  // of what was timed
  std::int64_t solved = 0;
  std::vector<std::string> results;  // what each search said, word for word

  double tokens_per_second() const { return static_cast<double>(stats.tokens_generated) / seconds; }
};

std::string words_of(const SearchResult& result) {
  std::string words = result.solved ? "solved:" : "not solved:";
  for (const ThoughtRecord& thought : result.tree) words += ' ' + thought.text;
  return words;
}

class PuzzleSearches {
 public:
  PuzzleSearches(const Engine& engine, const PuzzleOptions& options, const std::string& model,
                 Clock clock)
      : engine_(engine),
        options_(options),
        clock_(clock),
        puzzles_(read_puzzles(options.file.empty() ? puzzles_for(model) : options.file, 24,
                              options.puzzles)) {}

  /// "fresh": each puzzle in a session of its own. "one": one session for all. "again": one that
  /// has searched for all of them before, by other draws.
  Pass run(const std::string& sessions, game24::Search search, int trial) const {
    Pass pass;
    search.strategy = options_.strategy;
    search.width = options_.width;
    std::optional<Session> session;
    const auto begin_session = [&](std::size_t number) {
      session.emplace(engine_, SessionOptions{.seed = options_.seed + number,
                                              .stream = static_cast<std::uint64_t>(trial + 1)});
    };
    begin_session(0);
    if (sessions == "again") {
      for (const Puzzle& puzzle : puzzles_) game24::solve(*session, puzzle, search);
    }
    for (std::size_t i = 0; i < puzzles_.size(); ++i) {
      if (sessions == "fresh") begin_session(i);
      const Stats before = session->stats();
      const double begin = now_seconds(clock_);
      const SearchResult result = game24::solve(*session, puzzles_[i], search);
      pass.seconds += now_seconds(clock_) - begin;
      const Stats since = stats_since(before, session->stats());
      add(pass.stats, since);
      pass.stats.speculation.add(since.speculation);
      pass.solved += result.solved ? 1 : 0;
      pass.results.push_back(words_of(result));
    }
    return pass;
  }

  std::int64_t count() const { return std::ssize(puzzles_); }

 private:
  const Engine engine_;
  const PuzzleOptions& options_;
  const Clock clock_;
  const std::vector<Puzzle> puzzles_;
};

/// The passes of one mode, or of none.
struct Column {
  std::vector<double> seconds, rates, speedups;
  Pass last;

  void add(Pass pass, double plain_seconds) {
    seconds.push_back(pass.seconds);
    rates.push_back(pass.tokens_per_second());
    speedups.push_back(plain_seconds / pass.seconds);
    last = std::move(pass);
  }

  void tell(Json params, std::int64_t puzzles, Report& report) const {
    const Stats& stats = last.stats;
    report.add("search", params, "s", seconds);
    report.add({"tokens",
                params,
                "tok/s",
                summarize(rates, Better::kHigh),
                {{"tokens_generated", stats.tokens_generated},
                 {"tokens_computed", stats.tokens_computed},
                 {"steps", stats.steps},
                 {"steps_drafted", stats.speculation.steps_drafted},
                 {"tokens_drafted", stats.tokens_drafted},
                 {"tokens_accepted", stats.tokens_accepted},
                 {"solved", last.solved},
                 {"puzzles", puzzles}},
                rates});
    report.add_value("steps", params, "steps", static_cast<double>(stats.steps));
  }
};

}  // namespace

void PuzzleOptions::add_to(CLI::App& app) {
  app.add_option("--file", file,
                 "Puzzles (default: game24_heldout.txt beside --model, else the shipped model's)");
  app.add_option("--puzzles", puzzles, "At most so many solvable ones; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--strategy", strategy, "How to search them")
      ->check(CLI::IsMember({"tot", "depth-first", "best-first", "mcts"}))
      ->capture_default_str();
  add_count(app, "--width", width, "... as for `dendrite solve`");
  app.add_option("--samples", samples,
                 "Steps that are drawn from each node. 0: all that are likely, as `dendrite solve` "
                 "has it, by distributions alone: no call of it drafts, and what is seen is what "
                 "speculation costs where it has no part")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--sessions", sessions,
                 "fresh: each puzzle is searched for by a session of its own, which has heard "
                 "nothing; one: by one session after the other; again: by one that has searched "
                 "for all of them before, by other draws, which is not timed")
      ->delimiter(',')
      ->check(CLI::IsMember({"fresh", "one", "again"}))
      ->capture_default_str();
  app.add_option("--seed", seed, "Of all random draws")->capture_default_str();
}

void measure_puzzles(const Engine& engine, const PuzzleOptions& options, const std::string& model,
                     std::vector<DraftMode>& modes, Clock clock, int trials, Report& report) {
  const PuzzleSearches searches(engine, options, model, clock);
  for (const int samples : options.samples) {
    for (const std::string& sessions : options.sessions) {
      Column plain;
      std::vector<Column> columns(modes.size());
      for (int trial = -1; trial < trials; ++trial) {
        Pass without = searches.run(sessions, {.samples = samples}, trial);
        for (std::size_t i = 0; i < modes.size(); ++i) {
          Pass with = modes[i].with({}, [&](const DecodeParams& params) {
            return searches.run(sessions,
                                {.samples = samples,
                                 .speculate = params.speculate,
                                 .speculate_budget = params.speculate_budget},
                                trial);
          });
          if (with.results != without.results) {
            throw Error("a search with " + modes[i].name() +
                        " is not the search without; expected the same");
          }
          if (trial >= 0) columns[i].add(std::move(with), without.seconds);
        }
        if (trial >= 0) plain.add(std::move(without), without.seconds);
      }
      Json params{{"strategy", options.strategy},
                  {"width", options.width},
                  {"samples", samples},
                  {"sessions", sessions}};
      Json of_plain = params;
      of_plain["mode"] = "plain";
      plain.tell(of_plain, searches.count(), report);
      for (std::size_t i = 0; i < modes.size(); ++i) {
        Json of_mode = params;
        of_mode.update(modes[i].params());
        columns[i].tell(of_mode, searches.count(), report);
        report.add("speedup", of_mode, "x", columns[i].speedups, Better::kHigh);
      }
    }
  }
}

}  // namespace dendrite::bench
