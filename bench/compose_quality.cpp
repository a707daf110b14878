#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "dendrite/error.h"
#include "engine/context/divergence.h"
#include "options.h"

// compose-quality: what composing costs in answers. A file of held-out questions
// (tools/train/README.md), each asked of the whole context computed at once and of compositions:
// of its documents, by what these are computed behind (left), or of what an edit leaves of a
// transcript. Accuracy, and KL(whole || composed) at the answer's tokens, by class of question or
// kind of edit and by what is repaired. With --estimates, what compose() estimates its error to be
// beside what it is, at the question's tokens, which the estimate is of, and at the answer's.

namespace dendrite::bench {
namespace {

struct QualityOptions {
  CommonOptions common;
  std::string questions;
  int count = 100;  // of each class
  std::vector<std::string> lefts = {"prefix", "stub", "bos", "none"};
  std::vector<std::int64_t> firsts = {0, 4, 8, 16, 32, 64};
  std::vector<std::int64_t> lasts = {0, 2, 4};
  std::vector<double> tops = {0};
  std::vector<std::string> classes;       // empty: all
  std::vector<std::int64_t> estimates{};  // first tokens from which the error is estimated
};

/// A turn that stays, by its number, or new text.
using Turn = std::variant<std::size_t, std::vector<Token>>;

struct Edited {
  std::string kind;
  std::vector<Turn> turns;
  std::vector<Token> answer;
};

struct Question {
  std::string kind;
  std::vector<Token> system;
  std::vector<std::vector<Token>> pieces;  // documents or turns
  std::vector<Token> question;
  std::vector<Token> answer;
  std::vector<Edited> edits;  // of turns
};

struct Tally {
  std::int64_t asked = 0;
  std::int64_t right = 0;
  std::vector<double> kls;
};

struct Estimated {
  std::vector<double> estimates;
  std::vector<double> at_question;
  std::vector<double> at_answer;
};

void append(std::vector<Token>& to, std::span<const Token> tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

/// At least so much has the share p of them not more than.
double quantile(std::vector<double> values, double p) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(p * static_cast<double>(values.size() - 1))];
}

/// Spearman's.
double rank_correlation(std::span<const double> a, std::span<const double> b) {
  const auto ranks = [](std::span<const double> values) {
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
    std::vector<double> ranks(values.size());
    for (std::size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<double>(i);
    return ranks;
  };
  const std::vector<double> x = ranks(a);
  const std::vector<double> y = ranks(b);
  const auto n = static_cast<double>(x.size());
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
  return 1 - 6 * squares / (n * (n * n - 1));
}

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
    for (const Question& question : questions) {
      if (question.edits.empty()) {
        ask(question);
      } else {
        ask_edited(question);
      }
    }
    for (const auto& [key, tally] : tallies_) {
      const auto& [kind, policy] = key;
      Json extra = Json::object();
      if (!tally.kls.empty()) {
        double mean = 0;
        for (const double kl : tally.kls) mean += kl / static_cast<double>(tally.kls.size());
        extra["kl_mean"] = mean;
        extra["kl_p95"] = quantile(tally.kls, 0.95);
        extra["kl_max"] = std::ranges::max(tally.kls);
        report_.add_value(kind, {{"policy", policy}}, "KL", mean);
      }
      report_.add_share(kind, {{"policy", policy}}, "right", tally.right, tally.asked, extra);
    }
    for (const auto& [first, pairs] : estimated_) {
      report_estimates(first, "question", pairs.estimates, pairs.at_question);
      report_estimates(first, "answer", pairs.estimates, pairs.at_answer);
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
      Question question;
      question.kind = json.at("class");
      if (!options_.classes.empty() &&
          std::ranges::find(options_.classes, question.kind) == options_.classes.end()) {
        continue;
      }
      if (++counts[question.kind] > options_.count) continue;
      question.system = engine_.encode(json.at("system").get<std::string>(), true);
      if (json.contains("common")) append(question.system, encode(json.at("common")));
      for (const auto& piece : json.at(json.contains("turns") ? "turns" : "documents")) {
        question.pieces.push_back(encode(piece));
      }
      question.question = encode(json.at("question"));
      question.answer = encode(json.at("answer"), "\n");
      for (const auto& edit : json.value("edits", Json::array())) {
        Edited& edited = question.edits.emplace_back();
        edited.kind = edit.at("kind");
        edited.answer = encode(edit.at("answer"), "\n");
        for (const auto& turn : edit.at("turns")) {
          if (turn.is_string()) {
            edited.turns.emplace_back(encode(turn));
          } else {
            edited.turns.emplace_back(turn.get<std::size_t>());
          }
        }
      }
      questions.push_back(std::move(question));
    }
    return questions;
  }
  std::vector<Token> encode(const Json& text, const char* end = "") const {
    return engine_.encode(text.get<std::string>() + end, false);
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

  void count(const std::string& kind, const std::string& policy, std::span<const Token> answer,
             std::span<const Distribution> got, std::span<const Distribution> whole) {
    Tally& tally = tallies_[{kind, policy}];
    ++tally.asked;
    bool right = true;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto logits = got[i].logits();
      right = right && std::ranges::max_element(logits) - logits.begin() == answer[i];
      if (!whole.empty()) tally.kls.push_back(divergence_at(whole[i].logits(), logits));
    }
    tally.right += right ? 1 : 0;
  }

