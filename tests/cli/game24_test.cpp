#include "game24.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "dendrite/error.h"

namespace dendrite::game24 {
namespace {

/// All legal steps of a state, by brute force over what could be written.
std::vector<std::pair<std::string, State>> all_steps(const State& state) {
  std::vector<std::pair<std::string, State>> out;
  for (std::size_t i = 0; i < state.size(); ++i) {
    for (std::size_t j = 0; j < state.size(); ++j) {
      if (i == j || state[i] < state[j]) continue;
      for (const char op : {'+', '-', '*', '/'}) {
        const int a = state[i];
        const int b = state[j];
        if (op == '/' && a % b != 0) continue;
        const int result = op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
        if (result < 1 || result > 999) continue;
        State next;
        for (std::size_t k = 0; k < state.size(); ++k) {
          if (k != i && k != j) next.push_back(state[k]);
        }
        next.push_back(result);
        std::sort(next.begin(), next.end());
        std::string text =
            std::to_string(a) + op + std::to_string(b) + "=" + std::to_string(result) + " |";
        for (const int number : next) text.append(1, ' ').append(std::to_string(number));
        out.emplace_back(text, next);
      }
    }
  }
  return out;
}

/// Value of an expression of + - * / and parentheses over whole numbers, in doubles; nullopt if
/// malformed.
class Evaluator {
 public:
  explicit Evaluator(std::string text) : text_(std::move(text)) {}
  double run() {
    const double value = sum();
    EXPECT_EQ(at_, text_.size()) << text_;
    return value;
  }
  std::vector<int> numbers;

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  double sum() {
    double value = product();
    while (peek() == '+' || peek() == '-') {
      const char op = text_[at_++];
      const double right = product();
      value = op == '+' ? value + right : value - right;
    }
    return value;
  }
  double product() {
    double value = atom();
    while (peek() == '*' || peek() == '/') {
      const char op = text_[at_++];
      const double right = atom();
      value = op == '*' ? value * right : value / right;
    }
    return value;
  }
  double atom() {
    if (peek() == '(') {
      ++at_;
      const double value = sum();
      EXPECT_EQ(peek(), ')') << text_;
      ++at_;
      return value;
    }
    EXPECT_TRUE(std::isdigit(peek())) << text_;
    int value = 0;
    while (std::isdigit(peek())) value = value * 10 + (text_[at_++] - '0');
    numbers.push_back(value);
    return value;
  }

