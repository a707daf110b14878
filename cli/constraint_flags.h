#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"

namespace dendrite::cli {

/// What text must be: at most one of --json-schema FILE, --json-object, --regex RE, --grammar FILE
/// and --choice TEXT ... Stays where it is once it was added.
class ConstraintFlags {
 public:
  /// The two of JSON.
  void add_json_to(CLI::App& app);
  /// All of them.
  void add_to(CLI::App& app);

  /// nullopt: none was given. Throws Error where its file cannot be read, and, naming the flag,
  /// where the engine cannot be constrained by it.
  std::optional<Constraint> constraint(const Engine& engine) const;

 private:
  struct Flag {
    CLI::Option* option;
    std::function<Constraint()> make;
  };
  void add(CLI::Option* option, const char* type, std::function<Constraint()> make);

  std::vector<Flag> flags_;
  bool json_object_ = false;
  std::string schema_file_, regex_, grammar_file_;
  std::vector<std::string> choices_;
};

/// For people, on stderr: how many branches ended before their text was whole, and why.
void note_unfinished(std::span<const Branch> branches);

}  // namespace dendrite::cli
