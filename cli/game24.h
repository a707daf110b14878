#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dendrite::game24 {

/// Game of 24 and Countdown as the shipped model is taught them: every step combines two numbers of
/// the state into one by + - * /, the larger first, division exact, the result a whole number
/// in 1..999; the state is written sorted.

/// Numbers ascending.
using State = std::vector<int>;

/// "4 5 6 10"
std::string to_text(const State& state);

/// The state after a written step like "10-4=6 | 5 6 6", or nullopt if the step is not legal in
/// `state` or not written as the model is taught.
std::optional<State> next_state(const State& state, std::string_view step);

/// One parenthesised expression of steps that lead from `start` to a single number:
/// "(10-4)*(13-9)". Requires: the steps are legal from `start` on.
std::string expression(const State& start, const std::vector<std::string>& steps);

/// What an exact search says of a puzzle.
enum class Solvable : std::uint8_t {
  kWholeSteps,  // in whole-number steps, 1..999
  kOtherwise,   // only through fractions, zero, negative numbers or numbers over 999
  kNever,
};
Solvable solvable(const State& numbers, int target);

/// A puzzle from the command line: 2 to 5 numbers in 1..999, target in 1..999. Throws Error.
State check_numbers(const std::vector<int>& numbers, int target);

}  // namespace dendrite::game24
