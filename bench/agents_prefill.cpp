#include "agents_prefill.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "machine.h"
#include "models.h"

namespace dendrite::bench {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// One that decodes in a session of its own, call after call.
struct Other {
  std::vector<double> times;  // of its tokens
  std::vector<Token> tokens;  // of its first call
  std::exception_ptr error;
};

/// Threads that decode from construction until stop().
class Others {
 public:
  Others(const Engine& engine, const LongPromptOptions& options)
      : options_(options), others_(static_cast<std::size_t>(options.others)) {
    for (std::size_t i = 0; i < others_.size(); ++i) {
      threads_.emplace_back([this, &engine, i] {
        try {
          decode(engine, i);
        } catch (...) {
          others_[i].error = std::current_exception();
          count(kAll);
        }
      });
    }
  }
  ~Others() { stop_.request_stop(); }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

  /// Until they have so many tokens more, at the mean, or one has failed.
  void wait_for(std::int64_t tokens) const {
    const std::int64_t end = total_.load() + tokens * options_.others;
    for (std::int64_t now = total_.load(); now < end; now = total_.load()) total_.wait(now);
  }

  /// Ends and returns them. Throws what one of them failed with.
  std::vector<Other> stop() {
    stop_.request_stop();
    threads_.clear();  // joins
    for (const Other& other : others_) {
      if (other.error != nullptr) std::rethrow_exception(other.error);
    }
    return std::move(others_);
  }

 private:
  static constexpr std::int64_t kAll = std::int64_t{1} << 40;  // wakes whoever waits

  void decode(const Engine& engine, std::size_t index) {
    Other& other = others_[index];
    const auto stream = static_cast<std::uint64_t>(index);
    Session session(engine, {.seed = 1, .stream = stream});
    Branch root =
        session.prefill(random_tokens(options_.others_prompt, engine.info().vocab, 1000 + stream));
    DecodeParams params{
        .max_tokens = options_.others_length, .temperature = 0.7, .ignore_eos = true};
    params.cancel = stop_.get_token();
    params.on_token = [&](const TokenEvent&) {
      other.times.push_back(now_seconds());
      count(1);
    };
    while (!stop_.stop_requested()) {
      Branch branch = root.fork();
      const Generation made = session.decode(branch, params);
      if (other.tokens.empty()) other.tokens = made.ids;
      if (made.finish == Finish::kBudget) {
        throw Error("KV pages ran out beside the long prompt; expected a larger --kv-tokens");
      }
    }
  }

  void count(std::int64_t tokens) {
    total_ += tokens;
    total_.notify_all();
  }

  const LongPromptOptions& options_;
  std::vector<Other> others_;
  std::atomic<std::int64_t> total_ = 0;
  std::stop_source stop_;
  std::vector<std::jthread> threads_;
};

/// What one trial found, in ms.
struct Trial {
  double alone_ms = 0;
  double beside_ms = 0;
  double rows = 0;                // a step, beside
  std::vector<double> before;     // gaps between others' tokens before the prefill
  std::vector<double> meanwhile;  // gaps that some of the prefill fell into
};

/// Gaps that end after `begin` and start before `end`; one that is open when the others stop counts
/// as it is.
std::vector<double> gaps_between(const std::vector<Other>& others, double begin, double end) {
  const double stopped = now_seconds();
  std::vector<double> out;
  for (const Other& other : others) {
    for (std::size_t i = 0; i < other.times.size(); ++i) {
      const double next = i + 1 < other.times.size() ? other.times[i + 1] : stopped;
      if (next > begin && other.times[i] < end) out.push_back((next - other.times[i]) * 1e3);
    }
  }
  return out;
}

class LongPromptBench {
 public:
  LongPromptBench(const CommonOptions& common, LongPromptOptions options, int trials,
                  Report& report)
      : common_(common), options_(std::move(options)), trials_(trials), report_(report) {
    common_.engine.prefix_index = false;  // every prompt is to be computed
    const bool cpu = common_.engine.device == "cpu";
    if (options_.prompt_length == 0) options_.prompt_length = cpu ? 960 : 32768;
    if (options_.targets_ms.empty()) {
      options_.targets_ms = cpu ? std::vector<double>{kUnlimited, 200, 100, 50, 25}
                                : std::vector<double>{kUnlimited, 100, 50, 25, 12.5, 6.25};
    }
    if (common_.engine.kv_tokens == 0) {
      common_.engine.kv_tokens =
          2 * options_.prompt_length +
          options_.others * (options_.others_prompt + options_.others_length + 128);
    }
    uncounted_ = cpu ? 1 : 2;  // on a GPU the first passes of a size load and record kernels
  }

