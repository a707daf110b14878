#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "dendrite/dendrite.h"
#include "report.h"

namespace dendrite {
class Backend;
}

namespace dendrite::bench {

/// Flags that every bench has.
struct CommonOptions {
  std::string
      model;  // folder or id; empty: the shape, or the shipped model when that is empty, too
  std::string shape;
  EngineOptions engine{.beyond_positions = true};  // (of time, not of sense)
  std::string json;                                // file, "-" for stdout, empty for none

  void add_to(CLI::App& app);
  Engine load() const;
  /// For reports: the folder's name, or "random-" and the shape.
  std::string model_name() const;
};

/// Flags of a bench of single operations, which needs no model.
struct BackendOptions {
  std::string device = "cpu";
  std::string json;
  int threads = 0;
  int trials = 10;  // a row

  void add_to(CLI::App& app);
  /// That computes in bf16.
  std::unique_ptr<Backend> make() const;
};

/// A count, for a flag.
template <typename T>
void add_count(CLI::App& app, const char* name, T& value, const char* help) {
  app.add_option(name, value, help)->check(CLI::Range(1, 1 << 20))->capture_default_str();
}

/// Adds the benches to `app`: each fills a report when run.
void add_agents(CLI::App& app);
void add_decode(CLI::App& app);
void add_attention(CLI::App& app);
void add_constraint(CLI::App& app);
void add_flashinfer(CLI::App& app);
void add_fork_overhead(CLI::App& app);
void add_score(CLI::App& app);
void add_slack(CLI::App& app);
void add_speculate(CLI::App& app);
void add_speculate_search(CLI::App& app);
void add_load(CLI::App& app);
void add_game24(CLI::App& app);
void add_compose(CLI::App& app);
void add_compose_quality(CLI::App& app);
void add_kv_moves(CLI::App& app);
void add_snapshot(CLI::App& app);
void add_matmul(CLI::App& app);
void add_mcts(CLI::App& app);
void add_memory(CLI::App& app);
void add_page_tables(CLI::App& app);
void add_plans(CLI::App& app);
void add_tool_calls(CLI::App& app);
void add_tree_vs_linear(CLI::App& app);
void add_weights(CLI::App& app);

}  // namespace dendrite::bench
