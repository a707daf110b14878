#include <algorithm>

#include "machine.h"
#include "models.h"
#include "options.h"

// speculate: tokens a second with speculation by those without, of the same tokens, in turns.
// Texts: `again`, which the session has heard before (every draft comes true: the most there is to
// gain); `sampled`, what branches of one prompt draw one after the other; `astray`, a prompt that
// repeats itself, which the model does not go on with (every draft is for nothing: what a bad one
// may cost). With a draft model or a block drafter, that drafts. And what a step takes that
// verifies a chain of drafts, by one of a single row.

namespace dendrite::bench {
namespace {

struct SpeculateOptions {
  CommonOptions common;
  std::vector<std::int64_t> branches = {1, 4, 16};
  std::vector<std::int64_t> nodes = {1, 2, 4, 8, 16, 32, 64};
  std::int64_t budget = 16;
  std::int64_t prompt_length = 128;
  std::int64_t output_length = 128;
  int trials = 8;
  bool chain = false;
  Speculate mode() const {
    if (!common.engine.drafter.empty()) return chain ? Speculate::kDFlash : Speculate::kDFlashTree;
    return common.engine.draft_model.empty() ? Speculate::kSuffix : Speculate::kDraftModel;
  }
};

enum class Text { kAgain, kSampled, kAstray };

const char* name_of(Text text) {
  switch (text) {
    case Text::kAgain:
      return "again";
    case Text::kSampled:
      return "sampled";
    case Text::kAstray:
      break;
  }
  return "astray";
}

class SpeculateBench {
 public:
  explicit SpeculateBench(const SpeculateOptions& options)
      : options_(options), engine_(load(options)), report_("speculate") {
    report_.describe(engine_, options.common.model_name());
  }

