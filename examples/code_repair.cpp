// A code-repair agent: five strategies race on forks of one broken program until a real test
// passes. The shipped model does it for the toy language that it was trained on (the steps of a
// game of 24, examples/data); with --prompt-template any model does it for any language. The agent
// knows no rules of the language: what a candidate is worth, its test says.
//
//   code_repair [--model DIR] [--device cpu|cuda] [--seed N] [--test CMD]
//               [--prompt-template FILE] [--grammar FILE] PROGRAM
//
// CMD is run by a shell in an empty folder, with limits (sandbox.h) and the path of the candidate
// behind it; exit status 0: it passes. Its output is the error message, and the line that it names
// last ("candidate.py:7", "line 7") is where the program is rewound to. In the template,
// {program} and {error} stand for the broken program and that message, and what the model writes
// behind it, to its end or to a line ```, is the new program. What it writes is a patch: the lines
// from where the program was cut. It is held to their format, so that no test is spent on what is
// none: lines of steps in the toy language, else what a Lark grammar describes, if one is given.
#include <dendrite/dendrite.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <regex>
#include <semaphore>
#include <sstream>
#include <thread>

#include "repair_view.h"
#include "sandbox.h"

namespace {
using namespace dendrite;

constexpr int kSamples = 6;  // of the strategy that samples
constexpr int kRounds = 4;   // that it has, each from the failure of the one before
constexpr sandbox::Limits kLimits{.wall = std::chrono::seconds(10)};
/// A patch in the toy language: steps like "10-4=6 | 5 6 6", a line each.
constexpr const char* kSteps =
    R"(([1-9][0-9]{0,2}[-+*/][1-9][0-9]{0,2}=[1-9][0-9]{0,2} \|( [1-9][0-9]{0,2})+\n)*(ok\n)?)";

struct Options {
  std::string model = "models/dendrite-24";
  std::string device = "cpu";
  std::uint64_t seed = 1;
  std::string test;
  std::string prompt_template;
  std::optional<Constraint> patch;
  std::string program = "examples/data/wrong_product.24";
};

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (!name.starts_with("--")) {
      options.program = name;
      continue;
    }
    if (i + 1 == arguments.size()) throw Error(name + " needs a value");
    const std::string& value = arguments[++i];
    if (name == "--model") {
      options.model = value;
    } else if (name == "--device") {
      options.device = value;
    } else if (name == "--seed") {
      options.seed = std::stoull(value);
    } else if (name == "--test") {
      options.test = value;
    } else if (name == "--prompt-template") {
      options.prompt_template = read_text(value);
    } else if (name == "--grammar") {
      options.patch = Constraint::lark(read_text(value));
    } else {
      throw Error("unknown option " + name);
    }
  }
  if (options.prompt_template.empty() && !options.patch) {
    options.patch = Constraint::regex(kSteps);
  }
  if (options.test.empty()) {
    options.test =
        "python3 '" + std::filesystem::absolute("examples/check_derivation.py").string() + "'";
  }
  return options;
}

/// The first `count` lines of `text`.
std::string first_lines(const std::string& text, std::int64_t count) {
  std::size_t end = 0;
  while (count-- > 0 && end < text.size())
    end = std::min(text.find('\n', end), text.size() - 1) + 1;
  return text.substr(0, end);
}

std::int64_t count_lines(const std::string& text) {
  return std::ranges::count(text, '\n');
}

