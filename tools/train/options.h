// The command line of the generators: COMMAND [--option value]...
#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>

#include "document.h"

namespace train {

/// Options that were given and not yet taken. Errors name the option.
class Options {
 public:
  Options(int argc, char** argv) : command_(argc > 1 ? argv[1] : "") {
    for (int i = 2; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
    if (argc > 2 && argc % 2 == 1)
      throw std::invalid_argument(std::string(argv[argc - 1]) + ": value missing");
  }

  const std::string& command() const { return command_; }

  /// The value of `name`, or `fallback`.
  std::string take(const std::string& name, std::string fallback) {
    const auto it = values_.find(name);
    if (it == values_.end()) return fallback;
    std::string value = it->second;
    values_.erase(it);
    return value;
  }
  int take_int(const std::string& name, const std::string& fallback) {
    return std::stoi(take(name, fallback));
  }
  std::uint64_t take_uint64(const std::string& name, const std::string& fallback) {
    return std::stoull(take(name, fallback));
  }
  Split take_split() {
    const std::string name = take("--split", "train");
    if (name == "train") return Split::kTrain;
    if (name == "heldout") return Split::kHeldOut;
    throw std::invalid_argument("--split: got '" + name + "', expected train or heldout");
  }

  /// Of the three phases of a training.
  int take_phase(const std::string& fallback) {
    const int phase = take_int("--phase", fallback);
    if (phase < 1 || phase > 3)
      throw std::invalid_argument("--phase: got " + std::to_string(phase) + ", expected 1 to 3");
    return phase;
  }

  /// Throws on an option that this command does not have.
  void check_all_taken() const {
    if (!values_.empty())
      throw std::invalid_argument(values_.begin()->first + ": unknown option for " + command_);
  }

 private:
  std::string command_;
  std::map<std::string, std::string> values_;
};

/// Runs a generator's commands; errors go to stderr and make the exit status 2.
inline int run_generator(const char* name, int argc, char** argv, void (*run)(Options)) {
  // A reader that has enough closes the pipe: that is the normal end.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    run(Options(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 2;
  }
}

}  // namespace train
