// What examples/sandbox.h promises: limits hold, ends are told apart, nothing is left behind.
#include "examples/sandbox.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

namespace sandbox {
namespace {

Outcome shell(const std::string& script, const Limits& limits = {},
              const std::stop_token& cancel = {}) {
  const Folder folder;
  return run({"/bin/sh", "-c", script}, folder.path(), limits, cancel);
}

TEST(Sandbox, PassesExitStatusAndOutputThrough) {
  const Outcome good = shell("echo out; echo err >&2");
  EXPECT_TRUE(good.passed());
  EXPECT_EQ(good.output, "out\nerr\n");
  const Outcome bad = shell("exit 7");
  EXPECT_FALSE(bad.passed());
  EXPECT_EQ(bad.end, End::kExited);
  EXPECT_EQ(bad.code, 7);
}

TEST(Sandbox, TellsTheSignal) {
  for (const char* script : {"kill -SEGV $$", "sh -c 'kill -SEGV $$'; exit $?"}) {
    const Outcome outcome = shell(script);
    EXPECT_EQ(outcome.end, End::kSignalled) << script;
    EXPECT_EQ(outcome.code, SIGSEGV) << script;
  }
}

TEST(Sandbox, WallClockLimitKillsWhatSleeps) {
  const Outcome outcome = shell("echo begun; sleep 600", {.wall = std::chrono::milliseconds(300)});
  EXPECT_EQ(outcome.end, End::kTimeout);
  EXPECT_EQ(outcome.output, "begun\n");
}

TEST(Sandbox, CpuLimitKillsWhatLoops) {
  const Outcome outcome =
      shell("while :; do :; done", {.wall = std::chrono::milliseconds(60'000), .cpu_seconds = 1});
  EXPECT_EQ(outcome.end, End::kTimeout);
  EXPECT_NE(outcome.code, 0);  // the kernel ended it, not the wall clock
  EXPECT_EQ(outcome.message(), "ran out of time");
}

TEST(Sandbox, MemoryLimitIsToldApart) {
  // tail keeps a line that has no end, and says so; one block that is refused at once leaves no
  // trace but what dd says.
  for (const char* script : {"exec tail /dev/zero", "exec dd if=/dev/zero of=/dev/null bs=1G"}) {
    const Outcome outcome = shell(script, {.memory_bytes = std::int64_t{1} << 27});
    EXPECT_EQ(outcome.end, End::kMemory) << outcome.message() << "\n" << outcome.output;
  }
}

TEST(Sandbox, FailureOfASmallProgramIsNotForMemory) {
  EXPECT_EQ(shell("exit 3", {.memory_bytes = std::int64_t{1} << 27}).end, End::kExited);
}

TEST(Sandbox, FilesAreLimited) {
  const Outcome outcome = shell("exec dd if=/dev/zero of=large bs=65536 count=1024 2>/dev/null",
                                {.file_bytes = 100'000});
  EXPECT_EQ(outcome.end, End::kSignalled);
  EXPECT_EQ(outcome.code, SIGXFSZ);
}

TEST(Sandbox, OutputIsBoundedAndDoesNotBlock) {
  const Outcome outcome = shell("head -c 1000000 /dev/zero; echo done >&2", {.output_bytes = 1000});
  EXPECT_TRUE(outcome.passed());
  EXPECT_EQ(outcome.output.size(), 1000U);
}

/// Whether the process of this number has ended; waits for it for ten seconds at most.
bool ends(pid_t process) {
  for (int i = 0; i < 1000; ++i) {
    std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
    std::string number, name, state;
    if (!(stat >> number >> name >> state) || state == "Z") return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Sandbox, GrandchildrenDie) {
  for (const char* rest : {"exit 0", "sleep 600"}) {
    const Outcome outcome = shell(std::string("sleep 600 & echo $!; ") + rest,
                                  {.wall = std::chrono::milliseconds(300)});
    ASSERT_FALSE(outcome.output.empty());
    EXPECT_TRUE(ends(std::stoi(outcome.output))) << rest;
  }
}

TEST(Sandbox, InheritsNoFilesAndFewVariables) {
  const int open_file = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC, on purpose
  ASSERT_GE(open_file, 3);
  const Outcome files = shell("[ -e /proc/self/fd/" + std::to_string(open_file) + " ]");
  ::close(open_file);
  EXPECT_FALSE(files.passed());
  ::setenv("SANDBOX_TEST_SECRET", "1", 1);
  EXPECT_TRUE(shell("[ -z \"$SANDBOX_TEST_SECRET\" ]").passed());
  EXPECT_TRUE(shell("[ \"$PWD\" = \"$HOME\" ] && [ \"$HOME\" = \"$TMPDIR\" ]").passed());
  EXPECT_TRUE(shell("! read line").passed());  // stdin is empty
}

TEST(Sandbox, CancelledFromAnotherThread) {
  std::stop_source stop;
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  EXPECT_EQ(shell("sleep 600", {.wall = std::chrono::minutes(10)}, stop.get_token()).end,
            End::kCancelled);
}

TEST(Sandbox, SaysWhatCannotBeStarted) {
  const Folder folder;
  EXPECT_THROW(run({"/no/such/program"}, folder.path()), std::system_error);
  EXPECT_THROW(run({"/bin/true"}, folder.path() / "missing"), std::system_error);
}

TEST(Sandbox, FolderIsRemovedWithWhatIsInIt) {
  std::filesystem::path path;
  {
    const Folder folder;
    path = folder.path();
    EXPECT_TRUE(run({"/bin/sh", "-c", "mkdir a && echo 1 > a/b"}, path).passed());
    EXPECT_TRUE(std::filesystem::exists(path / "a/b"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace sandbox
