#include <algorithm>
#include <cstdio>
#include <optional>

#include "common.h"  // the command line's: where the shipped model is
#include "draft_modes.h"
#include "draft_texts.h"
#include "machine.h"
#include "stats_since.h"
#include "verify_cost.h"

// speculate: tokens a second with speculation by those without, of the same tokens, in turns, over
// texts, branches and who drafts; and what a step takes that verifies so many drafted tokens, by a
// plain one. That texts with and without are equal is checked.

namespace dendrite::bench {
namespace {

enum class Prompts : std::uint8_t { kOwn, kShared };

struct SpeculateOptions {
  CommonOptions common;
  DraftOptions drafts;
  TextOptions texts;
  VerifyOptions verify;
  std::vector<std::string> parts = {"texts", "verify"};
  std::vector<std::int64_t> branches = {1, 4, 16};
  std::vector<std::int64_t> heard = {0, 8};
  Prompts prompts = Prompts::kOwn;
  int trials = 8;

  bool wants(const char* part) const { return std::ranges::count(parts, part) > 0; }
  std::int64_t kv_tokens() const {
    constexpr std::int64_t kLongest = 256;  // prompts of the shipped models
    const std::int64_t most = *std::ranges::max_element(branches) + 2;
    const std::int64_t chains = 16 * std::max<std::int64_t>(4, drafts.largest_budget());
    const std::int64_t prompt = std::max(kLongest, texts.prompt_length);
    const std::int64_t for_texts = most * (prompt + texts.output_length + chains + 64);
    return std::max(for_texts, verify.kv_tokens());
  }
};

/// What is said by whom: one row of a table.
struct Case {
  const DraftText& text;
  std::int64_t branches = 1;
  std::int64_t heard = 0;

  Json params(Prompts prompts) const {
    Json params{{"text", text.name}, {"kind", text.kind}, {"branches", branches}};
    if (!text.is_made_up()) {
      params["prompts"] = prompts == Prompts::kOwn ? "own" : "shared";
      params["heard"] = heard;
    }
    return params;
  }
};

/// Of one call, or of one after the other.
struct Run {
  double ms = 0;  // a token of each branch
  std::vector<std::vector<Token>> texts;
  Stats stats;
};

/// A mode's runs of one case.
struct Column {
  std::vector<double> ms, speedups;
  double steps = 0, drafted = 0, accepted = 0;
  SpeculationStats drafts;

  void add(const Run& run, double plain_ms) {
    ms.push_back(run.ms);
    speedups.push_back(plain_ms / run.ms);
    steps += static_cast<double>(run.stats.steps);
    drafted += static_cast<double>(run.stats.tokens_drafted);
    accepted += static_cast<double>(run.stats.tokens_accepted);
    drafts.add(run.stats.speculation);
  }
};

double ms_of(double seconds, std::int64_t steps) {
  return steps == 0 ? 0 : seconds * 1e3 / static_cast<double>(steps);
}

class SpeculateBench {
 public:
  explicit SpeculateBench(const SpeculateOptions& options)
      : options_(options),
        engine_(load(options)),
        modes_(options.drafts.make(engine_, options.common, known_)),
        texts_(options.texts.make(engine_, folder(options.common))),
        report_("speculate") {
    report_.describe(engine_, options.common.model_name());
    if (options.drafts.cpu_clock) report_.set_device("clock", "cpu");
    report_.set_device("kinds_without_text", kinds_without_text());
  }

