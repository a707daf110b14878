#include <algorithm>

#include "machine.h"
#include "models.h"
#include "options.h"

// slack: what the branches of a decode call notice of others that are drawn ahead beside them. The
// time from one of their tokens to the next is taken in calls without and with branches ahead, in
// turns: with a slack of 1.05 it may grow by a twentieth, at the median and at the 99th percentile.
// Source: docs/decisions/0018-stops-holds-and-slack.md.

namespace dendrite::bench {
namespace {

struct SlackOptions {
  CommonOptions common;
  std::vector<std::int64_t> branches = {1, 4, 16};
  std::int64_t ahead = 32;
  double slack = 1.05;
  std::int64_t prompt_length = 512;
  std::int64_t output_length = 256;
  int trials = 8;
};

class SlackBench {
 public:
  explicit SlackBench(const SlackOptions& options)
      : options_(options), engine_(load(options)), session_(engine_), report_("slack") {
    report_.describe(engine_, options.common.model_name());
    root_ = session_.prefill(random_tokens(options.prompt_length, engine_.info().vocab, 1));
  }

  void run() {
    for (const std::int64_t branches : options_.branches) measure(branches);
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  static Engine load(const SlackOptions& options) {
    CommonOptions common = options.common;
    common.engine.prefix_index = false;
    if (common.engine.kv_tokens == 0) {
      const std::int64_t most = *std::ranges::max_element(options.branches) + options.ahead;
      common.engine.kv_tokens = options.prompt_length + (most + 1) * (options.output_length + 64);
    }
    return common.load();
  }

  /// One call; the times between tokens of its first branch, in ms. Each takes a pass: the first
  /// token, which the prompt's distribution gives, only starts the clock.
  std::vector<double> call(std::int64_t branches, std::int64_t ahead) {
    std::vector<Branch> wanted = root_.fork(static_cast<int>(branches));
    std::vector<Branch> likely = root_.fork(static_cast<int>(ahead));
    std::vector<double> ms;
    double last = 0;
    DecodeParams params{.max_tokens = options_.output_length, .temperature = 1, .ignore_eos = true};
    params.slack = options_.slack;
    params.on_token = [&](const TokenEvent& event) {
      if (event.index != 0) return;
      const double now = now_seconds();
      if (last > 0) ms.push_back((now - last) * 1e3);
      last = now;
    };
    session_.decode(wanted, params, likely);
    return ms;
  }

  void measure(std::int64_t branches) {
    const auto drawn = [&] { return static_cast<double>(session_.stats().tokens_ahead); };
    const Json params{{"branches", branches}, {"ahead", options_.ahead}};
    call(branches, 0);
    // How long steps of more rows take is not known yet: some are tried that are too slow.
    report_.add("step, ahead, first call", params, "ms", call(branches, options_.ahead));
    std::vector<double> none, with, medians;
    const double before = drawn();
    for (int trial = 0; trial < options_.trials; ++trial) {
      const std::vector<double> a = call(branches, 0);
      const std::vector<double> b = call(branches, options_.ahead);
      medians.push_back(median(b) / median(a));
      none.insert(none.end(), a.begin(), a.end());
      with.insert(with.end(), b.begin(), b.end());
    }
    report_.add("step, none ahead", params, "ms", none);
    report_.add("step, ahead", params, "ms", with);
    report_.add("median with / without", params, "x", medians);
    report_.add_value("p99 with / without", params, "x", summarize(with).p99 / summarize(none).p99,
                      {{"goal", options_.slack}});
    report_.add_value("rows ahead a step", params, "rows",
                      (drawn() - before) / static_cast<double>(with.size()));
  }

  const SlackOptions& options_;
  Engine engine_;
  Session session_;
  Report report_;
  Branch root_;
};

}  // namespace

void add_slack(CLI::App& app) {
  auto options = std::make_shared<SlackOptions>();
  CLI::App* command =
      app.add_subcommand("slack", "What a decode call notices of branches drawn ahead beside it");
  options->common.add_to(*command);
  command->add_option("--branches", options->branches, "Of the call")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--ahead", options->ahead, "Branches drawn ahead")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--slack", options->slack, "What a step may take, beside one without them")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  command->add_option("--prompt-length", options->prompt_length, "Shared tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--output-length", options->output_length, "Steps a call")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Calls of each kind, in turns")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->callback([options] { SlackBench(*options).run(); });
}

}  // namespace dendrite::bench
