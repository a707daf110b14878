// The shipped hybrid on held-out ledgers (tools/train/ledgers.h): what it recalls and counts, asked
// at forks in the middle of texts; what its MTP head drafts; and searches of what is right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dendrite/search.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

const std::string kFolder = DENDRITE_MODELS_DIR "/dendrite-ledger";

struct Question {
  std::int64_t end = 0;  // bytes up to its mark
  std::string answer;
};

std::vector<Question> questions_of(const std::string& text) {
  std::vector<Question> out;
  for (auto mark = text.find('?'); mark != text.npos; mark = text.find('?', mark + 1)) {
    const std::string rest = text.substr(mark + 1);
    out.push_back({static_cast<std::int64_t>(mark + 1), rest.substr(0, rest.find('\n'))});
  }
  return out;
}

/// Those of the model's folder that have at most so many bytes.
std::vector<std::string> ledgers(std::size_t most) {
  std::vector<std::string> out;
  std::ifstream file(kFolder + "/heldout.jsonl");
  for (std::string line; std::getline(file, line);) {
    std::string text = nlohmann::json::parse(line);
    if (text.size() <= most) out.push_back(std::move(text));
  }
  EXPECT_FALSE(out.empty());
  return out;
}

/// A fork of the ledger with this text, behind the question's mark. (A token is a byte.)
Branch asked(Branch& ledger, const std::string& text, const Question& question) {
  return ledger.at(ledger.length() - std::ssize(text) + question.end);
}

DecodeParams greedy() {
  DecodeParams params{.max_tokens = 12, .temperature = 0};
  params.stop = {"\n"};
  return params;
}

Engine load(EngineOptions options = {}) {
  options.kv_tokens = 16384;
  return test::load(kFolder, std::move(options));
}

struct Answers {
  std::int64_t right = 0;
  std::int64_t of = 0;
  std::int64_t steps = 0;
  std::vector<std::vector<Token>> tokens;
};

/// A ledger is read once, and asked at forks of what it was at each question.
Answers ask(const Engine& engine, const std::vector<std::string>& texts,
            const DecodeParams& params) {
  Answers answers;
  for (const std::string& text : texts) {
    Session session(engine, {.seed = 1});
    Branch ledger = session.prefill(text);
    const std::vector<Question> questions = questions_of(text);
    std::vector<Branch> branches;
    for (const Question& question : questions) {
      branches.push_back(asked(ledger, text, question));
    }
    const std::int64_t steps = session.stats().steps;
    const std::vector<Generation> said = session.decode(branches, params);
    answers.steps += session.stats().steps - steps;
    for (std::size_t i = 0; i < said.size(); ++i) {
      std::string line = said[i].text;
      while (line.ends_with('\n')) line.pop_back();
      answers.right += line == questions[i].answer ? 1 : 0;
      answers.tokens.push_back(said[i].ids);
    }
    answers.of += std::ssize(questions);
  }
  return answers;
}

TEST(TrainedHybrid, RecallsAndCountsAtForksInTheMiddleOfTexts) {
  const Answers answers = ask(load(), ledgers(500), greedy());
  EXPECT_GT(answers.of, 100);
  EXPECT_GT(answers.right * 100, answers.of * 90) << answers.right << " of " << answers.of;
}

TEST(TrainedHybrid, AForkInTheMiddleIsAReplay) {
  const Engine engine = load();
  const Engine other = load({.prefix_index = false});
  const std::string text = ledgers(500).front();
  Session session(engine);
  Branch ledger = session.prefill(text);
  for (const Question& question : questions_of(text)) {
    Branch fork = asked(ledger, text, question);
    Session replays(other);
    Branch replay = replays.prefill(text.substr(0, static_cast<std::size_t>(question.end)));
    ASSERT_EQ(fork.tokens(), replay.tokens());
    EXPECT_EQ(test::logits_of(fork), test::logits_of(replay)) << question.end;
  }
}

/// The same question with other answers: all are branches of one place.
TEST(TrainedHybrid, TheRightAnswerIsTheLikeliest) {
  const Engine engine = load();
  Session session(engine);
  const std::string text = ledgers(500).front();
  Branch ledger = session.prefill(text);
  int right = 0;
  int of = 0;
  for (const Question& question : questions_of(text)) {
    std::vector<std::string> answers = {question.answer + "\n"};
    for (std::size_t i = 0; i < question.answer.size(); ++i) {
      if (std::isdigit(static_cast<unsigned char>(question.answer[i])) == 0) continue;
      std::string& wrong = answers.emplace_back(answers.front());
      wrong[i] = static_cast<char>('0' + (wrong[i] - '0' + 1) % 10);
    }
    Branch branch = asked(ledger, text, question);
    const std::vector<Score> scores = session.score(std::span(&branch, 1), answers).front();
    const auto best = std::ranges::max_element(scores, {}, &Score::logprob);
    right += best == scores.begin() ? 1 : 0;
    ++of;
  }
  EXPECT_GT(of, 10);
  EXPECT_GE(right * 10, of * 9) << right << " of " << of;
}

TEST(TrainedHybrid, BeamsFindWhatItRecalls) {
  const Engine engine = load();
  int found = 0;
  int of = 0;
  for (const std::string& text : ledgers(500)) {
    Session session(engine);
    Branch ledger = session.prefill(text);
    const Question question = questions_of(text).back();
    BeamSearch strategy{.width = 4, .max_tokens = 12, .stop = {"\n"}};
    strategy.solved = [&](const Branch& /*branch*/, const std::string& said) {
      return said.starts_with(question.answer);
    };
    found += run(session, asked(ledger, text, question), strategy).solved ? 1 : 0;
    ++of;
  }
  EXPECT_GE(found, of - 1) << of;
}

TEST(TrainedHybrid, ItsHeadSavesSteps) {
  const Engine engine = load({.drafter = "mtp"});
  DecodeParams drafted = greedy();
  drafted.speculate = Speculate::kMtp;
  drafted.slack = std::numeric_limits<double>::infinity();
  const std::vector<std::string> texts = ledgers(500);
  const Answers plain = ask(engine, texts, greedy());
  const Answers fewer = ask(engine, texts, drafted);
  EXPECT_EQ(fewer.tokens, plain.tokens);
  EXPECT_LT(fewer.steps * 5, plain.steps * 4);
}

}  // namespace
}  // namespace dendrite
