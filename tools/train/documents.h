// Puzzles to training documents. The four formats, and which part of each is learnt:
//
//   S 24: 4 5 6 10\n10-4=6 | 5 6 6\n6*5=30 | 6 30\n30-6=24 | 24\nok\n<eos>    every line after the
//   first P 24: 4 5 6 10\n6*4=24 | 5 10 24\n                                        the last line
//   only; no <eos> P 24: 4 5 6 10\n6*4=24 | 5 10 24\n?impossible\n<eos>                      the
//   label only (mode J) E 24: 5 6 6\n6+5=11 | 6 11\n6-5=1 | 1 6\n...\n.\n<eos> every line after the
//   first
//
// J documents start as P documents do, so that in a search one trunk serves both: continue it to
// propose, fork it and append "?" to judge.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "document.h"
#include "puzzle.h"

namespace train {

enum class Mode { kSolve, kPropose, kJudge, kEnumerate };

/// Where root puzzles come from. Numbers are drawn uniformly; kGame24* draw uniformly over
/// multisets instead, as the evaluation does.
struct Task {
  std::string_view name;
  int numbers;
  int highest;
  int target_low, target_high;
  bool by_multiset;
};

/// game24wide is there because 1,437 training games can be learnt by heart; 20,475 multisets to the
/// same target make it cheaper to learn the arithmetic. Its games with small numbers follow the
/// same split.
inline constexpr Task kTasks[] = {
    {"game24", 4, 13, 24, 24, true},       {"game24wide", 4, 25, 24, 24, true},
    {"countdown3", 3, 13, 10, 100, false}, {"countdown4", 4, 13, 10, 100, false},
    {"countdown5", 5, 20, 50, 300, false},
};
inline constexpr int kNumTasks = static_cast<int>(std::size(kTasks));

struct Puzzle {
  State root;
  int target;
};

/// Every multiset of `task` on one side of the split, in ascending order.
inline std::vector<State> all_roots(const Task& task, int target, Split split) {
  std::vector<State> roots;
  State state;
  state.count = task.numbers;
  const auto extend = [&](const auto& self, int depth, int lowest) -> void {
    if (depth == task.numbers) {
      if (held_out(state, target) == (split == Split::kHeldOut)) roots.push_back(state);
      return;
    }
    for (int v = lowest; v <= task.highest; ++v) {
      state.value[depth] = static_cast<std::uint16_t>(v);
      self(self, depth + 1, v);
    }
  };
  extend(extend, 0, 1);
  return roots;
}

/// Draws documents of any task and mode. Deterministic given the Rng; one per thread.
class Author {
 public:
  explicit Author(Split split) : split_(split) {
    for (const Task& task : kTasks)
      roots_.push_back(task.by_multiset ? all_roots(task, task.target_low, split)
                                        : std::vector<State>{});
  }

  Document write(int task, Mode mode, Rng& rng) {
    for (;;)  // a draw can fail: a walk may have no move of the kind that was asked for
      if (std::optional<Document> document = try_write(task, mode, rng))
        return *std::move(document);
  }

  /// A puzzle of this split, solvable or not as asked.
  Puzzle draw(int task_index, bool solvable, Rng& rng) {
    for (;;) {
      const Puzzle puzzle = draw_any(task_index, rng);
      if (solver_.solvable(puzzle.root, puzzle.target) == solvable) return puzzle;
    }
  }

 private:
  std::optional<Document> try_write(int task, Mode mode, Rng& rng) {
    switch (mode) {
      case Mode::kSolve:
        return solve(draw(task, true, rng), rng);
      case Mode::kPropose:
        return propose(draw(task, rng.chance(0.75), rng), rng);
      case Mode::kJudge:
        return judge(task, rng);
      case Mode::kEnumerate:
        return enumerate(draw(task, rng.chance(0.75), rng), rng);
    }
    return std::nullopt;
  }

  Puzzle draw_any(int task_index, Rng& rng) {
    const Task& task = kTasks[task_index];
    if (task.by_multiset) {
      const std::vector<State>& roots = roots_[task_index];
      return {roots[rng.below(static_cast<int>(roots.size()))], task.target_low};
    }
    for (;;) {
      Puzzle puzzle;
      for (int i = 0; i < task.numbers; ++i) insert(puzzle.root, rng.between(1, task.highest));
      puzzle.target = rng.between(task.target_low, task.target_high);
      if (held_out(puzzle.root, puzzle.target) == (split_ == Split::kHeldOut)) return puzzle;
    }
  }

  /// Each complete solution is equally likely, so a step is drawn in proportion to the solutions
  /// behind it. A uniform choice among winning moves would teach fragile ones (one way on) as often
  /// as robust ones, and greedy decoding then picks more of what the model cannot finish.
  Document solve(const Puzzle& puzzle, Rng& rng) {
    Document document = header('S', puzzle.root, puzzle.target);
    State state = puzzle.root;
    while (state.count > 1) {
      const Moves moves = legal_moves(state);
      std::array<std::uint32_t, 40> behind;
      std::uint32_t total = 0;
      for (int i = 0; i < moves.count; ++i)
        total += behind[i] = solver_.solutions(apply(state, moves.at[i]), puzzle.target);
      int pick = rng.below(static_cast<int>(total));
      int chosen = 0;
      while (pick >= static_cast<int>(behind[chosen])) pick -= static_cast<int>(behind[chosen++]);
      state = apply(state, moves.at[chosen]);
      append_line(document.text, moves.at[chosen], state);
    }
    document.text += "ok\n";
    document.ends = true;
    return document;
  }

