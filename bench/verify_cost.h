#pragma once

#include <vector>

#include "machine.h"
#include "options.h"

namespace dendrite::bench {

/// What it takes to verify drafts: a decode step with the rows of N drafted tokens, none of which
/// comes, by a plain one.
struct VerifyOptions {
  std::vector<std::int64_t> nodes = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  std::vector<std::int64_t> branches = {1};
  std::vector<std::string> shapes = {"chain", "tree", "bushy"};
  std::int64_t prompt_length = 512;
  std::int64_t steps = 24;   // a trial
  double bandwidth_gbs = 0;  // of the machine; 0: no floor is told
  double tflops = 0;         // likewise

  void add_to(CLI::App& app);
  std::int64_t kv_tokens() const;
};

void measure_verification(const Engine& engine, const VerifyOptions& options, Clock clock,
                          int trials, Report& report);

}  // namespace dendrite::bench
