#include "fuzz/worker.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <thread>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "fuzz/operations.h"
#include "fuzz/world.h"

namespace dendrite::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

// An operation takes milliseconds, ten times that under a sanitizer; one that takes this long waits
// for something that never happens. Of a program that is being made smaller, many are tried.
constexpr double kStuckSeconds = 60;
constexpr double kStuckSilentSeconds = 5;

constexpr int kExitViolation = 10;
constexpr int kExitInterrupted = 11;
constexpr int kExitError = 12;

volatile std::sig_atomic_t interrupts = 0;

extern "C" void on_interrupt(int) {
  interrupts = interrupts + 1;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void tell(Shared& shared, const std::string& message) {
  const std::size_t size = std::min(message.size(), sizeof(shared.message) - 1);
  std::memcpy(shared.message, message.data(), size);
  shared.message[size] = 0;
}

/// The inside of a worker process: engines and the programs on them.
class Inside {
 public:
  Inside(const Options& options, const std::string& model, const std::filesystem::path& scratch,
         Shared& shared)
      : options_(options), model_(model), scratch_(scratch), shared_(shared) {}

  void run(const Program& program, bool narrate) {
    const EngineOptions engine = engine_options(program.setting);
    shared_.op = 0;
    try {
      const auto guard = [this](const std::function<void()>& job) { guarded(job); };
      World world({model_, engine, scratch_, narrate, guard}, program.setting, reference(engine));
      guarded([&] { run(program, world); });
    } catch (const Error& error) {  // the model or the device, not a finding
      tell(shared_, error.what());
      _exit(kExitError);
    }
    ++shared_.counts.programs;
  }

 private:
  void run(const Program& program, World& world) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      if (interrupted()) std::exit(kExitInterrupted);
      Draws draws = program.ops[i].draws(shared_.tapes[std::min(i, Shared::kMostTapes - 1)]);
      world.run(program.ops[i], draws);
      ++shared_.op;
      ++shared_.ops;
    }
    world.finish();
  }
  void guarded(const std::function<void()>& job) {
    try {
      job();
    } catch (const Error& error) {
      fail(std::string("an Error that nothing called for: ").append(error.what()));
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
  /// Ends the process here: to take the engine down could crash, and hide what was found.
  [[noreturn]] void fail(const std::string& what) {
    tell(shared_, what);
    std::fflush(nullptr);
    _exit(kExitViolation);
  }
  EngineOptions engine_options(const Setting& setting) const {
    EngineOptions engine;
    engine.beyond_positions = true;  // (tiny models; the reference goes as far)
    engine.device = options_.device;
    engine.devices = options_.devices;
    engine.dtype = setting.dtype;
    engine.kv_dtype = setting.kv_dtype;
    engine.load_format = options_.load_format;
    const std::vector<std::string> paths = cpu_kernel_paths();
    // A program from another machine runs on the best path of this one.
    if (std::find(paths.begin(), paths.end(), setting.kernels) != paths.end()) {
      engine.kernels = setting.kernels;
    }
    return engine;
  }
  Reference& reference(const EngineOptions& engine) {
    std::unique_ptr<Reference>& known =
        references_[engine.dtype + " " + engine.kv_dtype + " " + engine.kernels];
    if (known == nullptr) known = std::make_unique<Reference>(model_, engine, shared_.counts);
    return *known;
  }

  const Options& options_;
  const std::string& model_;
  const std::filesystem::path& scratch_;
  Shared& shared_;
  std::map<std::string, std::unique_ptr<Reference>> references_;
};

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return interrupts > 0;
}

Workers::Workers(const Options& options, std::string model, std::filesystem::path scratch)
    : options_(options), model_(std::move(model)), scratch_(std::move(scratch)) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("dendrite-fuzz: no memory to share with its workers");
  shared_ = new (memory) Shared;
}

Workers::~Workers() {
  munmap(shared_, sizeof(Shared));
}

