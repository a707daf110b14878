#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "options.h"

// dendrite-bench: what Dendrite costs on this machine, next to what the machine can do.
// Exit status: 0 done; 1 a clear error; 2 wrong usage.

namespace {

/// The micro-bench of single operations is a program of its own beside this one.
void add_ops(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("ops", "Single operations: matmul, attention (see ops_bench)");
  command->prefix_command();
  command->set_help_flag();
  command->callback([command] {
    std::error_code ignored;
    const std::string program =
        (std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "ops_bench")
            .string();
    std::vector<std::string> arguments = command->remaining();
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    throw dendrite::Error(program + ": cannot be run; expected it beside dendrite-bench");
  });
}

}  // namespace

int main(int argc, char** argv) {
  using namespace dendrite::bench;
  CLI::App app{
      "Benches of Dendrite. Each prints a table; --json FILE writes the same for programs."};
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  add_agents(app);
  add_decode(app);
  add_attention(app);
  add_constraint(app);
  add_flashinfer(app);
  add_fork_overhead(app);
  add_score(app);
  add_slack(app);
  add_speculate(app);
  add_speculate_search(app);
  add_load(app);
  add_game24(app);
  add_kv_moves(app);
  add_compose(app);
  add_compose_quality(app);
  add_snapshot(app);
  add_ops(app);
  add_matmul(app);
  add_mcts(app);
  add_memory(app);
  add_page_tables(app);
  add_plans(app);
  add_tool_calls(app);
  add_tree_vs_linear(app);
  add_weights(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dendrite-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
