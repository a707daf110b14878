#include <spawn.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common.h"
#include "game24_search.h"
#include "trace_page.h"

extern char** environ;

namespace dendrite::cli {
namespace {

struct ViewFlags {
  std::string file;
  std::string out;
  bool open = false;
};

struct ReplayFlags {
  CommonFlags common;
  std::string file;
};

/// Reads a trace by `read`; errors name the file.
template <typename Read>
auto reading(const std::string& file, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(file + ": " + error.what());
  }
}

/// Hands a page to the desktop's browser.
void open_page(const std::string& page) {
  std::string program = "xdg-open";
  std::string argument = page;
  char* const arguments[] = {program.data(), argument.data(), nullptr};
  pid_t child = 0;
  int status = 0;
  if (posix_spawnp(&child, program.c_str(), nullptr, nullptr, arguments, environ) != 0 ||
      waitpid(child, &status, 0) < 0 || status != 0) {
    throw Error("--open: xdg-open could not open " + page + "; open it in a browser by hand");
  }
}

int view(const ViewFlags& flags) {
  const std::string text = read_file(flags.file);
  std::istringstream stream(text);
  const Trace trace = reading(flags.file, [&] { return read_trace(stream); });
  const std::string out = flags.out.empty()
                              ? std::filesystem::path(flags.file).replace_extension("html").string()
                              : flags.out;
  std::error_code ignored;
  if (out == flags.file || std::filesystem::equivalent(out, flags.file, ignored)) {
    throw Error("--out: " + out + " is the trace; expected another file for the page");
  }
  std::ofstream page(out, std::ios::binary);
  page << trace_page(text) << std::flush;
  if (!page) throw Error(out + ": cannot be written; expected a path for a file");
  std::int64_t thoughts = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == SearchEvent::Kind::kProposed) ++thoughts;
  }
  std::printf("%s: %lld thought%s, %s\n", out.c_str(), static_cast<long long>(thoughts),
              thoughts == 1 ? "" : "s",
              !trace.result          ? "a search that did not end"
              : trace.result->solved ? "solved"
                                     : "not solved");
  if (flags.open) open_page(out);
  return 0;
}

int run_again(const ReplayFlags& flags) {
  std::istringstream trace(read_file(flags.file));
  const std::optional<TraceDifference> difference = reading(flags.file, [&] {
    return replay(trace, [&](const TraceHeader& header, std::ostream& out) {
      game24::solve_again(flags.common.load(), header, out);
    });
  });
  if (difference) throw Error(flags.file + ": " + difference->message());
  if (flags.common.json) {
    print_json({{"same", true}});
  } else {
    std::printf("%s: the same search again, event for event\n", flags.file.c_str());
  }
  return 0;
}

}  // namespace

void add_trace(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("trace", "Searches on record (solve --trace FILE)");
  command->require_subcommand(1);
  auto flags = std::make_shared<ViewFlags>();
  CLI::App* viewer = command->add_subcommand(
      "view", "Write one HTML page with the tree of a search, for any browser");
  viewer->add_option("file", flags->file, "The trace")->type_name("FILE")->required();
  viewer->add_option("--out", flags->out, "The page (default: FILE with .html as its extension)")
      ->type_name("PAGE");
  viewer->add_flag("--open", flags->open, "Open the page in the browser (xdg-open)");
  viewer->callback([flags, &status] { status = view(*flags); });

  auto replay_flags = std::make_shared<ReplayFlags>();
  CLI::App* replayer = command->add_subcommand(
      "replay", "Search again as solve did, and compare; the first line that differs is an error");
  replay_flags->common.add_to(*replayer);
  replayer->add_option("file", replay_flags->file, "The trace")->type_name("FILE")->required();
  replayer->callback([replay_flags, &status] { status = run_again(*replay_flags); });
}

}  // namespace dendrite::cli
