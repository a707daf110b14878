#pragma once

#include <string>
#include <vector>

#include "draft_modes.h"

namespace dendrite::bench {

/// Whole searches for the solutions of held-out puzzles, with drafts and without, in turns.
struct PuzzleOptions {
  std::string file;
  std::int64_t puzzles = 20;
  std::string strategy = "tot";
  int width = 5;
  std::vector<int> samples = {0, 8};
  std::vector<std::string> sessions = {"fresh", "one", "again"};
  std::uint64_t seed = 0;

  void add_to(CLI::App& app);
};

void measure_puzzles(const Engine& engine, const PuzzleOptions& options, const std::string& model,
                     std::vector<DraftMode>& modes, Clock clock, int trials, Report& report);

}  // namespace dendrite::bench
