#include "tree_comparison.h"

#include <algorithm>
#include <cstdio>

#include "machine.h"

namespace dendrite::bench {
namespace {

/// One machine's trials.
struct Column {
  std::string name;
  std::unique_ptr<TreeMachine> machine;
  std::vector<double> seconds;
  std::int64_t generated = 0;
};

}  // namespace

void ComparisonOptions::add_to(CLI::App& app) {
  common.add_to(app);
  app.add_option("--trials", trials, "Trials of each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--against", against, "What runs beside the tree in this engine")
      ->delimiter(',')
      ->check(CLI::IsMember({"radix", "block", "reprefill", "none"}))
      ->capture_default_str();
  app.add_option("--peer", peer, "Another engine to measure in turns: a command (see peers/)");
}

Engine ComparisonOptions::load(std::int64_t kv_tokens) const {
  CommonOptions loaded = common;
  loaded.engine.prefix_index = false;  // a prompt is to be computed in each trial
  if (loaded.engine.kv_tokens == 0) loaded.engine.kv_tokens = kv_tokens;
  return loaded.load();
}

void compare(const std::string& bench, const ComparisonOptions& options, const Engine& engine,
             const Json& params,
             const std::function<std::int64_t(TreeMachine&, int trial)>& search) {
  Report report(bench);
  report.describe(engine, options.common.model_name());
  std::vector<Column> columns;
  for (const Sharing sharing :
       {Sharing::kTree, Sharing::kRadix, Sharing::kBlock, Sharing::kReprefill}) {
    if (sharing != Sharing::kTree && std::ranges::count(options.against, name_of(sharing)) == 0) {
      continue;
    }
    columns.push_back({name_of(sharing), std::make_unique<OwnMachine>(engine, sharing), {}, 0});
  }
  std::unique_ptr<Peer> peer;
  if (!options.peer.empty()) {
    peer = std::make_unique<Peer>(options.peer);
    std::printf("peer: %s\n", peer->name().c_str());
    columns.push_back({peer->name(), std::make_unique<PeerMachine>(*peer), {}, 0});
  }
  for (int trial = 0; trial <= options.trials; ++trial) {
    for (Column& column : columns) {
      const double begin = now_seconds();
      column.generated = search(*column.machine, trial);
      if (trial > 0) column.seconds.push_back(now_seconds() - begin);
      if (column.generated != columns[0].generated) {
        throw Error(column.name + " generated " + std::to_string(column.generated) +
                    " tokens; expected " + std::to_string(columns[0].generated));
      }
    }
  }
  report.add_value("tokens generated", params, "tokens", static_cast<double>(columns[0].generated));
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const Column& column = columns[i];
    const bool is_peer = peer != nullptr && i + 1 == columns.size();
    if (is_peer) {
      report.add_peer(column.name, columns[0].name, params, "s", column.seconds);
    } else {
      report.add(column.name, params, "s", column.seconds);
      const Stats stats = static_cast<OwnMachine&>(*column.machine).stats();
      report.add_value("tokens computed, " + column.name, params, "tokens",
                       static_cast<double>(stats.tokens_computed));
    }
    if (i == 0) continue;
    std::vector<double> ratios;
    for (std::size_t trial = 0; trial < column.seconds.size(); ++trial) {
      ratios.push_back(column.seconds[trial] / columns[0].seconds[trial]);
    }
    report.add_ratio("tree_vs_" + (is_peer ? "llamacpp" : column.name), params, ratios,
                     median(columns[0].seconds), median(column.seconds));
  }
  if (!options.common.json.empty()) report.write_json(options.common.json);
}

}  // namespace dendrite::bench
