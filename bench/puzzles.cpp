#include "puzzles.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common.h"  // the command line's: where the shipped model is

namespace dendrite::bench {

std::vector<game24::Puzzle> read_puzzles(const std::string& path, int target, std::int64_t limit) {
  std::ifstream file(path);
  if (!file) throw Error(path + ": cannot be read; expected a file of puzzles");
  std::vector<game24::Puzzle> puzzles;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    game24::Puzzle puzzle{{}, target};
    int solvable = 1;
    const std::size_t colon = line.find(':');
    std::istringstream words(colon == std::string::npos ? line : line.substr(colon + 1));
    if (colon == std::string::npos) {
      words >> solvable;
    } else {
      puzzle.target = std::atoi(line.c_str());
    }
    for (int number = 0; words >> number;) puzzle.numbers.push_back(number);
    if (solvable == 0) continue;
    puzzle.numbers = game24::check_numbers(puzzle.numbers, puzzle.target);
    puzzles.push_back(std::move(puzzle));
    if (limit > 0 && static_cast<std::int64_t>(puzzles.size()) == limit) break;
  }
  if (puzzles.empty()) {
    throw Error(path +
                ": has no solvable puzzle; expected lines like \"1 4 5 6 10\" or \"50: 2 3 4 5\"");
  }
  return puzzles;
}

std::string puzzles_for(const std::string& model) {
  std::vector<std::string> folders;
  if (!model.empty()) folders.push_back(model);
  try {
    folders.push_back(cli::default_model());
  } catch (const Error&) {
    if (model.empty()) throw;
  }
  std::string missing;
  for (const std::string& folder : folders) {
    const std::string path = (std::filesystem::path(folder) / "game24_heldout.txt").string();
    if (std::filesystem::exists(path)) return path;
    missing += (missing.empty() ? "" : ", ") + path;
  }
  throw Error("no puzzles, looked for: " + missing + "; expected one of these files, or --file");
}

}  // namespace dendrite::bench
