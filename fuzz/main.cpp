#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "fuzz/model.h"
#include "fuzz/operation_table.h"
#include "fuzz/report.h"
#include "fuzz/shrink.h"
#include "fuzz/worker.h"
#include "tests/support/temporary_folder.h"

// dendrite-fuzz: random programs on whole engines, each branch compared with its replay.
// Exit status: 0 done; 1 a violation (or a clear error); 2 wrong usage; 130 after Ctrl-C.

namespace {

using namespace dendrite;
using namespace dendrite::fuzz;

constexpr int kExitInterruptedByUser = 130;
/// From this many operations on, a run with nothing fixed must have met everything.
constexpr std::int64_t kThoroughOps = 20000;

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const Operation& operation : operations()) names.emplace_back(operation.name);
  return names;
}

void add_flags(CLI::App& app, Options& options) {
  app.add_option("--ops", options.ops, "Operations to run")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Stop after this long (without --ops: only then)")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Seed of all programs")->capture_default_str();
  app.add_option("--program-ops", options.program_ops,
                 "Operations on one engine, before the next one is made")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--first", options.first, "Number of the first program of the seed to run")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--pool-pages", options.fixed.pool_pages,
                 "Pages of the KV pool (default: differs from program to program, always small)")
      ->check(CLI::Range(4, 1 << 16));
  app.add_option("--page-tokens", options.fixed.page_tokens, "Tokens a page (default: differs)")
      ->check(CLI::IsMember({8, 16, 32}));
  app.add_option("--dtype", options.fixed.dtype, "Compute type (default: differs)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_option("--kv-dtype", options.fixed.kv_dtype,
                 "What K and V are kept as (default: differs)")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}));
  app.add_option("--kernels", options.fixed.kernels, "Instruction path (default: differs)")
      ->check(CLI::IsMember(cpu_kernel_paths()));
  app.add_option("--threads", options.fixed.threads, "Threads (default: differs)")
      ->check(CLI::Range(1, 64));
  app.add_option("--often", options.fixed.often,
                 "An operation that comes as often as all others together")
      ->check(CLI::IsMember(operation_names()))
      ->type_name("NAME");
  app.add_option("--devices", options.devices, "Of that kind, by their indices")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--device", options.device, "Where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--model", options.model, "Model folder (default: a tiny one of random weights)")
      ->type_name("DIR_OR_ID");
  app.add_flag("--recurrent", options.tiny.recurrent, "Of the tiny one: with recurrent layers")
      ->excludes("--model");
  app.add_flag("--experts", options.tiny.experts, "Of the tiny one: with mixtures of experts")
      ->excludes("--model");
  app.add_option("--family", options.tiny.family, "Of the tiny one: of another family than Qwen3")
      ->check(CLI::IsMember(tiny_families()))
      ->excludes("--model")
      ->excludes("--recurrent")
      ->excludes("--experts");
  app.add_option("--load-format", options.load_format, "dummy: random weights")
      ->check(CLI::IsMember({"auto", "dummy"}));
  app.add_option("--program", options.programs, "Run the program in a file, saying what it does")
      ->type_name("FILE");
  app.add_option("--save", options.save, "Where to write a program that failed")->type_name("FILE");
  app.add_option("--shrink-seconds", options.shrink_seconds, "How long to make a failure smaller")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--json", options.json, "One JSON object on stdout, nothing else there");
}

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in.good() && text.empty()) throw Error(path + ": cannot be read");
  return text;
}

/// A line on stderr, rewritten twice a second, when that is a terminal.
class Progress {
 public:
  void operator()(const Shared& shared) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(500);
    std::fprintf(stderr, "\r\033[K%lld operations, %lld comparisons",
                 static_cast<long long>(shared.ops.load()),
                 static_cast<long long>(shared.counts.comparisons));
    shown_ = true;
  }
  ~Progress() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Runs the given files. The first that fails is what was found.
std::optional<Finding> run_files(const Options& options, Workers& workers, Result& last,
                                 Totals& totals) {
  const auto begin = std::chrono::steady_clock::now();
  const auto voice = options.json ? Workers::Voice::kSilent : Workers::Voice::kNarrate;
  for (const std::string& file : options.programs) {
    const Program program = parse_program(read_file(file), file);
    if (!options.json) std::printf("%s\n", file.c_str());
    last = workers.run(program, voice);
    totals = {workers.shared().ops, workers.shared().counts, since(begin)};
    if (last.failed()) return Finding{last, program, file};
    if (last.outcome != Outcome::kClean) break;
  }
  return std::nullopt;
}

