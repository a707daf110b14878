#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention/tree_plan.h"
#include "machine.h"
#include "options.h"
#include "step/attention_planner.h"

// plans: what a decode step's attention plan costs the host: the order of the rows, the plan, and
// the flat tiles that the GPU's tree attention takes. At a new tree nothing is known of the step
// before; then each branch goes on by a token a step, for as many steps as a block has tokens, so
// that all crossings of pages and blocks are in.

namespace dendrite::bench {
namespace {

constexpr std::int64_t kPageTokens = 16;

struct PlanOptions {
  std::string json;
  int trials = 30;
};

/// `branches` that share `prefix` tokens, and in groups of `group` another `middle` tokens; each
/// has `own` tokens, or with `spread` 1 to that many.
struct Case {
  std::string name;
  std::int64_t branches = 1;
  std::int64_t prefix = 0;
  std::int64_t own = 64;
  std::int64_t window = 0;
  bool spread = false;
  std::int64_t group = 1;
  std::int64_t middle = 0;
};

const std::vector<Case> kCases = {
    {.name = "1 x 512", .prefix = 496, .own = 16},
    {.name = "8 x 4096 + 64", .branches = 8, .prefix = 4096},
    {.name = "32 x 4096 + 64", .branches = 32, .prefix = 4096},
    {.name = "128 x 4096 + 64", .branches = 128, .prefix = 4096},
    {.name = "128 x 4096 + 64, window 1024", .branches = 128, .prefix = 4096, .window = 1024},
    {.name = "128 x 4096 + 1..64", .branches = 128, .prefix = 4096, .spread = true},
    {.name = "128 x 4096 + 1..1024", .branches = 128, .prefix = 4096, .own = 1024, .spread = true},
    {.name = "128 x 32768 + 256", .branches = 128, .prefix = 32768, .own = 256},
    {.name = "4096 / 8 x 512 / 128 x 128",
     .branches = 128,
     .prefix = 4096,
     .own = 128,
     .group = 16,
     .middle = 512},
    {.name = "128 apart x 4096", .branches = 128, .own = 4096},
    {.name = "512 x 4096 + 64", .branches = 512, .prefix = 4096},
    {.name = "512 x 4096 + 1..64", .branches = 512, .prefix = 4096, .spread = true},
};

/// Times of one kind of step, in microseconds.
struct Times {
  std::vector<double> all;
  std::vector<double> order;
  std::vector<double> plan;
  std::vector<double> tiles;
};

class PlanBench {
 public:
  explicit PlanBench(const PlanOptions& options) : options_(options), report_("plans") {}

  void run() {
    for (const Case& c : kCases) measure(c);
    if (!options_.json.empty()) report_.write_json(options_.json);
  }

 private:
  void measure(const Case& c) {
    Times first;
    Times next;
    for (int trial = -1; trial < options_.trials; ++trial) {
      grow_tree(c);
      Times uncounted;
      for (std::int64_t step = 0; step <= kBlockTokens; ++step) {
        this->step(c, trial < 0 ? uncounted : step == 0 ? first : next);
        for (std::size_t i = 0; i < tables_.size(); ++i) {
          if (++positions_[i] % kPageTokens == 0) tables_[i].push_back(next_page_++);
        }
      }
    }
    const Json params{{"case", c.name}, {"rows", c.branches}};
    add("new tree", params, first);
    add("next token", params, next);
    double sum = 0;
    for (const double us : next.all) sum += us;
    report_.add_value("next token, mean", params, "us", sum / static_cast<double>(next.all.size()));
  }

  void add(const std::string& name, const Json& params, const Times& times) {
    Row row;
    row.name = name;
    row.params = params;
    row.unit = "us";
    row.value = summarize(times.all);
    row.extra = {{"order", median(times.order)},
                 {"plan", median(times.plan)},
                 {"tiles", median(times.tiles)}};
    report_.add(row);
  }

  void grow_tree(const Case& c) {
    std::mt19937 random(1);
    tables_.clear();
    positions_.clear();
    next_page_ = 0;
    const auto extend = [this](std::vector<std::int32_t>& table, std::int64_t tokens) {
      for (std::int64_t t = 0; t < tokens; t += kPageTokens) table.push_back(next_page_++);
    };
    std::vector<std::int32_t> prefix;
    extend(prefix, c.prefix);
    std::vector<std::int32_t> middle;
    for (std::int64_t i = 0; i < c.branches; ++i) {
      if (i % c.group == 0) {
        middle = prefix;
        extend(middle, c.middle);
      }
      const std::int64_t own =
          c.spread ? std::uniform_int_distribution<std::int64_t>(1, c.own)(random) : c.own;
      positions_.push_back(std::ssize(middle) * kPageTokens + own - 1);
      extend(tables_.emplace_back(middle), own);
    }
    first_stamp_ += static_cast<std::uint64_t>(c.branches);
  }

  void step(const Case& c, Times& times) {
    sequences_.clear();
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      PlanSequence& sequence = sequences_.emplace_back();
      sequence.table = tables_[i];
      sequence.first_position = positions_[i];
      sequence.rows = 1;
      sequence.stamp = first_stamp_ + i;
      sequence.settled = positions_[i] / kPageTokens;
    }
    ordered_.resize(sequences_.size());
    const double begin = now_seconds();
    planner_.order(sequences_, order_);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      ordered_[i] = sequences_[static_cast<std::size_t>(order_[i])];
      ordered_[i].common = planner_.common()[i];
    }
    const double ordered = now_seconds();
    planner_.build(ordered_, c.window, plan_);
    const double planned = now_seconds();
    tree_.build(plan_, kShape);
    const double end = now_seconds();
    times.all.push_back((end - begin) * 1e6);
    times.order.push_back((ordered - begin) * 1e6);
    times.plan.push_back((planned - ordered) * 1e6);
    times.tiles.push_back((end - planned) * 1e6);
  }

  /// An H200's, at 32 query heads and 8 KV heads.
  static constexpr cuda::TreePlan::Shape kShape = {
      .slice_heads = 4, .slices = 8, .page_tokens = kPageTokens, .workers = 132, .pairs = true};

  PlanOptions options_;
  Report report_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<std::int64_t> positions_;  // of the pending tokens
  std::int32_t next_page_ = 0;
  std::uint64_t first_stamp_ = 1;
  AttentionPlanner planner_{kPageTokens};
  AttentionPlan plan_;
  cuda::TreePlan tree_;
  std::vector<PlanSequence> sequences_;
  std::vector<PlanSequence> ordered_;
  std::vector<std::int32_t> order_;
};

}  // namespace

void add_plans(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plans", "The attention plan of a decode step, on the host");
  command->add_option("--json", options->json, "Write the results there as JSON; -: stdout");
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->callback([options] { PlanBench(*options).run(); });
}

}  // namespace dendrite::bench
