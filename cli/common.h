#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "dendrite/perplexity.h"

namespace dendrite::cli {

using Json = nlohmann::ordered_json;

/// Flags that every command that loads a model has.
struct CommonFlags {
  std::string model;
  EngineOptions engine;
  std::uint64_t seed = 0;
  bool json = false;

  void add_to(CLI::App& app);
  /// The same without --model.
  void add_engine_to(CLI::App& app);
  /// What drafts, and how much. `budget`: DecodeParams::speculate_budget.
  void add_drafting_to(CLI::App& app, std::int64_t& budget);
  /// Loads the model, with a line on stderr when that takes long, and its warnings.
  Engine load(bool weights = true) const;
  /// The same of several, side by side (Engine::load_all).
  std::vector<Engine> load_all(const std::vector<std::string>& models) const;
};

/// How much is scored at once, and altogether, of texts that a model is measured with.
void add_windows_to(CLI::App& app, PerplexityParams& params);

/// The shipped model: beside this program's build tree or installation. Throws Error when it is not
/// where it should be.
std::string default_model();

/// One JSON object on one line of stdout. Invalid UTF-8 becomes U+FFFD.
void print_json(const Json& value);

Json to_json(const Stats& stats, double seconds);

std::string read_file(const std::string& path);
std::string read_stdin();

/// "1,2,3" or blanks between; throws Error naming `what`.
std::vector<Token> parse_ids(const std::string& text, const std::string& what);

/// Where the prompt comes from: exactly one of --prompt, --prompt-ids, --messages, or stdin.
struct PromptFlags {
  std::string text;
  std::string ids;
  std::string messages;
  void add_to(CLI::App& app);
  std::vector<Token> tokens(const Engine& engine) const;

 private:
  const CLI::App* app_ = nullptr;
};

/// Makes Ctrl-C end the program with kExitInterrupted: at once, unless an Interrupt is alive.
void install_interrupt_handler();

/// While it lives, Ctrl-C asks running calls to stop; a second one ends the program at once.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  std::stop_token token() const;
  bool requested() const;
};

inline constexpr int kExitInterrupted = 130;

/// Colours when stdout is a terminal and NO_COLOR is not set.
bool use_colours();

/// Commands: add themselves to `app` and store their exit status in `status` when run.
void add_generate(CLI::App& app, int& status);
void add_score(CLI::App& app, int& status);
void add_perplexity(CLI::App& app, int& status);
void add_quantize(CLI::App& app, int& status);
void add_chunks(CLI::App& app, int& status);
void add_tokenize(CLI::App& app, int& status);
void add_chat(CLI::App& app, int& status);
void add_info(CLI::App& app, int& status);
void add_solve(CLI::App& app, int& status);
void add_trace(CLI::App& app, int& status);
void add_serve(CLI::App& app, int& status);  ///< where the server was built

}  // namespace dendrite::cli
