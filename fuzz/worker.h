#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "fuzz/counts.h"
#include "fuzz/options.h"
#include "fuzz/program.h"

namespace dendrite::fuzz {

/// What a worker process tells, in memory that it shares with its parent and that outlives it.
struct Shared {
  static constexpr std::size_t kMostTapes = 2048;

  std::atomic<std::int64_t> ops{0};
  std::atomic<std::int64_t> program{0};  // the number of the one under way
  std::atomic<std::int64_t> op{0};       // the one under way in it; past the last: its final checks
  Counts counts{};
  char message[1 << 14] = {};
  Tape tapes[kMostTapes] = {};  // of the first operations, and at the end of the rest
};

enum class Outcome : std::uint8_t { kClean, kViolation, kCrash, kStuck, kInterrupted, kError };

/// How a worker ended. After a failure: at which operation of which program.
struct Result {
  Outcome outcome = Outcome::kClean;
  std::string message;
  std::int64_t program = 0;
  std::int64_t op = 0;
  bool failed() const {
    return outcome == Outcome::kViolation || outcome == Outcome::kCrash ||
           outcome == Outcome::kStuck;
  }
};

/// Runs programs in processes of their own, so that a crash is a result like any other. All engines
/// live in those: the parent has no threads.
class Workers {
 public:
  /// `scratch`: a folder for files.
  Workers(const Options& options, std::string model, std::filesystem::path scratch);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Programs made from the seed, until ops or seconds are over. Calls `progress` now and then.
  Result fuzz(const std::function<void(const Shared&)>& progress);
  /// One program. kNarrate: each operation says on stdout what it does. kSilent: nothing on stderr
  /// either, and one that gets stuck is given up soon.
  enum class Voice : std::uint8_t { kSilent, kNarrate };
  Result run(const Program& program, Voice voice);

  /// The program that fuzz() runs as its `number`-th.
  Program program(std::int64_t number) const;
  /// The program with the draws of its last run() listed.
  Program listed(const Program& program) const;

  /// Of all workers so far.
  const Shared& shared() const { return *shared_; }

 private:
  Result supervise(const std::function<void()>& job, Voice voice,
                   const std::function<void(const Shared&)>& progress);
  std::int64_t program_size(std::int64_t number) const;

  const Options& options_;
  std::string model_;
  std::filesystem::path scratch_;
  Shared* shared_;
};

/// Makes Ctrl-C end workers between two operations; a second one at once.
void install_interrupt_handler();
bool interrupted();

}  // namespace dendrite::fuzz
