#pragma once

#include <string>
#include <vector>

#include "fuzz/model.h"
#include "fuzz/program.h"

namespace dendrite::fuzz {

/// What the command line says.
struct Options {
  std::int64_t ops = 20000;
  double seconds = 0;  // 0: no limit but ops; else no limit but this, unless ops is given, too
  std::uint64_t seed = 1;
  std::int64_t program_ops = 500;
  std::int64_t first = 0;  // the number of the first program
  Fixed fixed{};
  std::string device = "cpu";
  std::vector<int> devices;
  std::string model{};  // empty: a tiny one of random weights
  TinyModel tiny{};
  std::string load_format = "auto";
  std::vector<std::string> programs{};  // files to run instead
  std::string save{};                   // where a failing program is written to
  double shrink_seconds = 120;
  bool json = false;
};

}  // namespace dendrite::fuzz
