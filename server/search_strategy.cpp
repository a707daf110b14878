#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "server/openai.h"
#include "server/search_request.h"

// Strategies, read. What code would say in a program is said by texts here: a prompt whose answers
// the model's chances weigh, and texts that a solution has.
namespace dendrite::server {
namespace {

constexpr std::size_t kMostText = 16 << 10;
constexpr std::size_t kMostOptions = 16;
constexpr std::size_t kMostTexts = 64;
constexpr std::int64_t kMostStepTokens = 4096;
constexpr double kLeastProbability = 1e-3;

using Solved = std::function<bool(const Branch&, const std::string&)>;

/// A question behind a thought, and what each answer is worth.
struct Value {
  std::vector<std::string> continuations;
  std::vector<double> worth;
};

/// What the model thinks of each candidate: the mean of what the answers are worth, by their
/// chances. It is asked on forks, which are free of the search's form, and leaves no trace.
std::vector<double> judge(Session& session, std::span<Branch> candidates, const Value& value,
                          const std::stop_token& cancel) {
  std::vector<Branch> forks;
  for (Branch& branch : candidates) {
    forks.push_back(branch.fork({.stream = branch.stream()}));
    forks.back().unconstrain();
  }
  const std::vector<std::vector<Score>> scores =
      session.score(forks, value.continuations, {.cancel = cancel});
  std::vector<double> values;
  for (const std::vector<Score>& of_one : scores) {
    double most = -std::numeric_limits<double>::infinity();
    for (const Score& score : of_one) most = std::max(most, score.logprob);
    double sum = 0;
    double mass = 0;
    for (std::size_t i = 0; i < of_one.size(); ++i) {
      const double chance = std::exp(of_one[i].logprob - most);  // NaN: it could not be computed
      sum += chance * value.worth[i];
      mass += chance;
    }
    values.push_back(sum / mass);
  }
  return values;
}

/// Reads a strategy's members.
class Reader {
 public:
  Reader(Fields& fields, Fields& body, const Service& service, const DecodeParams& decode,
         std::int64_t room, std::stop_token cancel)
      : fields_(fields),
        body_(body),
        service_(service),
        decode_(decode),
        room_(room),
        cancel_(std::move(cancel)) {}

  StrategyRead read();

 private:
  int whole(const char* name, int least, int most, int otherwise) {
    return static_cast<int>(fields_.integer(name, least, most).value_or(otherwise));
  }
  /// How many there may be side by side.
  int count(const char* name, int otherwise) {
    const int most = service_.options.max_n;
    return whole(name, 1, most, std::min(otherwise, most));
  }
  bool flag(const char* name) { return fields_.boolean(name).value_or(false); }
  std::string text(const char* name) { return fields_.text(name, kMostText).value_or(""); }
  std::vector<std::string> texts(const char* name, std::size_t least);
  std::vector<Token> ids(const char* name);
  std::optional<Value> value();
  Judgement judgement();
  Solved solved();
  Steps steps();
  /// Of the body: what this strategy has no use for.
  void refuse(std::initializer_list<const char*> names) {
    for (const char* name : names) body_.refuse(name, "strategy.type has no use for it");
  }
  template <typename Strategy>
  StrategyRead done(Strategy strategy, int at_once) {
    strategy.solved = solved();
    strategy.cancel = cancel_;
    return {std::move(strategy), at_once};
  }

  StrategyRead best_of_n();
  StrategyRead self_consistency();
  StrategyRead beam();
  StrategyRead tree_of_thoughts();
  StrategyRead depth_first();
  StrategyRead best_first();
  StrategyRead mcts();
  StrategyRead refinement();
  StrategyRead fork_join();

