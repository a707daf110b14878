#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <thread>

#include "common.h"  // the command line's: where the shipped model is
#include "machine.h"
#include "models.h"
#include "options.h"

extern char** environ;

// load: from a folder to an engine that is ready, next to a plain sequential read of the same
// files; and from the start of a process to the shipped model's first token.

namespace dendrite::bench {
namespace {

namespace fs = std::filesystem;

struct LoadOptions {
  CommonOptions common;
  std::string cache;
  int trials = 5;
  bool cold = true;
};

std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  return files;
}

/// Asks the kernel to forget the files' pages. They are written back first: dirty pages stay.
void drop_from_page_cache(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

/// Seconds to read all bytes in order with large reads, as one thread.
double read_sequentially(const std::vector<fs::path>& files, std::int64_t& bytes) {
  std::vector<char> buffer(std::size_t{8} << 20);
  bytes = 0;
  const double begin = now_seconds();
  for (const fs::path& file : files) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw Error(file.string() + ": cannot be read");
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (ssize_t got = 1; got > 0;) {
      got = read(fd, buffer.data(), buffer.size());
      if (got > 0) bytes += got;
    }
    close(fd);
  }
  return now_seconds() - begin;
}

double load_seconds(const std::string& folder, const EngineOptions& options) {
  const double begin = now_seconds();
  const Engine engine = Engine::load(folder, options);
  return now_seconds() - begin;
}

void measure_folder(const LoadOptions& options, const std::string& folder, Report& report) {
  const std::vector<fs::path> files = weight_files(folder);
  EngineOptions engine = options.common.engine;
  if (engine.kv_tokens == 0) engine.kv_tokens = 4096;
  for (const bool cold : {false, true}) {
    if (cold && !options.cold) continue;
    std::int64_t bytes = 0;
    if (!cold) read_sequentially(files, bytes);
    std::vector<double> seconds, rates, disk, shares;
    for (int i = 0; i < options.trials; ++i) {
      if (cold) drop_from_page_cache(files);
      disk.push_back(1.0 / read_sequentially(files, bytes) * static_cast<double>(bytes) * 1e-9);
      if (cold) drop_from_page_cache(files);
      seconds.push_back(load_seconds(folder, engine));
      rates.push_back(static_cast<double>(bytes) / seconds.back() * 1e-9);
      shares.push_back(rates.back() / disk.back());
    }
    const Json params{{"page_cache", cold ? "cold" : "warm"}, {"bytes", bytes}};
    report.add("load", params, "s", seconds);
    report.add("load_rate", params, "GB/s", rates, Better::kHigh);
    report.add("sequential_read", params, "GB/s", disk, Better::kHigh);
    report.add("share_of_read", params, "of read", shares, Better::kHigh);
  }
}

/// Runs the command line next to this program for one token.
double first_token_seconds(const std::string& program, const std::string& model) {
  std::vector<std::string> words{program,        "generate", "--model",
                                 model,          "--prompt", "S 24: 4 5 6 10\n",
                                 "--max-tokens", "1",        "--json"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const double begin = now_seconds();
  const int failed = posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environ);
  int status = 0;
  if (failed == 0) waitpid(child, &status, 0);
  const double seconds = now_seconds() - begin;
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0 || status != 0) {
    throw Error(program +
                ": did not generate a token; expected the command line beside this program");
  }
  return seconds;
}

void run(const LoadOptions& options) {
  Report report("load");
  const std::string shape = options.common.shape.empty() ? "1.1b" : options.common.shape;
  std::string folder = options.common.model;
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.empty()) {
    const fs::path cache =
        options.cache.empty() ? here / ".." / "bench-cache" : fs::path(options.cache);
    folder = (cache / shape).lexically_normal().string();
    write_checkpoint(shape, folder);
  }
  EngineOptions small = options.common.engine;
  small.weights = false;
  report.describe(Engine::load(folder, small), folder);
  measure_folder(options, folder, report);

  const std::string shipped =
      options.common.model.empty() ? cli::default_model() : options.common.model;
  const std::string program = (here / "dendrite").string();
  if (fs::exists(fs::path(shipped) / "tokenizer.json") && fs::exists(program)) {
    std::vector<double> ms;
    for (int i = 0; i < 4 * options.trials; ++i)
      ms.push_back(first_token_seconds(program, shipped) * 1e3);
    report.add("process start to first token and exit",
               {{"model", fs::path(shipped).lexically_normal().filename().string()}}, "ms", ms);
  }
  if (!options.common.json.empty()) report.write_json(options.common.json);
}

}  // namespace

void add_load(CLI::App& app) {
  auto options = std::make_shared<LoadOptions>();
  CLI::App* command =
      app.add_subcommand("load", "Loading, cold and from the page cache; first token");
  options->common.add_to(*command);
  command->add_option("--cache", options->cache,
                      "Where the random checkpoint of --shape (default 1.1b) is kept");
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("!--no-cold", options->cold, "Do not empty the page cache of the weights");
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