  /// Counts what all tokens give where they are computed at once.
  std::vector<Distribution> count_whole(const std::string& kind, const std::vector<Token>& all,
                                        const std::vector<Token>& answer) {
    Branch plain = session_.prefill(all);
    std::vector<Distribution> whole = rows(plain, answer);
    count(kind, "whole", answer, whole, {});
    return whole;
  }
  /// And what they give where they are composed, by each repair.
  void count_composed(const std::string& kind, const std::string& left,
                      std::span<const Piece> pieces, const std::vector<Token>& answer,
                      std::span<const Distribution> whole) {
    for (const std::int64_t first : options_.firsts) {
      for (const std::int64_t last : options_.lasts) {
        for (const double top : options_.tops) {
          Branch composed =
              session_.compose(pieces, {.repair = {.first = first, .last = last, .top = top}})
                  .branch;
          std::string policy =
              left + " first=" + std::to_string(first) + " last=" + std::to_string(last);
          if (top > 0) policy += " top=" + std::to_string(std::lround(100 * top)) + "%";
          count(kind, policy, answer, rows(composed, answer), whole);
        }
      }
    }
  }

  void ask(const Question& question) {
    std::vector<Token> all = question.system;
    for (const auto& document : question.pieces) append(all, document);
    append(all, question.question);
    const auto whole = count_whole(question.kind, all, question.answer);
    for (const std::string& left : options_.lefts) {
      ChunkParams params{.stub = left == "stub"};
      if (left == "prefix") params.prefix = question.system;
      if (left == "bos") params.prefix = {question.system.front()};
      std::vector<Piece> pieces = {Piece::tokens(question.system)};
      for (const auto& document : question.pieces) {
        pieces.push_back(Piece::chunk(session_.register_chunk(document, params)));
      }
      pieces.push_back(Piece::tokens(question.question));
      count_composed(question.kind, left, pieces, question.answer, whole);
      if (left == options_.lefts.front()) estimate(question, pieces, whole);
    }
  }