  void run() {
    for (const double target_ms : options_.targets_ms) measure(target_ms);
  }

 private:
  void measure(double target_ms) {
    common_.engine.step_target_ms = target_ms;
    const Engine engine = common_.load();
    if (target_ms == options_.targets_ms[0]) report_.describe(engine, common_.model_name());
    Json params{{"work", "prefill"},
                {"target_ms", target_ms},
                {"prompt_length", options_.prompt_length},
                {"others", options_.others}};
    if (std::isinf(target_ms)) params["target_ms"] = "none";
    std::vector<double> alone, beside, ratios, rows, longest;
    std::vector<std::vector<double>> before, meanwhile;
    for (int i = 0; i < uncounted_ + trials_; ++i) {
      const Trial trial = run_trial(engine, i);
      if (i < uncounted_) continue;
      alone.push_back(trial.alone_ms);
      beside.push_back(trial.beside_ms);
      ratios.push_back(trial.beside_ms / trial.alone_ms);
      rows.push_back(trial.rows);
      before.push_back(trial.before);
      meanwhile.push_back(trial.meanwhile);
      longest.push_back(std::ranges::max(trial.meanwhile));
    }
    report_.add("prefill, alone", params, "ms", alone);
    report_.add("prefill, beside others", params, "ms", beside);
    report_.add("prefill, beside / alone", params, "x", ratios);
    report_.add("rows of a step", params, "rows", rows);
    report_.add_pooled("gap of others, before", params, "ms", before);
    report_.add_pooled("gap of others, beside", params, "ms", meanwhile);
    report_.add("longest gap of a trial", params, "ms", longest);
  }

  Trial run_trial(const Engine& engine, int number) {
    constexpr std::int64_t kSettle = 24;  // tokens of each other
    Trial trial;
    const std::vector<Token> prompt = random_tokens(options_.prompt_length, engine.info().vocab,
                                                    static_cast<std::uint64_t>(number));
    Session session(engine);
    const double alone_begin = now_seconds();
    Branch branch = session.prefill(prompt);
    trial.alone_ms = (now_seconds() - alone_begin) * 1e3;
    const std::optional<Token> expected = session.decode_step(branch, {.temperature = 0});
    branch = Branch();

    Others others(engine, options_);
    others.wait_for(kSettle);
    const double settled = now_seconds();
    others.wait_for(kSettle);
    const EngineStats stats = engine.stats();
    const double begin = now_seconds();
    branch = session.prefill(prompt);
    const double end = now_seconds();
    const EngineStats after = engine.stats();
    others.wait_for(2);
    const std::vector<Other> stopped = others.stop();
    trial.beside_ms = (end - begin) * 1e3;
    trial.rows = static_cast<double>(after.rows - stats.rows) /
                 static_cast<double>(after.steps - stats.steps);
    trial.before = gaps_between(stopped, settled, begin);
    trial.meanwhile = gaps_between(stopped, begin, end);
    if (common_.engine.deterministic) {
      check(session.decode_step(branch, {.temperature = 0}) == expected, "the long prompt");
      check_others(stopped);
    }
    return trial;
  }

  /// Each other draws the same tokens in every trial, as far as it came.
  void check_others(const std::vector<Other>& others) {
    known_.resize(others.size());
    for (std::size_t i = 0; i < others.size(); ++i) {
      const std::vector<Token>& now = others[i].tokens;
      const std::size_t common = std::min(now.size(), known_[i].size());
      check(std::equal(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(common),
                       known_[i].begin()),
            "a branch beside it");
      if (now.size() > common) known_[i] = now;
    }
  }

  static void check(bool equal, const std::string& whose) {
    if (!equal) throw Error(whose + " drew other tokens; expected the same in any company");
  }

  CommonOptions common_;
  LongPromptOptions options_;
  int trials_;
  Report& report_;
  int uncounted_ = 1;
  std::vector<std::vector<Token>> known_;
};

}  // namespace

void measure_prefill(const CommonOptions& common, const LongPromptOptions& options, int trials,
                     Report& report) {
  LongPromptBench(common, options, trials, report).run();
}

}  // namespace dendrite::bench
