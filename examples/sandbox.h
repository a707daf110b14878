#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

/// Runs a command in a child process with limits on time, memory, files and output, for tests of
/// programs that a model wrote. It guards against accidents (loops, leaks, floods, leftovers), not
/// against malice: the child has the user's rights, and what calls setsid() outlives it, though
/// under the same limits. Linux 5.11 or newer. Safe from several threads.
namespace sandbox {

struct Limits {
  std::chrono::milliseconds wall{5000};               ///< then the whole process group is killed
  std::int64_t cpu_seconds = 2;                       ///< of each process
  std::int64_t memory_bytes = std::int64_t{1} << 29;  ///< address space of each process
  std::int64_t file_bytes = std::int64_t{1} << 20;    ///< of each file that it writes
  std::size_t output_bytes = std::size_t{1} << 16;    ///< kept of its output; the rest is dropped
};

enum class End : std::uint8_t { kExited, kSignalled, kTimeout, kMemory, kCancelled };

struct Outcome {
  End end = End::kExited;
  int code = 0;        ///< the exit status, or the signal that ended it
  std::string output;  ///< stdout and stderr as they came

  bool passed() const { return end == End::kExited && code == 0; }
  /// "exit status 1", "signal 11 (Segmentation fault)", "ran out of time", ...
  std::string message() const {
    switch (end) {
      case End::kExited:
        return "exit status " + std::to_string(code);
      case End::kSignalled:
        return "signal " + std::to_string(code) + " (" + ::strsignal(code) + ")";
      case End::kTimeout:
        return "ran out of time";
      case End::kMemory:
        return "ran out of memory";
      case End::kCancelled:
        return "cancelled";
    }
    return "";
  }
};

/// An empty folder of its own, removed with everything in it.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "sandbox-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + name);
    }
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

namespace detail {

/// A pipe that no other child inherits; both ends are closed at the latest with it.
struct Pipe {
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe2");
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(0);
    close(1);
  }
  void close(std::size_t end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
  std::array<int, 2> ends{-1, -1};  // to read, to write
};

/// What the child needs, made before the fork: after it only async-signal-safe calls are allowed.
struct Plan {
  std::vector<char*> arguments, environment;
  const char* folder;
  Limits limits;
};

inline bool limit(__rlimit_resource_t resource, std::int64_t value) {
  struct rlimit now {};
  if (::getrlimit(resource, &now) != 0) return false;
  now.rlim_max = std::min<rlim_t>(now.rlim_max, static_cast<rlim_t>(value));
  now.rlim_cur = now.rlim_max;
  return ::setrlimit(resource, &now) == 0;
}

/// In the child: becomes the command, or tells `status` why not.
[[noreturn]] inline void become(const Plan& plan, int output, int status) {
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (::setpgid(0, 0) == 0 && ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
      limit(RLIMIT_CPU, plan.limits.cpu_seconds) && limit(RLIMIT_AS, plan.limits.memory_bytes) &&
      limit(RLIMIT_FSIZE, plan.limits.file_bytes) && limit(RLIMIT_CORE, 0) &&
      ::chdir(plan.folder) == 0 && nothing >= 0 && ::dup2(nothing, 0) >= 0 &&
      ::dup2(output, 1) >= 0 && ::dup2(output, 2) >= 0 &&
      ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0) {
    ::execve(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(status, &error, sizeof error);
  ::_exit(127);
}

/// Reads what is there, keeps at most `limit` bytes in all; false: the end.
inline bool read_some(int from, std::string& output, std::size_t limit) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t count = ::read(from, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    if (count == 0) return false;
    output.append(buffer.data(), std::min(static_cast<std::size_t>(count), limit - output.size()));
  }
}

/// Nobody is told that RLIMIT_AS refused memory. What failed counts as out of memory when it had
/// used half of it (buffers grow by doubling), or says what runtimes say then.
inline bool out_of_memory(const Outcome& outcome, const struct rusage& usage,
                          const Limits& limits) {
  if (usage.ru_maxrss * 1024 >= limits.memory_bytes / 2) return true;
  for (const std::string_view sign : {"MemoryError", "bad_alloc", "Cannot allocate memory",
                                      "memory exhausted", "out of memory"}) {
    if (outcome.output.find(sign) != std::string::npos) return true;
  }
  return false;
}

}  // namespace detail

/// Runs `command` (its first word an absolute path) in `folder`, with stdin empty, no other file of
/// this process open, and an environment of PATH, HOME and TMPDIR (the folder). What it started
/// and left running is killed when it ends. An exit status of 128 + n counts as signal n, as a
/// shell reports it. Throws std::system_error when the command cannot be started.
inline Outcome run(std::vector<std::string> command, const std::filesystem::path& folder,
                   const Limits& limits = {}, const std::stop_token& cancel = {}) {
  using Clock = std::chrono::steady_clock;
  const char* search_path = std::getenv("PATH");
  std::vector<std::string> environment{
      "PATH=" + std::string(search_path != nullptr ? search_path : "/usr/bin:/bin"),
      "HOME=" + folder.string(), "TMPDIR=" + folder.string()};
  detail::Plan plan{{}, {}, folder.c_str(), limits};
  for (std::string& word : command) plan.arguments.push_back(word.data());
  for (std::string& variable : environment) plan.environment.push_back(variable.data());
  plan.arguments.push_back(nullptr);
  plan.environment.push_back(nullptr);

  detail::Pipe output, status;
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) detail::become(plan, output.ends[1], status.ends[1]);
  output.close(1);
  status.close(1);
  int error = 0;
  ssize_t told = 0;
  while ((told = ::read(status.ends[0], &error, sizeof error)) < 0 && errno == EINTR) continue;
  if (told == sizeof error) {
    ::waitpid(child, nullptr, 0);
    throw std::system_error(error, std::generic_category(), "cannot run " + command[0]);
  }