  /// A walk of 0..n-2 steps, half of them winning where that is possible, then one uniformly random
  /// legal move.
  Document propose(const Puzzle& puzzle, Rng& rng) {
    Document document = header('P', puzzle.root, puzzle.target);
    State state = puzzle.root;
    walk(document.text, state, puzzle.target, rng.below(puzzle.root.count - 1), 0.5, rng);
    document.learnt_from = document.text.size();
    const Moves moves = legal_moves(state);
    const Move& move = moves.at[rng.below(moves.count)];
    append_line(document.text, move, apply(state, move));
    return document;
  }

  /// Labels are balanced at every depth. Only the last step is drawn by its label and the steps
  /// before it mostly win, so most "impossible" states are one move away from a solvable one: what
  /// a search has to tell apart.
  std::optional<Document> judge(int task, Rng& rng) {
    const bool sure = rng.chance(0.5);
    const int steps = judged_depth(kTasks[task].numbers, rng);
    const Puzzle puzzle = draw(task, steps == 0 ? sure : sure || rng.chance(0.85), rng);
    Document document = header('P', puzzle.root, puzzle.target);
    State state = puzzle.root;
    if (steps > 0) {
      walk(document.text, state, puzzle.target, steps - 1, 0.75, rng);
      const Moves moves = legal_moves(state);
      std::array<int, 40> wanted;
      int count = 0;
      for (int i = 0; i < moves.count; ++i)
        if (solver_.solvable(apply(state, moves.at[i]), puzzle.target) == sure) wanted[count++] = i;
      if (count == 0) return std::nullopt;
      const Move& move = moves.at[wanted[rng.below(count)]];
      state = apply(state, move);
      append_line(document.text, move, state);
    }
    document.text += '?';
    document.learnt_from = document.text.size();
    document.text += sure ? "sure\n" : "impossible\n";
    document.ends = true;
    return document;
  }

  /// All moves of a state some steps into a game. The state stands in the header, where a root
  /// stands, so it must itself be on this side of the split.
  std::optional<Document> enumerate(const Puzzle& puzzle, Rng& rng) {
    State state = puzzle.root;
    std::string unused;
    walk(unused, state, puzzle.target, rng.below(puzzle.root.count - 1), 0.5, rng);
    if (held_out(state, puzzle.target) != (split_ == Split::kHeldOut)) return std::nullopt;
    Document document = header('E', state, puzzle.target);
    const Moves moves = legal_moves(state);
    for (int i = 0; i < moves.count; ++i)
      append_line(document.text, moves.at[i], apply(state, moves.at[i]));
    document.text += ".\n";
    document.ends = true;
    return document;
  }

  /// How many lines precede the question. States with one number done and many to go decide a
  /// search, so they are asked about most; a finished state (one number left) is asked about a
  /// little, for searches that judge it.
  static int judged_depth(int numbers, Rng& rng) {
    static constexpr int kPercent[3][5] = {{35, 60, 5}, {15, 55, 25, 5}, {10, 35, 35, 15, 5}};
    int pick = rng.below(100);
    int steps = 0;
    while (pick >= kPercent[numbers - 3][steps]) pick -= kPercent[numbers - 3][steps++];
    return steps;
  }

  void walk(std::string& text, State& state, int target, int steps, double winning, Rng& rng) {
    for (int step = 0; step < steps; ++step) {
      const Moves moves = legal_moves(state);
      std::array<int, 40> choice;
      int count = 0;
      if (rng.chance(winning))
        for (int i = 0; i < moves.count; ++i)
          if (solver_.solvable(apply(state, moves.at[i]), target)) choice[count++] = i;
      const Move& move = moves.at[count > 0 ? choice[rng.below(count)] : rng.below(moves.count)];
      state = apply(state, move);
      append_line(text, move, state);
    }
  }

  static Document header(char mode, const State& state, int target) {
    Document document{{mode, ' '}, 0, false};
    document.text += std::to_string(target) + ':';
    append_numbers(document.text, state);
    document.text += '\n';
    document.learnt_from = document.text.size();
    return document;
  }
  static void append_numbers(std::string& text, const State& state) {
    for (int i = 0; i < state.count; ++i) (text += ' ') += std::to_string(state.value[i]);
  }
  static void append_line(std::string& text, const Move& move, const State& after) {
    ((text += std::to_string(move.left)) += move.op) += std::to_string(move.right);
    (text += '=') += std::to_string(move.result);
    text += " |";
    append_numbers(text, after);
    text += '\n';
  }

  Split split_;
  Solver solver_;
  std::vector<std::vector<State>> roots_;  // by task; empty where numbers are drawn
};

}  // namespace train
