#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "dendrite/error.h"
#include "engine/divergence.h"
#include "options.h"

// compose-quality: what composing costs in answers. A file of questions on documents
// (tools/train/README.md), each asked of the whole context computed at once and of compositions of
// its documents: accuracy, and KL(whole || composed) at the answer's tokens, by class of question,
// by what chunks are computed behind (left) and by what is repaired.

namespace dendrite::bench {
namespace {

struct QualityOptions {
  CommonOptions common;
  std::string questions;
  int count = 100;  // of each class
  std::vector<std::string> lefts = {"prefix", "stub", "none"};
  std::vector<std::int64_t> firsts = {0, 4, 8, 16, 32, 64};
  std::vector<std::int64_t> lasts = {0, 2, 4};
  std::vector<double> tops = {0};
};

struct Question {
  std::string kind;
  std::vector<Token> system;
  std::vector<std::vector<Token>> documents;
  std::vector<Token> question;
  std::vector<Token> answer;
};

struct Tally {
  std::int64_t asked = 0;
  std::int64_t right = 0;
  std::vector<double> kls;
};

class QualityBench {
 public:
  explicit QualityBench(const QualityOptions& options)
      : options_(options),
        engine_(options.common.load()),
        session_(engine_, {.seed = 1}),
        report_("compose-quality") {
    report_.describe(engine_, options.common.model_name());
  }

  void run() {
    const std::vector<Question> questions = read();
    for (const Question& question : questions) ask(question);
    for (const auto& [key, tally] : tallies_) {
      const auto& [kind, policy] = key;
      Json extra = Json::object();
      if (!tally.kls.empty()) {
        std::vector<double> sorted = tally.kls;
        std::ranges::sort(sorted);
        double mean = 0;
        for (const double value : sorted) mean += value / static_cast<double>(sorted.size());
        extra["kl_mean"] = mean;
        extra["kl_p95"] =
            sorted[static_cast<std::size_t>(0.95 * static_cast<double>(sorted.size() - 1))];
        report_.add_value(kind, {{"policy", policy}}, "KL", mean);
      }
      report_.add_share(kind, {{"policy", policy}}, "right", tally.right, tally.asked, extra);
    }
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  std::vector<Question> read() {
    std::ifstream file(options_.questions);
    if (!file) throw Error(options_.questions + ": cannot be read; expected questions, one a line");
    std::map<std::string, int> counts;
    std::vector<Question> questions;
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      if (!json.contains("documents")) continue;
      Question question;
      question.kind = json.at("class");
      if (++counts[question.kind] > options_.count) continue;
      question.system = engine_.encode(json.at("system").get<std::string>(), true);
      if (json.contains("common")) {
        const auto common = engine_.encode(json.at("common").get<std::string>(), false);
        question.system.insert(question.system.end(), common.begin(), common.end());
      }
      for (const auto& document : json.at("documents")) {
        question.documents.push_back(engine_.encode(document.get<std::string>(), false));
      }
      question.question = engine_.encode(json.at("question").get<std::string>(), false);
      question.answer = engine_.encode(json.at("answer").get<std::string>() + "\n", false);
      questions.push_back(std::move(question));
    }
    return questions;
  }

  /// The distributions that the answer's tokens are drawn from.
  std::vector<Distribution> rows(Branch& branch, const std::vector<Token>& answer) {
    Branch whole = branch.fork();
    whole.append(std::span(answer).first(answer.size() - 1));
    std::vector<Branch> forks;
    for (std::size_t i = 0; i < answer.size(); ++i) {
      forks.push_back(whole.at(branch.length() + static_cast<std::int64_t>(i)));
    }
    return session_.distributions(forks);
  }

  void count(const std::string& kind, const std::string& policy, const Question& question,
             std::span<const Distribution> got, std::span<const Distribution> whole) {
    Tally& tally = tallies_[{kind, policy}];
    ++tally.asked;
    bool right = true;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto logits = got[i].logits();
      right = right && std::ranges::max_element(logits) - logits.begin() == question.answer[i];
      if (!whole.empty()) tally.kls.push_back(divergence_at(whole[i].logits(), logits));
    }
    tally.right += right ? 1 : 0;
  }

  void ask(const Question& question) {
    std::vector<Token> all = question.system;
    for (const auto& document : question.documents) {
      all.insert(all.end(), document.begin(), document.end());
    }
    all.insert(all.end(), question.question.begin(), question.question.end());
    Branch plain = session_.prefill(all);
    const std::vector<Distribution> whole = rows(plain, question.answer);
    count(question.kind, "whole", question, whole, {});
    for (const std::string& left : options_.lefts) {
      ChunkParams params{.stub = left == "stub"};
      if (left == "prefix") params.prefix = question.system;
      std::vector<Piece> pieces = {Piece::tokens(question.system)};
      for (const auto& document : question.documents) {
        pieces.push_back(Piece::chunk(session_.register_chunk(document, params)));
      }
      pieces.push_back(Piece::tokens(question.question));
      for (const std::int64_t first : options_.firsts) {
        for (const std::int64_t last : options_.lasts) {
          for (const double top : options_.tops) {
            Branch composed =
                session_.compose(pieces, {.repair = {.first = first, .last = last, .top = top}})
                    .branch;
            std::string policy =
                left + " first=" + std::to_string(first) + " last=" + std::to_string(last);
            if (top > 0) policy += " top=" + std::to_string(top);
            count(question.kind, policy, question, rows(composed, question.answer), whole);
          }
        }
      }
    }
  }

  QualityOptions options_;
  Engine engine_;
  Session session_;
  Report report_;
  std::map<std::pair<std::string, std::string>, Tally> tallies_;
};

}  // namespace

void add_compose_quality(CLI::App& app) {
  auto options = std::make_shared<QualityOptions>();
  CLI::App& command = *app.add_subcommand(
      "compose-quality", "answers and KL of compositions beside the whole context, by repair");
  options->common.add_to(command);
  command.add_option("--questions", options->questions, "questions, one JSON object a line")
      ->required();
  add_count(command, "--count", options->count, "questions of each class");
  command
      .add_option("--lefts", options->lefts, "what chunks are computed behind: prefix, stub, none")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--firsts", options->firsts, "first tokens of each document that are computed")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--lasts", options->lasts, "and last ones")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--tops", options->tops, "and parts of the groups that differ most, 0 to 1")
      ->delimiter(',')
      ->capture_default_str();
  command.callback([options] { QualityBench(*options).run(); });
}

}  // namespace dendrite::bench