  std::string text_;
  std::size_t at_ = 0;
};

TEST(Game24, LegalStepsLeadToTheStateThatTheyName) {
  for (const State& state :
       {State{4, 5, 6, 10}, State{1, 1, 2, 3}, State{7, 7}, State{999, 999}, State{2, 4, 8}}) {
    for (const auto& [text, next] : all_steps(state)) {
      const std::optional<State> got = next_state(state, text);
      ASSERT_TRUE(got.has_value()) << text;
      EXPECT_EQ(*got, next) << text;
    }
  }
  EXPECT_EQ(next_state({4, 5, 6, 10}, "10-4=6 | 5 6 6"), (State{5, 6, 6}));
  EXPECT_EQ(next_state({4, 6}, "6*4=24 | 24"), State{24});
}

TEST(Game24, EverythingElseIsNoStep) {
  const State state{4, 5, 6, 10};
  for (const char* text : {"",
                           "10",
                           "10-4",
                           "10-4=6",
                           "10-4=6 |",
                           "10-4=6 | 5 6",
                           "10-4=6 | 5 6 6 6",
                           "10-4=6 | 6 5 6",
                           "10-4=6 |5 6 6",
                           "10-4=6 | 5 6  6",
                           "10-4=6 | 5 6 6 ",
                           " 10-4=6 | 5 6 6",
                           "10-4=6 | 5 6 6\n",
                           "10 - 4=6 | 5 6 6",
                           "4-10=6 | 5 6 6",
                           "4+10=14 | 5 6 14",
                           "10-4=7 | 5 6 7",
                           "10/4=2 | 2 5 6",
                           "10-3=7 | 4 5 6",
                           "10-10=0 | 4 5 6",
                           "10*10=100 | 4 5 6 100",
                           "10-4=06 | 5 6 6",
                           "010-4=6 | 5 6 6",
                           "10^4=6 | 5 6 6",
                           "10-4=6 | 5 6 -6",
                           "10-4=6 | 5 6 6 | 5",
                           "99999999999-4=6 | 5 6 6",
                           "10--4=6 | 5 6 6",
                           "ten-4=6 | 5 6 6"}) {
    EXPECT_FALSE(next_state(state, text).has_value()) << '"' << text << '"';
  }
  EXPECT_FALSE(next_state({500, 500}, "500*500=250000 | 250000").has_value());
  EXPECT_FALSE(next_state({500, 500}, "500+500=1000 | 1000").has_value());
  EXPECT_FALSE(next_state({7, 7}, "7-7=0 | 0").has_value());
}

TEST(Game24, ExpressionsUseEachNumberOnceAndGiveTheResult) {
  // Every way from a state to one number.
  int checked = 0;
  for (const State& start :
       {State{2, 3, 4, 12}, State{1, 5, 5, 5}, State{3, 3, 8}, State{6, 6, 6, 6}}) {
    std::vector<std::string> steps;
    const std::function<void(const State&)> walk = [&](const State& state) {
      if (state.size() == 1) {
        Evaluator evaluator(expression(start, steps));
        ASSERT_DOUBLE_EQ(evaluator.run(), state[0]) << expression(start, steps);
        std::sort(evaluator.numbers.begin(), evaluator.numbers.end());
        ASSERT_EQ(evaluator.numbers, start) << expression(start, steps);
        ++checked;
        return;
      }
      for (const auto& [text, next] : all_steps(state)) {
        steps.push_back(text);
        walk(next);
        steps.pop_back();
      }
    };
    walk(start);
  }
  EXPECT_GT(checked, 4000);
  EXPECT_EQ(expression({4, 9, 10, 13}, {"10-4=6 | 6 9 13", "13-9=4 | 4 6", "6*4=24 | 24"}),
            "(10-4)*(13-9)");
}

TEST(Game24, SolvableAgreesWithTheListOfHeldOutPuzzles) {
  std::ifstream file(std::string(DENDRITE_MODELS_DIR) + "/dendrite-24/game24_heldout.txt");
  ASSERT_TRUE(file.good());
  int puzzles = 0;
  int yes = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    int flag = 0;
    in >> flag;
    State numbers;
    for (int number; in >> number;) numbers.push_back(number);
    ASSERT_EQ(numbers.size(), 4u) << line;
    EXPECT_EQ(solvable(numbers, 24) == Solvable::kWholeSteps, flag == 1) << line;
    ++puzzles;
    yes += flag;
  }
  EXPECT_EQ(puzzles, 383);
  EXPECT_EQ(yes, 269);
}

TEST(Game24, SolvableAgreesWithTheListsOfCountdowns) {
  for (const int numbers_each : {3, 4, 5}) {
    std::ifstream file(std::string(DENDRITE_MODELS_DIR) + "/dendrite-24/countdown" +
                       std::to_string(numbers_each) + "_heldout.txt");
    int puzzles = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream in(line);
      int target = 0;
      char colon = 0;
      in >> target >> colon;
      State numbers;
      for (int number; in >> number;) numbers.push_back(number);
      ASSERT_EQ(std::ssize(numbers), numbers_each) << line;
      EXPECT_EQ(solvable(numbers, target), Solvable::kWholeSteps) << line;
      ++puzzles;
    }
    EXPECT_GT(puzzles, 50) << numbers_each;
  }
}

TEST(Game24, KnowsWhatOnlyFractionsOrNegativesReach) {
  EXPECT_EQ(solvable({3, 3, 8, 8}, 24), Solvable::kOtherwise);  // 8/(3-8/3)
  EXPECT_EQ(solvable({1, 5, 5, 5}, 24), Solvable::kOtherwise);  // 5*(5-1/5)
  EXPECT_EQ(solvable({1, 3, 4, 6}, 24), Solvable::kOtherwise);  // 6/(1-3/4)
  EXPECT_EQ(solvable({1, 1, 1, 1}, 24), Solvable::kNever);
  EXPECT_EQ(solvable({1, 1, 1, 3}, 24), Solvable::kNever);
  EXPECT_EQ(solvable({4, 6}, 24), Solvable::kWholeSteps);
  EXPECT_EQ(solvable({4, 9, 10, 13}, 24), Solvable::kWholeSteps);
}

TEST(Game24, RefusesPuzzlesOutOfRange) {
  EXPECT_EQ(check_numbers({10, 4, 13, 9}, 24), (State{4, 9, 10, 13}));
  EXPECT_THROW(check_numbers({24}, 24), Error);
  EXPECT_THROW(check_numbers({1, 2, 3, 4, 5, 6, 7}, 24), Error);
  EXPECT_THROW(check_numbers({0, 2, 3, 4}, 24), Error);
  EXPECT_THROW(check_numbers({1, 2, 3, 1000}, 24), Error);
  EXPECT_THROW(check_numbers({1, 2, 3, 4}, 0), Error);
  EXPECT_THROW(check_numbers({1, 2, 3, 4}, 1000), Error);
}

}  // namespace
}  // namespace dendrite::game24