  void run() {
    if (options_.wants("texts")) measure_texts();
    if (options_.wants("verify")) {
      measure_verification(engine_, options_.verify, options_.drafts.clock(), options_.trials,
                           report_);
    }
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  static Engine load(const SpeculateOptions& options) {
    CommonOptions common = options.common;
    common.engine.prefix_index = false;
    if (common.engine.kv_tokens == 0) common.engine.kv_tokens = options.kv_tokens();
    return common.load();
  }

  static std::filesystem::path folder(const CommonOptions& common) {
    if (!common.shape.empty()) return {};
    return common.model.empty() ? cli::default_model() : common.model;
  }

  void measure_texts() {
    for (const DraftText& text : texts_) {
      for (const std::int64_t heard : options_.heard) {
        if (text.is_made_up() && heard != options_.heard[0]) continue;
        for (const std::int64_t branches : options_.branches) measure({text, branches, heard});
      }
    }
    std::printf("\nmore than 2 %% slower than plain: %zu of %d, %d surely\n", slower_.size(),
                cases_, surely_);
    for (const std::string& name : slower_) std::printf("  %s\n", name.c_str());
    report_.add_value("slower than plain by 2 %", Json::object(), "cases",
                      static_cast<double>(slower_.size()), {{"of", cases_}, {"surely", surely_}});
  }

  const std::vector<Token>& prompt(const Case& of, std::int64_t number) const {
    return of.text.prompts[static_cast<std::size_t>(number) % of.text.prompts.size()];
  }

  /// Branches of one prompt, or each of its own.
  std::vector<Branch> begin(Session& session, const Case& of, std::int64_t first) const {
    if (of.text.is_made_up() || options_.prompts == Prompts::kShared) {
      return session.prefill(prompt(of, first)).fork(static_cast<int>(of.branches));
    }
    std::vector<Branch> branches;
    for (std::int64_t i = 0; i < of.branches; ++i) {
      branches.push_back(session.prefill(prompt(of, first + i)));
    }
    return branches;
  }

  Run call(const Case& of, int trial, const DecodeParams& params) {
    Session session(engine_, {.seed = static_cast<std::uint64_t>(trial)});
    std::int64_t number = (trial + 2) * (of.heard + of.branches);  // of the next prompt
    for (std::int64_t i = 0; i < of.heard; ++i) {
      Branch before = session.prefill(prompt(of, number++));
      session.decode(before, params);
    }
    std::vector<Branch> wanted = begin(session, of, number);
    if (of.text.is_repeated) {
      Branch first = wanted[0].fork();
      session.decode(first, params);
    }
    const Stats before = session.stats();
    const Clock clock = options_.drafts.clock();
    const double begin = now_seconds(clock);
    const std::vector<Generation> generated = session.decode(wanted, params);
    const double seconds = now_seconds(clock) - begin;
    Run run;
    run.stats = stats_since(before, session.stats());
    double tokens = 0;
    for (const Generation& text : generated) {
      if (text.finish == Finish::kBudget) {
        throw Error("KV pages ran out; expected a larger --kv-tokens");
      }
      tokens += static_cast<double>(text.ids.size());
      run.texts.push_back(text.ids);
    }
    run.ms = seconds * 1e3 * static_cast<double>(of.branches) / tokens;
    for (const Branch& branch : wanted) known_.add(branch);
    return run;
  }

  void measure(const Case& of) {
    std::vector<double> plain;
    std::vector<Column> columns(modes_.size());
    for (int trial = -2; trial < options_.trials; ++trial) {
      known_.clear();
      const Run without = call(of, trial, of.text.params);
      if (trial >= 0) plain.push_back(without.ms);
      for (std::size_t turn = 0; turn < modes_.size(); ++turn) {
        const std::size_t i = (turn + static_cast<std::size_t>(trial + 2)) % modes_.size();
        const Run with = modes_[i].with(
            of.text.params, [&](const DecodeParams& params) { return call(of, trial, params); });
        if (with.texts != without.texts) {
          throw Error("a text with " + modes_[i].name() +
                      " is not the text without; expected the same");
        }
        // (Before the first trial, how long steps of more rows take is found out.)
        if (trial >= 0) columns[i].add(with, without.ms);
      }
    }
    report_.add("token, plain", of.params(options_.prompts), "ms", plain);
    for (std::size_t i = 0; i < modes_.size(); ++i) tell(of, modes_[i], columns[i]);
    compare_trees(of, columns);
  }

  void tell(const Case& of, const DraftMode& mode, const Column& column) {
    Json params = of.params(options_.prompts);
    params.update(mode.params());
    const SpeculationStats& drafts = column.drafts;
    const double accepted = std::max(1.0, column.accepted);
    const Json counts{
        {"drafted_a_step", column.drafted / column.steps},
        {"accepted_a_step", column.accepted / column.steps},
        {"accepted_as_chain", static_cast<double>(drafts.tokens_accepted_as_chain) / accepted},
        {"steps_drafted", drafts.steps_drafted},
        {"steps_plain", drafts.steps_plain},
        {"step_drafted_ms", ms_of(drafts.steps_drafted_seconds, drafts.steps_drafted)},
        {"step_plain_ms", ms_of(drafts.steps_plain_seconds, drafts.steps_plain)},
        {"proposing_ms", ms_of(drafts.draft_seconds, drafts.steps_drafted + drafts.steps_plain)},
        {"fallbacks", drafts.fallbacks}};
    report_.add("token, speculated", params, "ms", column.ms);
    const Summary speedup = summarize(column.speedups, Better::kHigh);
    report_.add({"speedup", params, "x", speedup, counts, column.speedups});
    if (drafts.drafts > 0) {
      report_.add_value("accepted a draft", params, "tokens", drafts.accept_depth(),
                        {{"rows", column.drafted / static_cast<double>(drafts.drafts)}});
    }
    ++cases_;
    constexpr double kSlower = 0.98;
    if (speedup.median < kSlower) slower_.push_back(params.dump());
    if (speedup.ci_high < kSlower) ++surely_;
  }

  /// A tree by the chain of the same drafter.
  void compare_trees(const Case& of, const std::vector<Column>& columns) {
    for (std::size_t chain = 0; chain < modes_.size(); ++chain) {
      for (std::size_t tree = 0; tree < modes_.size(); ++tree) {
        if (!modes_[chain].is_chain_of(modes_[tree])) continue;
        std::vector<double> ratios;
        for (std::size_t i = 0; i < columns[tree].ms.size(); ++i) {
          ratios.push_back(columns[chain].ms[i] / columns[tree].ms[i]);
        }
        Json params = of.params(options_.prompts);
        params.update(modes_[tree].params());
        report_.add("tree by chain", params, "x", ratios, Better::kHigh);
      }
    }
  }

  const SpeculateOptions& options_;
  const Engine engine_;
  KnownTexts known_;
  std::vector<DraftMode> modes_;
  const std::vector<DraftText> texts_;
  Report report_;
  std::vector<std::string> slower_;
  int surely_ = 0;  // of them: by the whole interval
  int cases_ = 0;
};

}  // namespace

void add_speculate(CLI::App& app) {
  auto options = std::make_shared<SpeculateOptions>();
  CLI::App* command =
      app.add_subcommand("speculate", "Tokens a second with speculation, by those without");
  command->footer(
      "\"speedup\" is the time of a token without drafts by that with them, of equal texts, in "
      "turns: 1 is neither gain nor loss. \"accepted a draft\": tokens that a step with drafts "
      "gave beyond the one that every step gives. \"verify\": a step with the rows of so many "
      "drafted tokens, all wrong and all run, by a plain step as it runs, and by one that a GPU "
      "does not begin early. An oracle's pass takes --oracle-ms, by default nothing: what the "
      "engine could give with drafters that are as good, not what a drafter gives.");
  options->common.add_to(*command);
  command->add_option("--parts", options->parts, "What is measured")
      ->delimiter(',')
      ->check(CLI::IsMember({"texts", "verify"}))
      ->capture_default_str();
  options->drafts.add_to(*command, options->common);
  options->texts.add_to(*command);
  command->add_option("--branches", options->branches, "That are decoded at once")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--prompts", options->prompts,
                   "Of texts that a model was trained for: each branch its own, as requests come, "
                   "or all forks of one, as a search makes them")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Prompts>{{"own", Prompts::kOwn}, {"shared", Prompts::kShared}}))
      ->default_str("own");
  command
      ->add_option("--heard", options->heard,
                   "... and so many other prompts that the session has answered before")
      ->delimiter(',')
      ->check(CLI::Range(0, 512))
      ->capture_default_str();
  options->verify.add_to(*command);
  command->add_option("--trials", options->trials, "Calls of each kind, in turns")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->callback([options] { SpeculateBench(*options).run(); });
}

}  // namespace dendrite::bench
