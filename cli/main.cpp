#include <exception>
#include <iostream>
#include <new>

#include "common.h"

// dendrite: the command line. Exit status: 0 done; 1 a clear error; 2 wrong usage; 130 after
// Ctrl-C.

namespace {

/// An error takes at most four lines, whatever went into its text.
void print_error(std::string text) {
  std::size_t lines = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' && ++lines > 4) {
      text.resize(i);
      break;
    }
  }
  std::cerr << "dendrite: " << text << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace dendrite::cli;
  std::ios::sync_with_stdio(false);
  install_interrupt_handler();
  CLI::App app{
      "Dendrite: inference for programs that search with a language model.\n"
      "Try:  dendrite solve 3 5 9 13\n"
      "      dendrite generate --prompt 'S 24: 4 5 6 10\n'  (or pipe a prompt to it)"};
  app.set_version_flag("--version", DENDRITE_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  int status = 0;
  add_solve(app, status);
  add_generate(app, status);
  add_score(app, status);
  add_perplexity(app, status);
  add_quantize(app, status);
  add_tokenize(app, status);
  add_chunks(app, status);
  add_chat(app, status);
  add_info(app, status);
  add_trace(app, status);
#ifdef DENDRITE_SERVER
  add_serve(app, status);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
    return 1;
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
  return status;
}