Program Workers::program(std::int64_t number) const {
  const std::vector<std::string> kernels = cpu_kernel_paths();
  return make_program(options_.seed, static_cast<std::uint64_t>(number), program_size(number),
                      options_.fixed, kernels);
}

/// The last one is shorter, so that exactly `ops` are run.
std::int64_t Workers::program_size(std::int64_t number) const {
  const std::int64_t size = options_.program_ops;
  if (options_.ops == 0) return size;
  return std::clamp<std::int64_t>(options_.ops - (number - options_.first) * size, 0, size);
}

Result Workers::fuzz(const std::function<void(const Shared&)>& progress) {
  const Clock::time_point begin = Clock::now();
  const auto job = [&] {
    Inside inside(options_, model_, scratch_, *shared_);
    for (std::int64_t number = options_.first; program_size(number) > 0; ++number) {
      if (options_.seconds > 0 && seconds_since(begin) >= options_.seconds) return;
      shared_->program = number;
      inside.run(program(number), false);
    }
  };
  return supervise(job, Voice::kNarrate, progress);
}

Result Workers::run(const Program& program, Voice voice) {
  const auto job = [&] {
    Inside(options_, model_, scratch_, *shared_).run(program, voice == Voice::kNarrate);
  };
  return supervise(job, voice, {});
}

Program Workers::listed(const Program& program) const {
  Program out = program;
  for (std::size_t i = 0; i + 1 < std::min(out.ops.size() + 1, Shared::kMostTapes); ++i) {
    const Tape& tape = shared_->tapes[i];
    if (tape.count > Tape::kMost) continue;
    out.ops[i].given.assign(tape.values.begin(), tape.values.begin() + tape.count);
    out.ops[i].listed = true;
  }
  return out;
}

Result Workers::supervise(const std::function<void()>& job, Voice voice,
                          const std::function<void(const Shared&)>& progress) {
  shared_->message[0] = 0;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Error("dendrite-fuzz: no process can be started");
  if (child == 0) {
    if (voice == Voice::kSilent) {
      const int null = open("/dev/null", O_WRONLY);
      if (null >= 0) dup2(null, STDERR_FILENO);
    }
    job();
    std::exit(0);
  }

  Result result;
  int status = 0;
  std::int64_t seen = -1;
  Clock::time_point moved = Clock::now();
  bool told = false;
  for (auto pause = std::chrono::microseconds(500);;
       pause = std::min(pause * 2, std::chrono::microseconds(50000))) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (progress) progress(*shared_);
    if (const std::int64_t now = shared_->ops; now != seen) {
      seen = now;
      moved = Clock::now();
    }
    if (interrupts > 0 && !told) kill(child, SIGINT);
    told = interrupts > 0;
    const bool stuck =
        seconds_since(moved) > (voice == Voice::kSilent ? kStuckSilentSeconds : kStuckSeconds);
    if (stuck || interrupts > 1) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      if (stuck) result.outcome = Outcome::kStuck;
      break;
    }
    std::this_thread::sleep_for(pause);
  }
  result.program = shared_->program;
  result.op = shared_->op;
  result.message = shared_->message;
  if (result.outcome == Outcome::kStuck) {
    result.message = "an operation did not end";
  } else if (WIFSIGNALED(status)) {
    result.outcome = interrupts > 1 ? Outcome::kInterrupted : Outcome::kCrash;
    result.message = std::string("it was ended by a signal: ") + strsignal(WTERMSIG(status));
  } else if (WEXITSTATUS(status) == kExitInterrupted) {
    result.outcome = Outcome::kInterrupted;
  } else if (WEXITSTATUS(status) == kExitViolation) {
    result.outcome = Outcome::kViolation;
  } else if (WEXITSTATUS(status) == kExitError) {
    result.outcome = Outcome::kError;
  } else if (WEXITSTATUS(status) != 0) {
    result.outcome = Outcome::kCrash;
    result.message = "it ended itself with status " + std::to_string(WEXITSTATUS(status));
  }
  return result;
}

}  // namespace dendrite::fuzz
