#include <chrono>
#include <cstdio>
#include <fstream>

#include "common.h"
#include "game24_search.h"
#include "observe.h"
#include "watch.h"

namespace dendrite::cli {
namespace {

using game24::Attempt;
using game24::Puzzle;
using game24::Solvable;

struct SolveFlags {
  CommonFlags common;
  ObserveFlags observe;
  WatchFlags watch;
  std::vector<int> numbers;
  int target = 24;
  std::string strategy = "tot";
  int width = 5;
  int samples = 0;
  bool constrain = false;
  Speculate speculate = Speculate::kOff;
  std::int64_t speculate_budget = 16;
  std::int64_t budget_tokens = 0;
  std::string trace;
};

/// What a strategy found, in one form for all of them.
struct Answer {
  std::vector<ThoughtRecord> steps;  // generated ones only; empty: no solution found
  Finish finish = Finish::kStop;
};

struct Colours {
  const char *dim = "", *good = "", *bad = "", *bold = "", *off = "";
};

Colours colours() {
  if (!use_colours()) return {};
  return {"\033[2m", "\033[32m", "\033[31m", "\033[1m", "\033[0m"};
}

std::uint64_t number(BranchId id) {
  return static_cast<std::uint64_t>(id);
}

/// Prints the tree as it grows: kept steps in full, pruned ones as a count.
class TreePrinter {
 public:
  explicit TreePrinter(bool silent) : silent_(silent), c_(colours()) {}

  void on(const SearchEvent& event) {
    if (silent_) return;
    const Thought& t = *event.thought;
    if (t.depth != depth_) flush(t.depth);
    if (event.kind == SearchEvent::Kind::kKept) {
      std::printf("%*s%s+ %-24s%s judge %.3f  %snode %lld of %lld%s\n", 2 * t.depth, "", c_.good,
                  t.text.c_str(), c_.off, t.value, c_.dim, static_cast<long long>(t.node),
                  static_cast<long long>(t.parent), c_.off);
      std::fflush(stdout);
    } else if (event.kind == SearchEvent::Kind::kPruned) {
      ++pruned_;
      best_pruned_ = std::max(best_pruned_, t.value);
    }
  }

  void flush(int next_depth) {
    if (!silent_ && pruned_ > 0) {
      std::printf("%*s%s- %d more, best judge %.3f: pruned%s\n", 2 * depth_, "", c_.dim, pruned_,
                  best_pruned_, c_.off);
    }
    depth_ = next_depth;
    pruned_ = 0;
    best_pruned_ = 0;
  }

