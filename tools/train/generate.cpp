// Writes training data for the puzzle model.
//
//   g++ -O3 -std=c++20 -pthread generate.cpp -o generate
//
//   generate rows --phase 1|2|3 [--seed N] [--threads N] [--blocks N]
//       packed rows (packing.h) to stdout, endless without --blocks
//   generate docs --task T --mode S|P|J|E [--split train|heldout] [--count N] [--seed N]
//   generate roots --task T [--split train|heldout] [--count N] [--seed N]
//       solvable puzzles, "target: numbers"
//   generate game24-heldout
//       the list shipped beside the model
#include <set>
#include <utility>

#include "documents.h"
#include "options.h"
#include "packing.h"

namespace train {
namespace {

/// Weights out of 100, by document. The first phase is the simpler tasks; the last asks for twice
/// the judging.
struct Phase {
  int task[kNumTasks];  // in the order of kTasks
  int mode[4];          // S P J E
};
inline constexpr Phase kPhases[] = {
    {{15, 35, 10, 40, 0}, {50, 15, 30, 5}},
    {{12, 33, 5, 30, 20}, {47, 16, 32, 5}},
    {{14, 34, 3, 27, 22}, {42, 14, 42, 2}},
};

int draw_weighted(const int* weights, Rng& rng) {
  int pick = rng.below(100);
  int i = 0;
  while (pick >= weights[i]) pick -= weights[i++];
  return i;
}

int task_named(const std::string& name) {
  for (int i = 0; i < kNumTasks; ++i)
    if (kTasks[i].name == name) return i;
  throw std::invalid_argument("--task: got '" + name +
                              "', expected one of game24 game24wide countdown3..5");
}

Mode mode_named(const std::string& name) {
  const std::size_t at = std::string_view("SPJE").find(name);
  if (name.size() != 1 || at == std::string_view::npos)
    throw std::invalid_argument("--mode: got '" + name + "', expected S, P, J or E");
  return static_cast<Mode>(at);
}

void print_numbers(const State& state) {
  for (int i = 0; i < state.count; ++i) std::printf(" %d", state.value[i]);
  std::printf("\n");
}

/// `count` different solvable puzzles, or as many as the split holds (Countdown with three numbers
/// has 77 held out).
void print_roots(int task, Split split, int count, std::uint64_t seed) {
  Author author(split);
  Rng rng(seed, 0);
  std::set<std::pair<int, std::array<std::uint16_t, kMaxNumbers>>> seen;
  for (int repeats = 0; static_cast<int>(seen.size()) < count;) {
    const Puzzle puzzle = author.draw(task, true, rng);
    if (!seen.insert({puzzle.target, puzzle.root.value}).second) {
      if (++repeats > 50 * count) return;
      continue;
    }
    std::printf("%d:", puzzle.target);
    print_numbers(puzzle.root);
  }
}

void print_game24_heldout() {
  Solver solver;
  for (const State& root : all_roots(kTasks[0], 24, Split::kHeldOut)) {
    std::printf("%d", solver.solvable(root, 24));
    print_numbers(root);
  }
}

/// Documents of a phase's mixture.
Draw mixture(const Phase& phase) {
  return [phase, author = Author(Split::kTrain)](Rng& rng) mutable {
    const int task = draw_weighted(phase.task, rng);
    return author.write(task, static_cast<Mode>(draw_weighted(phase.mode, rng)), rng);
  };
}

void run(Options options) {
  const std::string& command = options.command();
  const std::uint64_t seed = options.take_uint64("--seed", "1");
  if (command == "rows") {
    const int phase = options.take_int("--phase", "2");
    const int threads = options.take_int("--threads", "1");
    const std::uint64_t blocks = options.take_uint64("--blocks", "0");
    options.check_all_taken();
    if (phase < 1 || phase > 3)
      throw std::invalid_argument("--phase: got " + std::to_string(phase) + ", expected 1..3");
    // Phases with one seed are different streams, not the same walks under other weights.
    write_rows([phase] { return mixture(kPhases[phase - 1]); },
               seed * 4 + static_cast<std::uint64_t>(phase), threads, blocks);
  } else if (command == "docs" || command == "roots") {
    const int task = task_named(options.take("--task", "game24"));
    const Split split = options.take_split();
    const int count = options.take_int("--count", "10");
    const std::string mode = options.take("--mode", "S");
    options.check_all_taken();
    if (command == "roots") return print_roots(task, split, count, seed);
    const auto draw = [task, mode = mode_named(mode), author = Author(split)](Rng& rng) mutable {
      return author.write(task, mode, rng);
    };
    print_documents(draw, count, seed);
  } else if (command == "game24-heldout") {
    options.check_all_taken();
    print_game24_heldout();
  } else {
    throw std::invalid_argument(
        "usage: generate rows|docs|roots|game24-heldout [--option value]...; got '" + command +
        "'");
  }
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  return train::run_generator("generate", argc, argv, train::run);
}
