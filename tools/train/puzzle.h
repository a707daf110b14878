// The rules of the number puzzles, an exact solver, and the training split.
//
// A state is a sorted multiset of at most five whole numbers. A move takes two of them, larger
// first, and puts back a+b, a-b, a*b or an exact a/b; results stay within 1..999. A puzzle is
// solved when one number is left and it is the target.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "random.h"

namespace train {

inline constexpr int kMaxNumbers = 5;
inline constexpr int kMaxResult = 999;

struct State {
  int count = 0;
  std::array<std::uint16_t, kMaxNumbers> value{};  // ascending in [0, count)

  friend bool operator==(const State& a, const State& b) {
    return a.count == b.count &&
           std::equal(a.value.begin(), a.value.begin() + a.count, b.value.begin());
  }
};

/// Adds a number at its place.
inline void insert(State& state, int number) {
  int at = state.count++;
  for (; at > 0 && state.value[at - 1] > number; --at) state.value[at] = state.value[at - 1];
  state.value[at] = static_cast<std::uint16_t>(number);
}

struct Move {
  std::uint16_t left, right;  // left >= right
  char op;
  std::uint16_t result;
};

/// Distinct legal moves of one state: at most C(5,2) pairs times 4 operators.
struct Moves {
  int count = 0;
  std::array<Move, 40> at;
};

/// Canonical order: by smaller operand, then larger operand, then + - * /. Equal numbers are one
/// number here, so a line of text appears once.
inline Moves legal_moves(const State& state) {
  Moves moves;
  const auto add = [&](int left, int right, char op, int result) {
    if (result < 1 || result > kMaxResult) return;
    moves.at[moves.count++] = {static_cast<std::uint16_t>(left), static_cast<std::uint16_t>(right),
                               op, static_cast<std::uint16_t>(result)};
  };
  for (int i = 0; i < state.count; ++i) {
    if (i > 0 && state.value[i] == state.value[i - 1]) continue;
    for (int j = i + 1; j < state.count; ++j) {
      if (j > i + 1 && state.value[j] == state.value[j - 1]) continue;
      const int small = state.value[i];
      const int large = state.value[j];
      add(large, small, '+', large + small);
      add(large, small, '-', large - small);
      add(large, small, '*', large * small);
      if (large % small == 0) add(large, small, '/', large / small);
    }
  }
  return moves;
}

inline State apply(const State& state, const Move& move) {
  State next;
  bool left_taken = false, right_taken = false;
  for (int i = 0; i < state.count; ++i) {
    const std::uint16_t v = state.value[i];
    if (!right_taken && v == move.right)
      right_taken = true;
    else if (!left_taken && v == move.left)
      left_taken = true;
    else
      next.value[next.count++] = v;
  }
  insert(next, move.result);
  return next;
}

/// Number of distinct lists of moves that reach the target, exact, by depth-first search with a
/// memo. The memo is direct-mapped and keeps whole keys (five 10-bit numbers and a 10-bit target
/// fit 60 bits), so it can forget but never confuse. One solver per thread.
class Solver {
 public:
  explicit Solver(int log2_entries = 18)
      : shift_(64 - log2_entries), memo_(std::size_t{1} << log2_entries) {}

  std::uint32_t solutions(const State& state, int target) {
    if (state.count == 1) return state.value[0] == target;
    if (state.count == 2) return last_moves(state.value[1], state.value[0], target);
    const std::uint64_t key = pack(state, target);
    Entry& entry = memo_[(key * 0x9e3779b97f4a7c15ULL) >> shift_];
    if (entry.key == key) return entry.solutions;
    std::uint32_t sum = 0;
    const Moves moves = legal_moves(state);
    for (int i = 0; i < moves.count; ++i) sum += solutions(apply(state, moves.at[i]), target);
    entry = {key, sum};  // after the recursion, which may have used the same slot
    return sum;
  }
  bool solvable(const State& state, int target) { return solutions(state, target) > 0; }

 private:
  struct Entry {
    std::uint64_t key = 0;  // 0 is no state: numbers are at least 1
    std::uint32_t solutions = 0;
  };
  static std::uint32_t last_moves(int large, int small, int target) {
    if (target < 1 || target > kMaxResult) return 0;
    return (large + small == target) + (large - small == target) + (large * small == target) +
           (large % small == 0 && large / small == target);
  }
  static std::uint64_t pack(const State& state, int target) {
    std::uint64_t key = static_cast<std::uint64_t>(target);
    for (int i = 0; i < state.count; ++i) key = key << 10 | state.value[i];
    return key;
  }

  int shift_;
  std::vector<Entry> memo_;
};

/// Whether a puzzle is held out: it is then never the root of a training document, in any task or
/// mode. Four numbers to 24 keep a fifth back, whatever their range, because there are only 1,820
/// games; all other puzzles keep a fiftieth back. The hash alone decides, so no list has to be
/// loaded.
inline bool held_out(const State& root, int target) {
  std::uint64_t key = static_cast<std::uint64_t>(root.count);
  for (int i = 0; i < root.count; ++i) key = key * 1000 + root.value[i];
  const std::uint64_t hash = mix64(key * 1009 + static_cast<std::uint64_t>(target));
  return hash % (root.count == 4 && target == 24 ? 5 : 50) == 0;
}

}  // namespace train
