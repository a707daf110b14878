#pragma once

#include <cstdio>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

/// The rules of the Game of 24 as the shipped model writes it, for the examples: what a search
/// needs to know of its problem.
namespace puzzle {

using Numbers = std::multiset<int>;

/// The numbers after a step like "10-4=6 | 5 6 6", or nothing if it does not follow from `numbers`.
inline std::optional<Numbers> after_step(Numbers numbers, const std::string& step) {
  int left = 0, right = 0, result = 0, parsed = 0;
  char op = 0;
  if (std::sscanf(step.c_str(), "%d%c%d=%d |%n", &left, &op, &right, &result, &parsed) != 4)
    return {};
  for (const int used : {left, right}) {
    const auto found = numbers.find(used);
    if (found == numbers.end()) return {};
    numbers.erase(found);
  }
  const bool right_result =
      (op == '+' && left + right == result) || (op == '-' && left - right == result) ||
      (op == '*' && left * right == result) || (op == '/' && right > 0 && result * right == left);
  if (!right_result || parsed == 0) return {};
  numbers.insert(result);
  std::istringstream rest(step.substr(static_cast<std::size_t>(parsed)));
  const Numbers written{std::istream_iterator<int>(rest), std::istream_iterator<int>()};
  if (written != numbers) return {};
  return numbers;
}

/// The numbers after all lines of `text`, or nothing if one of them is not legal.
inline std::optional<Numbers> after_steps(Numbers numbers, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::optional<Numbers> next = after_step(numbers, line);
    if (!next) return {};
    numbers = *next;
  }
  return numbers;
}

}  // namespace puzzle