 private:
  bool silent_;
  Colours c_;
  int depth_ = 0;
  int pruned_ = 0;
  double best_pruned_ = 0;
};

/// The steps of the branch that solves, each with the number of the branch that ended with it.
std::vector<ThoughtRecord> solution_of(const SearchResult& result) {
  if (!result.solved) return {};
  const std::vector<std::string> texts = game24::steps_of(result.branch.text());
  if (result.path.size() == texts.size()) return result.path;  // a thought was a step
  std::vector<ThoughtRecord> steps;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ThoughtRecord& step = steps.emplace_back();
    step.branch_id = result.branch.id();
    step.depth = static_cast<int>(i) + 1;
    step.text = texts[i];
    step.value = 1;
  }
  return steps;
}

std::ofstream open_trace(const SolveFlags& flags) {
  std::ofstream trace;
  if (flags.trace.empty()) return trace;
  trace.open(flags.trace, std::ios::binary);
  if (!trace) throw Error(flags.trace + ": cannot be written (--trace)");
  return trace;
}

Answer search(Session& session, const Puzzle& puzzle, const SolveFlags& flags, std::ofstream& trace,
              std::stop_token cancel) {
  // Thoughts of the others are tokens or whole answers, which the summary shows.
  const bool shows_steps = flags.strategy == "tot" || flags.strategy == "depth-first" ||
                           flags.strategy == "best-first" || flags.strategy == "mcts";
  Watcher watcher(session, flags.watch,
                  game24::to_text(puzzle.numbers) + " -> " + std::to_string(puzzle.target) + ", " +
                      flags.strategy);
  TreePrinter printer(flags.common.json || !shows_steps || watcher.active());
  const SearchResult result = game24::solve(
      session, puzzle,
      {flags.strategy, flags.width, flags.budget_tokens, flags.common.seed, flags.samples,
       flags.constrain, flags.speculate, flags.speculate_budget},
      [&](const SearchEvent& event) {
        printer.on(event);
        watcher.on(event);
      },
      flags.trace.empty() ? nullptr : &trace, std::move(cancel));
  printer.flush(0);
  if (!flags.trace.empty() && !trace.flush()) {
    throw Error(flags.trace + ": could not be written to its end (--trace)");
  }
  return {solution_of(result), result.finish};
}

std::string reason(const Answer& answer, const Puzzle& puzzle) {
  if (!answer.steps.empty()) return "solved";
  if (answer.finish == Finish::kCancelled) return "cancelled";
  switch (game24::solvable(puzzle.numbers, puzzle.target)) {
    case Solvable::kNever:
      return "none exists";
    case Solvable::kOtherwise:
      return "none in whole-number steps, which is what this model was taught";
    case Solvable::kWholeSteps:
      break;
  }
  return answer.finish == Finish::kBudget ? "the budget ran out" : "the search missed it";
}

std::string describe(const Attempt& greedy, const Puzzle& puzzle) {
  if (greedy.solved) return game24::expression(puzzle.numbers, greedy.steps);
  std::string text;
  for (const std::string& step : greedy.steps) text += (text.empty() ? "" : "; ") + step;
  return text;
}

void print_summary(const Answer& answer, const Attempt& greedy, const Puzzle& puzzle,
                   const std::string& why, const std::string& solution, const Stats& s,
                   double seconds) {
  const Colours c = colours();
  if (answer.steps.empty()) {
    std::printf("%sno solution found: %s%s\n", c.bad, why.c_str(), c.off);
  } else {
    std::printf("%s%s = %d%s  (branch %llu, every step generated and checked)\n", c.bold,
                solution.c_str(), puzzle.target, c.off,
                static_cast<unsigned long long>(number(answer.steps.back().branch_id)));
  }
  std::printf("greedy decoding alone: %s%s\n", describe(greedy, puzzle).c_str(),
              greedy.solved  ? "  (right)"
              : greedy.legal ? "  (does not reach the target)"
                             : "  (wrong)");
  const auto ratio = [](std::int64_t a, std::int64_t b) {
    return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
  };
  std::printf(
      "a fork took %.0f ns (%lld forks)\n"
      "tokens computed %lld; as independent prompts %lld (%.1fx)\n"
      "KV bytes held at the widest step: %lld with shared pages, %lld without (%.1fx)\n"
      "%.2f s\n",
      s.fork_ns, static_cast<long long>(s.forks), static_cast<long long>(s.tokens_computed),
      static_cast<long long>(s.tokens_independent), ratio(s.tokens_independent, s.tokens_computed),
      static_cast<long long>(s.kv_bytes_unique), static_cast<long long>(s.kv_bytes_naive),
      ratio(s.kv_bytes_naive, s.kv_bytes_unique), seconds);
}

int run(const SolveFlags& flags) {
  const Puzzle puzzle{game24::check_numbers(flags.numbers, flags.target), flags.target};
  std::ofstream trace = open_trace(flags);
  const Engine engine = flags.common.load();
  const Observer observer(engine, flags.observe);
  const Interrupt interrupt;
  if (!flags.common.json) {
    std::printf("%s -> %d\n", game24::to_text(puzzle.numbers).c_str(), puzzle.target);
  }
  const auto begin = std::chrono::steady_clock::now();
  Session session(engine, {.seed = flags.common.seed, .budget = {.tokens = flags.budget_tokens}});
  const Answer answer = search(session, puzzle, flags, trace, interrupt.token());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const Stats stats = session.stats();

  Session beside(engine, {.seed = flags.common.seed});  // its tokens are not the search's
  const Attempt greedy = game24::greedy(beside, puzzle, interrupt.token());
  const std::string why = reason(answer, puzzle);
  std::vector<std::string> texts;
  for (const ThoughtRecord& step : answer.steps) texts.push_back(step.text);
  const std::string solution =
      texts.empty() ? std::string() : game24::expression(puzzle.numbers, texts);
  if (flags.common.json) {
    Json steps = Json::array();
    for (const ThoughtRecord& step : answer.steps) {
      steps.push_back(
          {{"text", step.text}, {"branch", number(step.branch_id)}, {"value", step.value}});
    }
    Json out{{"numbers", flags.numbers}, {"target", puzzle.target}};
    out["branch"] = answer.steps.empty() ? Json() : Json(number(answer.steps.back().branch_id));
    out["solution"] = texts.empty() ? Json() : Json(solution);
    out["reason"] = why;
    out["greedy"] = {{"text", describe(greedy, puzzle)}, {"solved", greedy.solved}};
    out["steps"] = std::move(steps);
    out["stats"] = to_json(stats, took.count());
    print_json(out);
  } else {
    print_summary(answer, greedy, puzzle, why, solution, stats, took.count());
  }
  return interrupt.requested() ? kExitInterrupted : 0;
}

}  // namespace

void add_solve(CLI::App& app, int& status) {
  auto flags = std::make_shared<SolveFlags>();
  CLI::App* command =
      app.add_subcommand("solve", "Game of 24 (and Countdown) by search on the shipped model");
  flags->common.add_to(*command);
  flags->observe.add_to(*command);
  flags->watch.add_to(*command);
  command->add_option("numbers", flags->numbers, "The numbers, 2 to 5 of them")
      ->type_name("A B C D")
      ->required();
  command->add_option("--target", flags->target, "What to make of them")->capture_default_str();
  command->add_option("--strategy", flags->strategy, "How to search")
      ->check(CLI::IsMember(game24::strategy_names()))
      ->capture_default_str();
  command
      ->add_option("--width", flags->width,
                   "Steps kept at each depth (tot) or of each node (depth-first), nodes at once "
                   "(best-first), descents a round (mcts), beams, or samples (best-of-n)")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option(
          "--samples", flags->samples,
          "tot, depth-first, best-first, mcts: steps that are drawn from each node; 0: all "
          "that are likely")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  command->add_flag("--constrain", flags->constrain,
                    "Hold steps to their form (10-4=6 | 5 6 6): no token that leaves it is drawn");
  auto* samples = command->get_option("--samples");
  command
      ->add_option_function<std::string>(
          "--speculate",
          [flags](const std::string& name) { flags->speculate = speculate_of(name); },
          "Draft the tokens of drawn steps, as in `generate`: the same search in fewer passes")
      ->type_name("METHOD")
      ->needs(samples);
  flags->common.add_drafting_to(*command, flags->speculate_budget);
  command
      ->add_option("--budget-tokens", flags->budget_tokens,
                   "Most tokens the search may compute; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--trace", flags->trace, "Record the search in this file, as JSON lines")
      ->type_name("FILE");
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