  Outcome outcome;
  ::fcntl(output.ends[0], F_SETFL, O_NONBLOCK);
  const Clock::time_point end = Clock::now() + limits.wall;
  for (;;) {
    struct pollfd ready {
      output.ends[0], POLLIN, 0
    };  // a closed end is -1: then this only waits
    ::poll(&ready, 1, 2);
    if (ready.fd >= 0 && !detail::read_some(ready.fd, outcome.output, limits.output_bytes)) {
      output.close(0);
    }
    // The zombie keeps its number, so that the group that is killed below is its own.
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == child) {
      break;
    }
    if (cancel.stop_requested()) {
      outcome.end = End::kCancelled;
      break;
    }
    if (Clock::now() >= end) {
      outcome.end = End::kTimeout;
      break;
    }
  }
  ::kill(-child, SIGKILL);
  int how = 0;
  struct rusage usage {};
  while (::wait4(child, &how, 0, &usage) < 0 && errno == EINTR) continue;
  if (output.ends[0] >= 0) {
    detail::read_some(output.ends[0], outcome.output, limits.output_bytes);
  }
  if (outcome.end != End::kExited) return outcome;

  const bool by_shell = WIFEXITED(how) && WEXITSTATUS(how) > 128 && WEXITSTATUS(how) < 128 + NSIG;
  outcome.end = WIFSIGNALED(how) || by_shell ? End::kSignalled : End::kExited;
  outcome.code = WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how) - (by_shell ? 128 : 0);
  if (outcome.passed()) return outcome;
  // RLIMIT_CPU ends what it meets with SIGXCPU, or with SIGKILL where soft and hard limit are one.
  const std::int64_t cpu = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec;
  if (outcome.end == End::kSignalled &&
      (outcome.code == SIGXCPU || (outcome.code == SIGKILL && cpu + 1 >= limits.cpu_seconds))) {
    outcome.end = End::kTimeout;
  } else if (detail::out_of_memory(outcome, usage, limits)) {
    outcome.end = End::kMemory;
  }
  return outcome;
}

}  // namespace sandbox