  Fields& fields_;
  Fields& body_;
  const Service& service_;
  const DecodeParams& decode_;
  std::int64_t room_;
  std::stop_token cancel_;
};

std::vector<std::string> Reader::texts(const char* name, std::size_t least) {
  std::vector<std::string> out;
  const Json* all = fields_.array(name, kMostTexts);
  if (all == nullptr) return out;
  for (std::size_t i = 0; i < all->size(); ++i) {
    const std::string path = at_index(fields_.path(name), i);
    if (!(*all)[i].is_string()) throw wrong_type(path, (*all)[i], "a text");
    out.push_back((*all)[i].get<std::string>());
    if (out.back().size() < least || out.back().size() > kMostText) {
      throw bad_request(path, "it has " + std::to_string(out.back().size()) + " bytes; expected " +
                                  std::to_string(least) + " to " + std::to_string(kMostText));
    }
  }
  return out;
}

std::vector<Token> Reader::ids(const char* name) {
  const Json* all = fields_.array(name, kMostTexts);
  if (all == nullptr) return {};
  return read_ids(*all, fields_.path(name), service_.engine.info().vocab);
}

std::optional<Value> Reader::value() {
  const Json* given = fields_.object("value");
  if (given == nullptr) return std::nullopt;
  Fields fields(*given, fields_.path("value"));
  const std::string prompt = fields.text("prompt", kMostText).value_or("");
  const Json* options = fields.object("options");
  if (options == nullptr) throw bad_request(fields.path("options"), "it is missing");
  if (options->size() < 2 || options->size() > kMostOptions) {
    throw bad_request(fields.path("options"), "it has " + std::to_string(options->size()) +
                                                  " members; expected 2 to " +
                                                  std::to_string(kMostOptions));
  }
  Value out;
  for (const auto& [answer, worth] : options->items()) {
    if (answer.empty() || answer.size() > kMostText) {
      throw bad_request(fields.path("options"),
                        "the answer " + echoed(answer) + " is empty or too long to be scored");
    }
    Fields each(*options, fields.path("options"));
    const std::optional<double> number = each.number(answer, -1e6, 1e6);
    if (!number) throw wrong_type(each.path(answer), worth, "a number");
    out.continuations.push_back(prompt + answer);
    out.worth.push_back(*number);
  }
  Ignored others;
  fields.rest(others);
  if (!others.empty()) {
    throw bad_request(others.paths().front(), "a value has prompt and options",
                      "unsupported_parameter");
  }
  return out;
}

Judgement Reader::judgement() {
  Judgement out;
  if (const std::optional<Value> asked = value()) {
    out.judge = [asked = *asked, cancel = cancel_](Session& session, std::span<Branch> candidates) {
      return judge(session, candidates, asked, cancel);
    };
  }
  return out;
}

Solved Reader::solved() {
  const std::vector<std::string> marks = texts("solved_by", 1);
  if (marks.empty()) return {};
  return [marks](const Branch& branch, const std::string&) {
    const std::string all = branch.text();
    return std::ranges::any_of(
        marks, [&](const std::string& mark) { return all.find(mark) != std::string::npos; });
  };
}

/// Of the strategies that grow a tree of lines.
Steps Reader::steps() {
  refuse({"top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
          "stop", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias", "bad_words"});
  Steps out;
  out.candidates = whole("candidates", 1, 64, out.candidates);
  out.temperature = decode_.temperature.value_or(out.temperature);
  out.max_step_tokens = std::min(
      room_, fields_.integer("max_step_tokens", 1, kMostStepTokens).value_or(out.max_step_tokens));
  out.judgement = judgement();
  if (const auto least = fields_.number("min_prob", kLeastProbability, 1)) {
    fields_.refuse("candidates", "with min_prob all steps are taken that are so likely");
    body_.refuse("temperature", "with min_prob nothing is drawn");
    const Token newline = service_.engine.encode("\n", false).back();
    if (service_.engine.decode(std::span(&newline, 1)) != "\n") {
      throw bad_request(fields_.path("min_prob"), "a line end is no token of this model",
                        "unsupported_value");
    }
    out.propose = [newline, least = *least, most = out.max_step_tokens, cancel = cancel_](
                      Session& session, std::span<Branch> nodes) {
      return expand_until(session, nodes, newline, least, most, cancel);
    };
  }
  return out;
}

StrategyRead Reader::best_of_n() {
  BestOfN out;
  out.n = count("n", out.n);
  out.sampling = decode_;
  out.judgement = judgement();
  out.first_success = flag("first_success");
  if (out.first_success && fields_.find("solved_by") == nullptr) {
    throw bad_request(fields_.path("first_success"), "there is no solved_by, which it waits for");
  }
  return done(std::move(out), out.n);
}

StrategyRead Reader::self_consistency() {
  SelfConsistency out;
  out.n = count("n", out.n);
  out.sampling = decode_;
  out.confidence = fields_.number("confidence", 0.5, 1).value_or(out.confidence);
  if (const std::string mark = text("answer_after"); !mark.empty()) {
    out.answer = [mark](const Branch&, const std::string& said) -> std::optional<std::string> {
      const std::size_t at = said.rfind(mark);
      if (at == std::string::npos) return std::nullopt;
      const std::string behind = said.substr(at + mark.size());
      const std::size_t begin = behind.find_first_not_of(" \t\r\n");
      if (begin == std::string::npos) return std::nullopt;
      return behind.substr(begin, behind.find_last_not_of(" \t\r\n") + 1 - begin);
    };
  }
  return done(std::move(out), out.n);
}

StrategyRead Reader::beam() {
  refuse({"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
          "frequency_penalty", "ignore_eos", "min_tokens", "logit_bias", "bad_words"});
  BeamSearch out;
  out.width = count("width", out.width);
  out.max_tokens = static_cast<int>(decode_.max_tokens);
  out.stop = decode_.stop;
  out.stop_tokens = decode_.stop_tokens;
  out.length_penalty = fields_.number("length_penalty", 0, 100).value_or(out.length_penalty);
  out.groups = whole("groups", 1, out.width, out.groups);
  if (out.width % out.groups != 0) {
    throw bad_request(fields_.path("groups"), "got " + std::to_string(out.groups) +
                                                  "; expected a divisor of the width, " +
                                                  std::to_string(out.width));
  }
  out.diversity = fields_.number("diversity", 0, 1e6).value_or(out.diversity);
  return done(std::move(out), out.width);
}

StrategyRead Reader::tree_of_thoughts() {
  refuse({"max_tokens"});
  TreeOfThoughts out;
  out.depth = whole("depth", 1, 64, out.depth);
  out.width = count("width", out.width);
  out.steps = steps();
  return done(std::move(out), out.width * out.steps.candidates);
}

StrategyRead Reader::depth_first() {
  refuse({"max_tokens"});
  DepthFirst out;
  out.depth = whole("depth", 1, 64, out.depth);
  out.width = count("width", out.width);
  out.threshold = fields_.number("threshold", -1e9, 1e9).value_or(out.threshold);
  out.max_nodes = fields_.integer("max_nodes", 0, INT32_MAX).value_or(out.max_nodes);
  out.steps = steps();
  return done(std::move(out), out.steps.candidates);
}

StrategyRead Reader::best_first() {
  refuse({"max_tokens"});
  BestFirst out;
  out.depth = whole("depth", 1, 64, out.depth);
  out.batch = count("batch", out.batch);
  out.max_expansions = fields_.integer("max_expansions", 0, INT32_MAX).value_or(out.max_expansions);
  out.max_frontier = fields_.integer("max_frontier", 0, INT32_MAX).value_or(out.max_frontier);
  out.steps = steps();
  return done(std::move(out), out.batch * out.steps.candidates);
}

StrategyRead Reader::mcts() {
  Mcts out;
  if (fields_.word("rule", {"uct", "puct"}) == "puct") out.rule = Mcts::Rule::kPuct;
  out.exploration = fields_.number("exploration", 0, 1e6).value_or(out.exploration);
  out.iterations = whole("iterations", 1, 100'000, out.iterations);
  out.batch = count("batch", out.batch);
  out.depth = whole("depth", 1, 64, out.depth);
  out.loss = fields_.number("loss", -1e6, 1e6).value_or(out.loss);
  out.rollouts = whole("rollouts", 0, 64, out.rollouts);
  if (out.rollouts == 0) refuse({"max_tokens"});
  out.steps = steps();
  out.rollout = decode_;
  return done(std::move(out), out.batch * out.steps.candidates);
}

StrategyRead Reader::refinement() {
  SelfRefinement out;
  out.rounds = whole("rounds", 0, 64, out.rounds);
  out.drafts = count("drafts", out.drafts);
  out.draft = decode_;
  const std::optional<Value> asked = value();
  if (!asked) throw bad_request(fields_.path("value"), "it is missing: drafts are judged by it");
  const double good_from =
      fields_.number("good_from", -1e6, 1e6).value_or(std::numeric_limits<double>::infinity());
  out.criticise = [asked = *asked, good_from, feedback = text("feedback"), cancel = cancel_](
                      Session& session, std::span<Branch> drafts) {
    std::vector<Critique> all;
    for (const double value : judge(session, drafts, asked, cancel)) {
      all.push_back({.value = value, .good = value >= good_from, .feedback = feedback});
    }
    return all;
  };
  return done(std::move(out), out.drafts);
}

StrategyRead Reader::fork_join() {
  ForkJoin out;
  out.open = text("open");
  out.open_tokens = ids("open_token_ids");
  if (out.open.empty() && out.open_tokens.empty()) {
    throw bad_request(fields_.path("open"), "it is missing, and so is open_token_ids");
  }
  out.close = text("close");
  out.close_tokens = ids("close_token_ids");
  out.children = count("children", out.children);
  if (const std::vector<std::string> begins = texts("begins", 0); !begins.empty()) {
    fields_.refuse("children", "there are as many as begins has texts");
    out.children = static_cast<int>(begins.size());
    out.begin = [begins](const Branch&, const std::string&) { return begins; };
  }
  out.max_forks = whole("max_forks", 0, 256, out.max_forks);
  out.nesting = whole("nesting", 1, 8, out.nesting);
  out.trunk = decode_;
  out.child = decode_;
  out.child.max_tokens = std::min(
      room_, fields_.integer("max_child_tokens", 1, INT32_MAX).value_or(decode_.max_tokens));
  if (flag("exact")) out.join.mode = ComposeParams::Mode::kExact;
  out.join.before_each = text("before_each");
  out.join.after_all = text("after_all");
  return done(std::move(out), out.children);
}

StrategyRead Reader::read() {
  using Read = StrategyRead (Reader::*)();
  static const std::vector<std::pair<std::string_view, Read>> kTypes = {
      {"best_of_n", &Reader::best_of_n},
      {"self_consistency", &Reader::self_consistency},
      {"beam", &Reader::beam},
      {"tree_of_thoughts", &Reader::tree_of_thoughts},
      {"depth_first", &Reader::depth_first},
      {"best_first", &Reader::best_first},
      {"mcts", &Reader::mcts},
      {"self_refinement", &Reader::refinement},
      {"fork_join", &Reader::fork_join}};
  std::vector<std::string_view> names;
  for (const auto& [name, function] : kTypes) names.push_back(name);
  const std::optional<std::string> type = fields_.word("type", names);
  if (!type) throw bad_request(fields_.path("type"), "it is missing");
  const Read function =
      std::ranges::find(kTypes, *type, &std::pair<std::string_view, Read>::first)->second;
  return (this->*function)();
}

}  // namespace

StrategyRead read_strategy(Fields& fields, Fields& body, const Service& service,
                           const DecodeParams& decode, std::int64_t room,
                           const std::stop_token& cancel) {
  return Reader(fields, body, service, decode, room, cancel).read();
}

}  // namespace dendrite::server