std::string with_newline(std::string text) {
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

/// What a test said of a program.
struct Verdict {
  bool passed = false;
  std::int64_t line = 0;  ///< where it fails, from 1; 0: the test names none
  std::string output{};
  std::string message{};  ///< in a line
};

/// Runs tests in threads of their own, two at once, while branches decode. Equal programs are
/// tested once. The first that passes ends the race.
class Tests {
 public:
  Tests(const Options& options, RepairView& view)
      : command_(options.test + " \"$1\""),
        name_("candidate" + std::filesystem::path(options.program).extension().string()),
        view_(view) {}

  std::shared_future<Verdict> start(std::size_t node, const std::string& program) {
    const std::lock_guard lock(mutex_);
    std::shared_future<Verdict>& result = results_[program];
    if (!result.valid()) {
      result = std::async(std::launch::async, [this, node, program] { return run(node, program); });
    }
    return result;
  }

  Verdict run_one(const std::string& program) {
    const sandbox::Folder folder;
    const std::string file = folder.path() / name_;
    std::ofstream(file, std::ios::binary) << program;
    const sandbox::Outcome outcome = sandbox::run({"/bin/sh", "-c", command_, "sh", file},
                                                  folder.path(), kLimits, over_.get_token());
    Verdict verdict{.passed = outcome.passed(), .output = outcome.output};
    const std::string first = outcome.output.substr(0, outcome.output.find('\n'));
    verdict.message =
        outcome.end == sandbox::End::kExited && !first.empty() ? first : outcome.message();
    static const std::regex in_file(R"re(candidate[^\s:",]*"?(?::|, line )(\d{1,6}))re");
    static const std::regex in_words(R"(\bline (\d{1,6}))");
    for (const std::regex* named : {&in_words, &in_file}) {
      std::string text = outcome.output;
      for (std::smatch match; std::regex_search(text, match, *named); text = match.suffix()) {
        verdict.line = std::stoll(match[1]);
      }
    }
    return verdict;
  }

  bool passed() const { return winner_ != kNobody; }
  std::size_t winner() const { return winner_; }
  std::string repaired() const { return repaired_; }  ///< once passed
  int count() const { return count_; }                ///< tests that were run
  std::stop_token over() const { return over_.get_token(); }
  /// Until all have ended; none may be started meanwhile.
  void wait() const {
    for (const auto& [program, result] : results_) result.wait();
  }

 private:
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  Verdict run(std::size_t node, const std::string& program) {
    slots_.acquire();
    Verdict verdict{.message = "not tested"};
    if (!over_.stop_requested()) {
      view_.update(node, [](auto& shown) { shown.state = "testing"; });
      ++count_;
      verdict = run_one(program);
    }
    slots_.release();
    if (!verdict.passed && !over_.stop_requested()) {
      view_.update(node, [&](auto& shown) { shown.state = "failed: " + verdict.message; });
    }
    if (!verdict.passed) return verdict;
    const std::lock_guard lock(mutex_);
    if (!passed()) {
      repaired_ = program;
      winner_ = node;
      over_.request_stop();
    }
    return verdict;
  }

  std::string command_, name_;
  RepairView& view_;
  std::counting_semaphore<> slots_{2};
  std::mutex mutex_;
  std::atomic<std::size_t> winner_ = kNobody;
  std::string repaired_;
  std::atomic<int> count_ = 0;
  std::stop_source over_;
  std::map<std::string, std::shared_future<Verdict>> results_;  // last: waits for its threads first
};

/// One attempt at the program: a branch that keeps some lines of it and writes the rest.
struct Candidate {
  std::size_t node;  ///< of the view
  Branch branch;
  std::string body;  ///< the lines that it keeps, then what it wrote as well
  std::shared_future<Verdict> test{};
};