  /// What an edit leaves is what was computed before it, moved, and new text.
  void ask_edited(const Question& question) {
    std::vector<Token> before = question.system;
    std::vector<std::int64_t> begins;
    for (const auto& turn : question.pieces) {
      begins.push_back(std::ssize(before));
      append(before, turn);
    }
    const Branch branch = session_.prefill(before);
    for (const Edited& edited : question.edits) {
      std::vector<Token> all = question.system;
      std::vector<Piece> pieces;
      Span span{0, std::ssize(question.system)};  // of the branch, not among the pieces yet
      const auto close = [&] {
        if (span.begin < span.end) pieces.push_back(Piece::span(branch, span.begin, span.end));
      };
      for (const Turn& turn : edited.turns) {
        if (const auto* text = std::get_if<std::vector<Token>>(&turn)) {
          close();
          span = {};
          pieces.push_back(Piece::tokens(*text));
          append(all, *text);
          continue;
        }
        const std::size_t number = std::get<std::size_t>(turn);
        const std::vector<Token>& tokens = question.pieces.at(number);
        if (begins[number] != span.end) {
          close();
          span = {begins[number], begins[number]};
        }
        span.end += std::ssize(tokens);
        append(all, tokens);
      }
      close();
      pieces.push_back(Piece::tokens(question.question));
      append(all, question.question);
      const auto whole = count_whole(edited.kind, all, edited.answer);
      count_composed(edited.kind, "edit", pieces, edited.answer, whole);
    }
  }

  void estimate(const Question& question, std::span<const Piece> pieces,
                std::span<const Distribution> whole) {
    for (const std::int64_t first : options_.estimates) {
      constexpr double kAny = 1e9;  // a target that the first estimate meets
      Composed composed = session_.compose(pieces, {.repair = {.first = first}, .target_kl = kAny});
      if (!composed.report.estimate) continue;  // nothing was moved
      Branch exact = session_.settle(composed.branch);
      constexpr Estimate::Kind kTruth = Estimate::Kind::kAudit;
      Estimated& pairs = estimated_[2 * first];
      pairs.estimates.push_back(composed.report.estimate->kl_mean);
      pairs.at_question.push_back(
          divergence(last_rows(exact, question), last_rows(composed.branch, question), kTruth)
              .kl_mean);
      pairs.at_answer.push_back(
          divergence(whole, rows(composed.branch, question.answer), kTruth).kl_mean);
    }
  }
  /// The distributions after the question's tokens.
  std::vector<Distribution> last_rows(Branch& branch, const Question& question) {
    std::vector<Branch> forks;
    for (std::int64_t left = std::ssize(question.question) - 1; left >= 0; --left) {
      forks.push_back(branch.at(branch.length() - left));
    }
    return session_.distributions(forks);
  }
  void report_estimates(std::int64_t first, const char* where, std::span<const double> estimates,
                        const std::vector<double>& truths) {
    std::int64_t covered = 0;
    std::vector<double> factors;  // by which the estimate would have to grow
    for (std::size_t i = 0; i < truths.size(); ++i) {
      covered += truths[i] <= estimates[i] ? 1 : 0;
      factors.push_back(truths[i] / estimates[i]);
    }
    const Json params{{"first", first}, {"at", where}};
    report_.add_share(
        "estimate", params, "not below the truth", covered, std::ssize(truths),
        {{"truth_p50", quantile(truths, 0.5)}, {"truth_p95", quantile(truths, 0.95)}});
    report_.add_value("estimate", params, "factor for 90 %", quantile(factors, 0.9));
    report_.add_value("estimate", params, "rank correlation", rank_correlation(estimates, truths));
  }

  QualityOptions options_;
  Engine engine_;
  Session session_;
  Report report_;
  std::map<std::pair<std::string, std::string>, Tally> tallies_;
  std::map<std::int64_t, Estimated> estimated_;  // by the first tokens that are repaired
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
  command.add_option("--classes", options->classes, "of questions; all, if none")->delimiter(',');
  command
      .add_option("--lefts", options->lefts,
                  "what chunks are computed behind: prefix, stub, bos, none")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--firsts", options->firsts, "first tokens of each document that are computed")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--lasts", options->lasts, "and last ones")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--tops", options->tops, "and parts of what is still moved, by deviation")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--estimates", options->estimates,
                  "first tokens of which twice as many are composed with an estimate, and audited")
      ->delimiter(',');
  command.callback([options] { QualityBench(*options).run(); });
}

}  // namespace dendrite::bench
