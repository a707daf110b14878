#include <algorithm>
#include <cstdio>

#include "draft_modes.h"
#include "speculate_puzzles.h"
#include "tree_search.h"

// speculate-search: whole searches with speculation and without, in turns. Of a trained model:
// Tree-of-Thoughts over held-out puzzles. Of random weights: the search of tree-vs-linear as a
// tree, with drafters of set acceptance, and beside it request by request from prefix caches. That
// searches with and without are the same is checked.

namespace dendrite::bench {
namespace {

struct SpeculateSearchOptions {
  CommonOptions common;
  DraftOptions drafts;
  TreeSearch search;
  PuzzleOptions puzzles;
  std::vector<std::string> against = {"radix", "block"};
  int trials = 5;
};

/// One way to do the search, and its trials.
struct Column {
  std::string name;
  DraftMode* mode;
  std::unique_ptr<OwnMachine> machine;
  std::vector<double> seconds{};
};

double seconds_of(const TreeSearch& search, OwnMachine& machine, std::int64_t vocab, Clock clock,
                  int trial) {
  const double begin = now_seconds(clock);
  search.run(machine, vocab, trial);
  return now_seconds(clock) - begin;
}

void tell(const Column& column, Json params, std::span<const Column> columns, double tokens,
          Report& report) {
  const Column& plain = columns[0];
  params["as"] = column.name;
  if (column.mode != nullptr) params.update(column.mode->params());
  const Stats stats = column.machine->stats();
  const auto count = [](std::int64_t value) { return static_cast<double>(value); };
  const auto& drafts = stats.speculation;
  const Json counts{{"tokens_generated", tokens},
                    {"steps", stats.steps},
                    {"drafted_a_step",
                     count(stats.tokens_drafted) / count(std::max<std::int64_t>(1, stats.steps))},
                    {"accepted_a_draft", drafts.drafts > 0 ? drafts.accept_depth() : 0.0}};
  std::vector<double> rates;
  for (const double seconds : column.seconds) rates.push_back(tokens / seconds);
  report.add("search", params, "s", column.seconds);
  report.add({"tokens", params, "tok/s", summarize(rates, Better::kHigh), counts, rates});
  if (column.mode == nullptr) return;
  if (drafts.drafts > 0) {
    report.add_value("accepted a draft", params, "tokens", drafts.accept_depth());
  }
  for (const Column& other : columns) {
    if (other.mode != nullptr) continue;
    std::vector<double> ratios;
    for (std::size_t i = 0; i < column.seconds.size(); ++i) {
      ratios.push_back(other.seconds[i] / column.seconds[i]);
    }
    const bool is_plain = &other == &plain;
    report.add_ratio(is_plain ? "speedup" : "tree_vs_" + other.name, params, ratios,
                     median(column.seconds), median(other.seconds));
  }
}

void measure_tree(const SpeculateSearchOptions& options, const Engine& engine,
                  std::vector<DraftMode>& modes, KnownTexts& texts, Report& report) {
  const std::int64_t vocab = engine.info().vocab;
  std::vector<Column> columns;
  columns.push_back({"tree", nullptr, std::make_unique<OwnMachine>(engine, Sharing::kTree)});
  for (DraftMode& mode : modes) {
    columns.push_back({"tree", &mode, std::make_unique<OwnMachine>(engine, Sharing::kTree, &mode)});
  }
  for (const Sharing sharing : {Sharing::kRadix, Sharing::kBlock, Sharing::kReprefill}) {
    if (std::ranges::count(options.against, name_of(sharing)) == 0) continue;
    columns.push_back({name_of(sharing), nullptr, std::make_unique<OwnMachine>(engine, sharing)});
  }
  double tokens = 0;
  for (int trial = -1; trial < options.trials; ++trial) {
    texts.clear();
    OwnMachine recording(engine, Sharing::kTree);
    recording.record(texts);
    tokens = static_cast<double>(options.search.run(recording, vocab, trial + 1));
    for (Column& column : columns) {
      const double seconds =
          seconds_of(options.search, *column.machine, vocab, options.drafts.clock(), trial + 1);
      if (trial >= 0) column.seconds.push_back(seconds);
      if (column.name == "tree" && column.machine->digest() != recording.digest()) {
        throw Error("a search with drafts is not the search without; expected the same tokens");
      }
    }
  }
  for (const Column& column : columns) {
    tell(column, options.search.params(), columns, tokens, report);
  }
}

void run(const SpeculateSearchOptions& options) {
  const bool is_tree = !options.common.shape.empty();
  CommonOptions common = options.common;
  common.engine.prefix_index = false;  // every search is to be computed
  DraftOptions drafts = options.drafts;
  if (common.engine.kv_tokens == 0) {
    // (A fork copies its branch's last page.)
    const std::int64_t chains = options.search.keep * options.search.branch *
                                std::max<std::int64_t>(4, drafts.largest_budget()) * 32;
    common.engine.kv_tokens = is_tree ? options.search.kv_tokens_apart() + chains : 1 << 16;
  }
  if (!is_tree && drafts.modes.empty()) {
    drafts.modes = {"suffix"};
    if (!common.engine.draft_model.empty()) drafts.modes.emplace_back("draft_model");
    if (!common.engine.drafter.empty()) drafts.modes.emplace_back("dflash_ddtree");
  }
  const Engine engine = common.load();
  KnownTexts texts;
  std::vector<DraftMode> modes = drafts.make(engine, common, texts);
  if (!is_tree && std::ranges::any_of(modes, &DraftMode::is_oracle)) {
    throw Error("--modes has an oracle, which knows no puzzle's search; expected --shape with it");
  }
  Report report("speculate-search");
  report.describe(engine, common.model_name());
  if (drafts.cpu_clock) report.set_device("clock", "cpu");
  if (is_tree) {
    measure_tree(options, engine, modes, texts, report);
  } else {
    measure_puzzles(engine, options.puzzles, common.model, modes, drafts.clock(), options.trials,
                    report);
  }
  if (!common.json.empty()) report.write_json(common.json);
}

}  // namespace

void add_speculate_search(CLI::App& app) {
  auto options = std::make_shared<SpeculateSearchOptions>();
  CLI::App* command = app.add_subcommand(
      "speculate-search", "Whole searches with speculation, by those without, in turns");
  command->footer(
      "With --shape, the search of tree-vs-linear as a tree: \"speedup\" is against the tree "
      "without drafts, \"tree_vs_radix\" and \"tree_vs_block\" against the same search as requests "
      "to a prefix cache, without drafts. Else puzzles: \"speedup\" compares the time of all "
      "searches of a pass. Oracles are what the engine could give with drafters that are as good.");
  options->common.add_to(*command);
  options->drafts.add_to(*command, options->common);
  command->add_option("--trials", options->trials, "Passes, or searches, of each kind")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  options->puzzles.add_to(*command);
  options->search.add_to(*command);
  command->add_option("--against", options->against, "What runs beside the tree, without drafts")
      ->delimiter(',')
      ->check(CLI::IsMember({"radix", "block", "reprefill", "none"}))
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
