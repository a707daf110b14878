#include "game24.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "dendrite/error.h"

namespace dendrite::game24 {
namespace {

constexpr int kLargest = 999;

/// A written step, parsed.
struct Step {
  int left, right, result;
  char op;
  State rest;
};

bool take_number(std::string_view& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 1 || text.front() == '0') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

std::optional<Step> parse(std::string_view text) {
  Step step{};
  if (!take_number(text, step.left) || text.empty()) return std::nullopt;
  step.op = text.front();
  text.remove_prefix(1);
  if (!take_number(text, step.right) || !take(text, "=") || !take_number(text, step.result) ||
      !take(text, " |")) {
    return std::nullopt;
  }
  while (!text.empty()) {
    int number = 0;
    if (!take(text, " ") || text.empty() || !take_number(text, number)) return std::nullopt;
    step.rest.push_back(number);
  }
  return step;
}

/// left op right, or 0 where that is no legal result.
int compute(int left, char op, int right) {
  std::int64_t result = 0;
  switch (op) {
    case '+':
      result = std::int64_t{left} + right;
      break;
    case '-':
      result = std::int64_t{left} - right;
      break;
    case '*':
      result = std::int64_t{left} * right;
      break;
    case '/':
      result = left % right == 0 ? left / right : 0;
      break;
    default:
      return 0;
  }
  return result >= 1 && result <= kLargest ? static_cast<int>(result) : 0;
}

bool solve_whole(const State& state, int target, std::set<State>& failed) {
  if (state.size() == 1) return state[0] == target;
  if (failed.contains(state)) return false;
  for (std::size_t i = 0; i < state.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      for (const char op : {'+', '-', '*', '/'}) {
        const int result = compute(state[i], op, state[j]);  // ascending: i is the larger
        if (result == 0) continue;
        State next;
        for (std::size_t k = 0; k < state.size(); ++k) {
          if (k != i && k != j) next.push_back(state[k]);
        }
        next.insert(std::upper_bound(next.begin(), next.end(), result), result);
        if (solve_whole(next, target, failed)) return true;
      }
    }
  }
  failed.insert(state);
  return false;
}

/// An exact fraction in lowest terms, denominator > 0.
struct Fraction {
  std::int64_t num = 0;
  std::int64_t den = 1;
  auto operator<=>(const Fraction&) const = default;
};

Fraction reduced(std::int64_t num, std::int64_t den) {
  if (den < 0) {
    num = -num;
    den = -den;
  }
  const std::int64_t divisor = std::max<std::int64_t>(1, std::gcd(num < 0 ? -num : num, den));
  return {num / divisor, den / divisor};
}

bool solve_any(std::vector<Fraction> state, const Fraction& target,
               std::set<std::vector<Fraction>>& failed) {
  if (state.size() == 1) return state[0] == target;
  std::sort(state.begin(), state.end());
  if (failed.contains(state)) return false;
  for (std::size_t i = 0; i < state.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Fraction a = state[i];
      const Fraction b = state[j];
      std::vector<Fraction> results{reduced(a.num * b.den + b.num * a.den, a.den * b.den),
                                    reduced(a.num * b.den - b.num * a.den, a.den * b.den),
                                    reduced(b.num * a.den - a.num * b.den, a.den * b.den),
                                    reduced(a.num * b.num, a.den * b.den)};
      if (b.num != 0) results.push_back(reduced(a.num * b.den, a.den * b.num));
      if (a.num != 0) results.push_back(reduced(b.num * a.den, b.den * a.num));
      std::vector<Fraction> rest;
      for (std::size_t k = 0; k < state.size(); ++k) {
        if (k != i && k != j) rest.push_back(state[k]);
      }
      for (const Fraction& result : results) {
        // Far beyond what four to six numbers under 1000 can need; keeps products within 64 bits.
        if (std::abs(result.num) > 1'000'000'000 || result.den > 1'000'000'000) continue;
        rest.push_back(result);
        if (solve_any(rest, target, failed)) return true;
        rest.pop_back();
      }
    }
  }
  failed.insert(state);
  return false;
}

/// An expression and how strongly its top operator binds.
struct Term {
  int value;
  std::string text;
  int level;  // 0: + -, 1: * /, 2: a number
};

std::string operand(const Term& term, int least) {
  return term.level < least ? "(" + term.text + ")" : term.text;
}

}  // namespace

std::string to_text(const State& state) {
  std::string text;
  for (const int number : state) {
    if (!text.empty()) text += ' ';
    text += std::to_string(number);
  }
  return text;
}

std::optional<State> next_state(const State& state, std::string_view text) {
  const std::optional<Step> step = parse(text);
  if (!step || step->left < step->right) return std::nullopt;
  if (compute(step->left, step->op, step->right) != step->result) return std::nullopt;
  State next = state;
  for (const int used : {step->left, step->right}) {
    const auto found = std::find(next.begin(), next.end(), used);
    if (found == next.end()) return std::nullopt;
    next.erase(found);
  }
  next.insert(std::upper_bound(next.begin(), next.end(), step->result), step->result);
  if (next != step->rest) return std::nullopt;
  return next;
}

std::string expression(const State& start, const std::vector<std::string>& steps) {
  std::vector<Term> terms;
  for (const int number : start) terms.push_back({number, std::to_string(number), 2});
  const auto take_term = [&](int value) {
    const auto found = std::find_if(terms.begin(), terms.end(),
                                    [&](const Term& term) { return term.value == value; });
    Term term = *found;
    terms.erase(found);
    return term;
  };
  for (const std::string& text : steps) {
    const Step step = *parse(text);
    const Term left = take_term(step.left);
    const Term right = take_term(step.right);
    const int level = step.op == '+' || step.op == '-' ? 0 : 1;
    const bool regroups = step.op == '-' || step.op == '/';
    terms.push_back({step.result,
                     operand(left, level) + step.op + operand(right, regroups ? level + 1 : level),
                     level});
  }
  return terms.back().text;
}

Solvable solvable(const State& numbers, int target) {
  std::set<State> failed;
  if (solve_whole(numbers, target, failed)) return Solvable::kWholeSteps;
  std::vector<Fraction> fractions;
  for (const int number : numbers) fractions.push_back({number, 1});
  std::set<std::vector<Fraction>> failed_any;
  return solve_any(fractions, {target, 1}, failed_any) ? Solvable::kOtherwise : Solvable::kNever;
}

State check_numbers(const std::vector<int>& numbers, int target) {
  if (numbers.size() < 2 || numbers.size() > 5) {
    throw Error("solve: got " + std::to_string(numbers.size()) + " numbers; expected 2 to 5");
  }
  for (const int number : numbers) {
    if (number < 1 || number > kLargest) {
      throw Error("solve: got the number " + std::to_string(number) + "; expected 1 to 999");
    }
  }
  if (target < 1 || target > kLargest) {
    throw Error("solve: the target is " + std::to_string(target) + "; expected 1 to 999");
  }
  State state = numbers;
  std::sort(state.begin(), state.end());
  return state;
}

}  // namespace dendrite::game24