std::optional<Finding> run_fuzz(const Options& options, Workers& workers, Result& last,
                                Totals& totals) {
  const auto begin = std::chrono::steady_clock::now();
  {
    Progress progress;
    last = workers.fuzz([&](const Shared& shared) { progress(shared); });
  }
  totals = {workers.shared().ops, workers.shared().counts, since(begin)};
  if (!last.failed()) return std::nullopt;
  std::fprintf(
      stderr, "dendrite-fuzz: violation after %lld operations, in program %lld of seed %llu: %s\n",
      static_cast<long long>(workers.shared().ops.load()), static_cast<long long>(last.program),
      static_cast<unsigned long long>(options.seed), last.message.c_str());
  Program program = workers.program(last.program);
  program.ops.resize(std::min(program.ops.size(), static_cast<std::size_t>(last.op + 1)));
  Finding finding{last, program};
  if (options.shrink_seconds <= 0) return finding;
  std::fprintf(stderr, "dendrite-fuzz: making its %zu operations fewer\n", program.ops.size());
  Shrinker shrinker(
      [&](const Program& candidate) {
        const Result result = workers.run(candidate, Workers::Voice::kSilent);
        if (result.failed()) finding.result.message = result.message;
        return result.failed();
      },
      [&](const Program& candidate) { return workers.listed(candidate); }, options.shrink_seconds);
  finding.program = shrinker.shrink(std::move(program));
  return finding;
}

void print_finding(const Options& options, Workers& workers, const Finding& finding) {
  const std::string text = to_text(finding.program);
  if (finding.file.empty()) {
    if (!options.json && options.shrink_seconds > 0) {
      std::printf("\nWhat it does:\n");
      workers.run(finding.program, Workers::Voice::kNarrate);
    }
    std::fprintf(stderr, "\nThe program, for --program FILE (%zu operations):\n%s\n",
                 finding.program.ops.size(), text.c_str());
  }
  std::fprintf(stderr, "dendrite-fuzz: violation: %s\n", finding.result.message.c_str());
  if (options.save.empty()) return;
  std::ofstream out(options.save);
  out << "# " << finding.result.message.substr(0, finding.result.message.find('\n')) << '\n'
      << text;
  if (!out.flush()) throw Error(options.save + ": cannot be written");
}

int run(const Options& options) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);  // snapshots need no disk here
  Options settled = options;
  if (options.model.empty()) {
    write_tiny_model(folder.path(), options.tiny);
    if (is_recurrent(options.tiny))
      settled.fixed.page_tokens = 16;  // their layers go by chunks of 16
    settled.model = folder.path().string();
    settled.load_format = "dummy";
  }
  Workers workers(settled, settled.model, folder.path());
  Result last;
  Totals totals;
  const std::optional<Finding> finding = options.programs.empty()
                                             ? run_fuzz(settled, workers, last, totals)
                                             : run_files(settled, workers, last, totals);
  if (last.outcome == Outcome::kError) throw Error(last.message);
  if (finding) print_finding(settled, workers, *finding);
  if (options.json) {
    std::printf("%s\n", json_report(settled, totals, finding ? &*finding : nullptr).c_str());
  } else {
    std::printf("%s", text_report(settled, totals).c_str());
  }
  if (finding) return 1;
  if (interrupted()) return kExitInterruptedByUser;
  const bool everything = options.programs.empty() && totals.ops >= kThoroughOps &&
                          options.fixed.pool_pages == 0 && options.fixed.often.empty() &&
                          options.model.empty() && !options.tiny.recurrent &&
                          options.tiny.family.empty();
  if (const std::string missing = everything ? missing_counts(totals.counts) : "";
      !missing.empty()) {
    throw Error("so many operations never met: " + missing);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Runs random programs (prefill, fork, rewind, decode, score, ...) on engines with few "
      "pages,\n"
      "and compares every branch bit for bit with a replay of its tokens on an engine without\n"
      "sharing, index or company. A failure is made smaller and printed as a program."};
  app.failure_message(CLI::FailureMessage::simple);
  Options options;
  add_flags(app, options);
  try {
    app.parse(argc, argv);
    if (options.seconds > 0 && app.count("--ops") == 0) options.ops = 0;
    install_interrupt_handler();
    return run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dendrite-fuzz: %s\n", error.what());
    return 1;
  }
}