  void run() {
    for (const Text text : {Text::kAgain, Text::kSampled, Text::kAstray}) {
      for (const std::int64_t branches : options_.branches) measure(text, branches);
    }
    verify();
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  /// Of one call, or of one after the other.
  struct Run {
    double ms = 0;  // a token of each branch
    Stats stats;
  };

  static Engine load(const SpeculateOptions& options) {
    CommonOptions common = options.common;
    common.engine.prefix_index = false;
    if (common.engine.kv_tokens == 0) {
      const std::int64_t most = *std::ranges::max_element(options.branches) + 2;
      common.engine.kv_tokens =
          2 * options.prompt_length + 2 * most * (options.output_length + options.budget + 64);
    }
    return common.load();
  }

  /// Its last tokens stand in it before, and are followed by something.
  std::vector<Token> prompt_of(Text text) const {
    constexpr std::size_t kCycle = 16;
    std::vector<Token> prompt = random_tokens(options_.prompt_length, engine_.info().vocab, 1);
    if (text != Text::kAstray) return prompt;
    for (std::size_t i = kCycle; i < prompt.size(); ++i) prompt[i] = prompt[i - kCycle];
    return prompt;
  }

  Run call(Text text, std::int64_t branches, Speculate speculate, int trial) const {
    Session session(engine_, {.seed = static_cast<std::uint64_t>(trial)});
    Branch root = session.prefill(prompt_of(text));
    DecodeParams params{.max_tokens = options_.output_length,
                        .temperature = text == Text::kAgain ? 0 : 0.7,
                        .ignore_eos = true};
    params.speculate = speculate;
    params.speculate_budget = options_.budget;
    if (text == Text::kAgain) {
      Branch first = root.fork();
      session.decode(first, params);
    }
    const Stats before = session.stats();
    std::vector<Branch> wanted = root.fork(static_cast<int>(branches));
    const double begin = now_seconds();
    session.decode(wanted, params);
    Run run{.ms = (now_seconds() - begin) * 1e3 / static_cast<double>(options_.output_length),
            .stats = session.stats()};
    run.stats.steps -= before.steps;
    run.stats.tokens_drafted -= before.tokens_drafted;
    run.stats.tokens_accepted -= before.tokens_accepted;
    return run;
  }

  void measure(Text text, std::int64_t branches) {
    const Json params{{"mode", dendrite::name_of(options_.mode())},
                      {"text", name_of(text)},
                      {"branches", branches}};
    std::vector<double> plain, drafted, speedups;
    double steps = 0, nodes = 0, accepted = 0;
    dendrite::SpeculationStats drafts;
    for (int trial = -2; trial < options_.trials; ++trial) {
      const Run without = call(text, branches, Speculate::kOff, trial);
      const Run with = call(text, branches, options_.mode(), trial);
      if (trial < 0) continue;  // how long steps of more rows take is found out
      plain.push_back(without.ms);
      drafted.push_back(with.ms);
      speedups.push_back(without.ms / with.ms);
      steps += static_cast<double>(with.stats.steps);
      nodes += static_cast<double>(with.stats.tokens_drafted);
      accepted += static_cast<double>(with.stats.tokens_accepted);
      drafts.add(with.stats.speculation);
    }
    report_.add("token, plain", params, "ms", plain);
    report_.add("token, speculated", params, "ms", drafted);
    report_.add("speedup", params, "x", speedups, Better::kHigh);
    report_.add_value("drafted a step", params, "tokens", nodes / steps);
    report_.add_value("accepted a step", params, "tokens", accepted / steps);
    if (drafts.drafts == 0) return;
    report_.add_value("accepted a draft", params, "tokens", drafts.accept_depth());
    report_.add_value(
        "accepted as chain", params, "share",
        static_cast<double>(drafts.tokens_accepted_as_chain) / std::max(1.0, accepted));
    report_.add_value("step with drafts", params, "ms",
                      ms_of(drafts.steps_drafted_seconds, drafts.steps_drafted));
    if (drafts.steps_plain > 0) {
      report_.add_value("step without", params, "ms",
                        ms_of(drafts.steps_plain_seconds, drafts.steps_plain));
    }
    report_.add_value("proposing", params, "ms",
                      ms_of(drafts.draft_seconds, drafts.steps_drafted + drafts.steps_plain));
  }

  static double ms_of(double seconds, std::int64_t steps) {
    return seconds * 1e3 / static_cast<double>(steps);
  }

  /// A chain of `nodes` tokens after one that was computed: as many rows, all with distributions.
  void verify() {
    Session session(engine_);
    Branch root = session.prefill(prompt_of(Text::kAgain));
    const auto ms_of = [&](std::int64_t rows) {
      Branch branch = root.fork();
      const std::vector<Token> chain = random_tokens(rows + 1, engine_.info().vocab, 2);
      const double begin = now_seconds();
      branch.score_tokens({chain});
      return (now_seconds() - begin) * 1e3;
    };
    for (const std::int64_t nodes : options_.nodes) {
      std::vector<double> ratios;
      for (int trial = -2; trial < 4 * options_.trials; ++trial) {
        const double one = ms_of(1);
        const double more = ms_of(1 + nodes);
        if (trial >= 0) ratios.push_back(more / one);
      }
      report_.add("verify", {{"nodes", nodes}}, "x", ratios);
    }
  }

  const SpeculateOptions& options_;
  Engine engine_;
  Report report_;
};

}  // namespace

void add_speculate(CLI::App& app) {
  auto options = std::make_shared<SpeculateOptions>();
  CLI::App* command =
      app.add_subcommand("speculate", "Tokens a second with speculation, by those without");
  options->common.add_to(*command);
  command
      ->add_option("--draft-model", options->common.engine.draft_model,
                   "Drafts; else what the session has said")
      ->type_name("DIR_OR_ID");
  command
      ->add_option("--drafter", options->common.engine.drafter,
                   "A block drafter of the model (DFlash) drafts trees")
      ->type_name("DIR_OR_ID");
  command->add_flag("--chain", options->chain, "... or chains");
  command->add_option("--branches", options->branches, "That share a prompt")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--nodes", options->nodes, "Drafted tokens of a step that is timed alone")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--budget", options->budget, "Drafted tokens a branch and step")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--prompt-length", options->prompt_length, "Shared tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--output-length", options->output_length, "Tokens a branch")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Calls of each kind, in turns")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->callback([options] { SpeculateBench(*options).run(); });
}

}  // namespace dendrite::bench