class Agent {
 public:
  explicit Agent(const Options& options)
      : options_(options),
        engine_(Engine::load(options.model, {.device = options.device})),
        session_(engine_, {.seed = options.seed, .budget = {.tokens = 200'000}}) {}

  int repair();

 private:
  bool toy() const { return options_.prompt_template.empty(); }
  std::string prompt(const Verdict& failure) const;
  Branch rewind(Branch& branch, const std::string& kept);
  Candidate candidate(const std::string& name, int depth, Branch& from, std::int64_t lines);
  void decode(std::vector<Candidate>& candidates, const DecodeParams& params);
  void sample_and_revise(std::size_t node, Branch& program, std::int64_t lines);
  void search_by_steps(std::size_t node);
  void report(const Verdict& failure);

  Options options_;
  Engine engine_;
  Session session_;
  RepairView view_;
  Tests tests_{options_, view_};
  std::string program_, head_, body_, prompt_;  // the file is head and body; the head stays
  std::int64_t prompt_tokens_ = 0;
};

/// In the toy language the head of the file is what the model is asked.
std::string Agent::prompt(const Verdict& failure) const {
  if (toy()) return head_;
  std::string text;
  std::string_view rest = options_.prompt_template;
  while (!rest.empty()) {
    std::size_t taken = 1;
    if (rest.starts_with("{program}")) {
      text += program_;
      taken = 9;
    } else if (rest.starts_with("{error}")) {
      text += failure.output;
      taken = 7;
    } else {
      text += rest[0];
    }
    rest.remove_prefix(taken);
  }
  return text;
}

/// A fork of `branch` that has the prompt and `kept`, a prefix of what follows there; what it
/// writes now is a patch. Tokens that spell `kept` are shared; where a token spans its end, the
/// text is encoded anew from that token on.
Branch Agent::rewind(Branch& branch, const std::string& kept) {
  const std::vector<Token> tokens = branch.tokens();
  std::int64_t length = prompt_tokens_;
  std::string text;
  while (length < branch.length()) {
    const Token token[] = {tokens[static_cast<std::size_t>(length)]};
    const std::string next = text + engine_.decode(token);
    if (!kept.starts_with(next)) break;
    text = next;
    ++length;
  }
  Branch fork = branch.at(length);
  if (text.size() < kept.size()) fork.append(std::string_view(kept).substr(text.size()));
  // (One that was cut inside of a patch is held to the rest of it.)
  if (options_.patch && !fork.constraint()) fork.constrain(*options_.patch);
  return fork;
}

/// A candidate that keeps the first `lines` of the broken program, whose branch is `from`.
Candidate Agent::candidate(const std::string& name, int depth, Branch& from, std::int64_t lines) {
  const std::string kept = first_lines(body_, lines);
  return {view_.add(name, depth), rewind(from, kept), kept};
}

/// Decodes all in one batch. The test of each begins when it ends, while the others go on; a test
/// that passes meanwhile ends the batch and prunes the others.
void Agent::decode(std::vector<Candidate>& candidates, const DecodeParams& params) {
  std::vector<Branch> branches;
  for (Candidate& each : candidates) branches.push_back(std::move(each.branch));
  DecodeParams race = params;
  race.cancel = tests_.over();
  race.on_token = [&](const TokenEvent& event) {
    view_.update(candidates[event.index].node, [&](auto& shown) {
      shown.state = "running";
      shown.text += event.text;
      ++shown.tokens;
    });
  };
  race.enough = [&](std::size_t index, const Generation& generation) {
    Candidate& each = candidates[index];
    each.body += with_newline(generation.text);
    each.test = tests_.start(each.node, head_ + each.body);
    return tests_.passed();
  };
  session_.decode(branches, race);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].branch = std::move(branches[i]);
    // Its pages stay while it waits for its test: a revision goes on from them.
    if (candidates[i].branch.valid()) candidates[i].branch.hold(2 * kLimits.wall);
  }
}

/// Strategy 3, a batch of samples. What fails is rewound to where its own test failed, one line
/// further each round, and sampled again.
void Agent::sample_and_revise(std::size_t node, Branch& program, std::int64_t lines) {
  std::vector<Candidate> samples;
  for (int i = 0; i < kSamples; ++i) {
    samples.push_back({node + static_cast<std::size_t>(i),
                       rewind(program, first_lines(body_, lines)), first_lines(body_, lines)});
  }
  for (int round = 1; !tests_.passed(); ++round) {
    decode(samples, {.max_tokens = 512, .stop = {"\n```"}, .temperature = 1.0});
    std::vector<Candidate> again;
    for (Candidate& each : samples) {
      if (!each.test.valid()) continue;  // the race or the budget ended it
      const Verdict& verdict = each.test.get();
      if (tests_.passed()) return;
      view_.update(each.node, [&](auto& shown) { shown.state = "failed: " + verdict.message; });
      const std::int64_t good = verdict.line - 1 - count_lines(head_);
      each.body = first_lines(each.body, std::max<std::int64_t>(0, good - round + 1));
      each.branch = rewind(each.branch, each.body);
      again.push_back(std::move(each));
    }
    if (round == kRounds || again.empty()) return;
    samples = std::move(again);
  }
}

/// Strategy 5: Tree-of-Thoughts, a line a step. The shipped model proposes in a mode of its own and
/// judges a state by its answer to "?"; another model samples lines and goes by their likelihood.
void Agent::search_by_steps(std::size_t node) {
  TreeOfThoughts strategy;
  strategy.depth = 64;
  strategy.width = 3;
  strategy.steps.candidates = 6;
  strategy.cancel = tests_.over();
  std::string prompt = prompt_;
  if (toy()) {
    prompt[0] = 'P';
    strategy.depth = static_cast<int>(std::ranges::count(head_, ' ')) - 2;  // numbers, less one
    const Token newline = engine_.encode("\n", false).back();
    strategy.steps.propose = [newline, over = tests_.over()](Session& s, std::span<Branch> nodes) {
      return expand_until(s, nodes, newline, 0.003, 32, over);
    };
    strategy.steps.judgement.judge = [over = tests_.over()](Session& s, std::span<Branch> nodes) {
      std::vector<Branch> asked;  // what is no part of a patch
      for (Branch& node : nodes) asked.emplace_back(node.fork()).unconstrain();
      std::vector<double> values;
      for (const std::vector<Score>& labels : s.score(asked, {"?s", "?i"}, {.cancel = over})) {
        values.push_back(labels[0].logprob - labels[1].logprob);
      }
      return values;
    };
  }
  strategy.solved = [&](const Branch& branch, const std::string&) {
    const bool passed = tests_.start(node, head_ + with_newline(branch.text())).get().passed;
    if (!passed) view_.update(node, [](auto& shown) { shown.state = "running"; });
    return passed;
  };
  strategy.on_event = [&](const SearchEvent& event) {
    view_.update(node, [&](auto& shown) {
      if (event.kind == SearchEvent::Kind::kProposed) shown.tokens += event.thought->tokens;
      if (event.kind == SearchEvent::Kind::kKept) shown.text = event.thought->text;
      shown.state = "running";
    });
  };
  Branch root = session_.prefill(prompt, {.cancel = strategy.cancel});
  if (options_.patch) root.constrain(*options_.patch);
  const SearchResult result = run(session_, std::move(root), strategy);
  if (result.solved || tests_.passed()) return;
  view_.update(node, [&](auto& shown) {
    shown.state = std::string("failed: no solution found (") + name_of(result.finish) + ")";
  });
}

void Agent::report(const Verdict& failure) {
  const Stats stats = session_.stats();
  if (tests_.passed()) {
    std::printf("\nrepaired:\n%s", tests_.repaired().c_str());
  } else {
    std::printf(
        "\nnot repaired: no candidate of five strategies passes the test, which said of "
        "the program: %s\n",
        failure.message.c_str());
  }
  std::printf(
      "%d programs tested, %lld forks (%.0f ns each), %lld tokens computed, %lld as "
      "independent requests\n",
      tests_.count(), static_cast<long long>(stats.forks), stats.fork_ns,
      static_cast<long long>(stats.tokens_computed),
      static_cast<long long>(stats.tokens_independent));
  std::printf("KV at the widest step: %lld bytes, %lld without sharing\n",
              static_cast<long long>(stats.kv_bytes_unique),
              static_cast<long long>(stats.kv_bytes_naive));
}

int Agent::repair() {
  program_ = with_newline(read_text(options_.program));
  head_ = toy() ? first_lines(program_, 1) : "";
  body_ = program_.substr(head_.size());
  const Verdict failure = tests_.run_one(program_);
  std::printf("%s%s\n", program_.c_str(),
              failure.passed ? "passes its test" : ("fails: " + failure.message).c_str());
  if (failure.passed) return 0;

  // The whole broken program is computed once; every strategy is a fork from its past.
  prompt_ = prompt(failure);
  std::vector<Token> tokens = engine_.encode(prompt_);
  prompt_tokens_ = std::ssize(tokens);
  std::ranges::copy(engine_.encode_after(tokens, body_), std::back_inserter(tokens));
  Branch program = session_.prefill(tokens);
  const std::int64_t body_lines = count_lines(body_);
  const std::int64_t good =
      std::clamp<std::int64_t>(failure.line - 1 - count_lines(head_), 0, body_lines);
  const std::string from = "line " + std::to_string(good + 1 + count_lines(head_));

  std::vector<Candidate> last, greedy;
  last.push_back(
      candidate("1 rewrite the last line", 1, program, std::max<std::int64_t>(0, body_lines - 1)));
  greedy.push_back(candidate("2 rewind to " + from + ", greedy", 1, program, good));
  const std::size_t samples = view_.add("3 rewind to " + from + ", sample and revise", 1, "");
  for (int i = 1; i <= kSamples; ++i) view_.add("3." + std::to_string(i), 2);
  greedy.push_back(candidate("4 start over", 1, program, 0));
  const std::size_t by_steps = view_.add("5 start over step by step, with a judge", 1);

  {
    std::future<void> search =
        std::async(std::launch::async, [this, by_steps] { search_by_steps(by_steps); });
    decode(last, {.max_tokens = 128, .stop = {"\n"}, .temperature = 0});
    decode(greedy, {.max_tokens = 512, .stop = {"\n```"}, .temperature = 0});
    sample_and_revise(samples + 1, program, good);
    for (std::vector<Candidate>* group : {&last, &greedy}) {
      for (Candidate& each : *group) {
        if (!each.test.valid()) continue;
        const Verdict& verdict = each.test.get();
        if (verdict.passed || tests_.passed()) continue;
        view_.update(each.node, [&](auto& shown) { shown.state = "failed: " + verdict.message; });
      }
    }
    search.get();
  }
  tests_.wait();
  if (tests_.passed()) {
    view_.finish(tests_.winner());
  }
  report(failure);
  return tests_.passed() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  return Agent(parse({argv + 1, argv + argc})).repair();
} catch (const std::exception& error) {
  std::fprintf(stderr, "code_repair: %s\n", error.what());
  return 1;
}
