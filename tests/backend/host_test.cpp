// What a process may use of its host.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "backend/control_group.h"
#include "backend/host_cores.h"
#include "backend/host_memory.h"

#ifdef __linux__
#include <sched.h>
#endif

namespace dendrite {
namespace {

namespace fs = std::filesystem;

class ControlGroup : public testing::Test {
 protected:
  ControlGroup() { fs::create_directories(root_); }
  ~ControlGroup() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  GroupLimits limits() const { return group_limits(root_); }

  fs::path root_ = fs::temp_directory_path() / ("dendrite-groups-" + std::to_string(getpid()));
};

TEST_F(ControlGroup, LimitsNothingWhereNothingIsSaid) {
  EXPECT_FALSE(limits().cores || limits().memory_bytes || limits().free_bytes);
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  for (const char* quota : {"", "max", "100000", "1 0", "1 -5", "-1 100000", "x y"}) {
    write("sys/fs/cgroup/a/cpu.max", quota);
    EXPECT_FALSE(limits().cores) << quota;
  }
  EXPECT_FALSE(limits().memory_bytes || limits().free_bytes);
}

TEST_F(ControlGroup, TakesTheLeastOfItsGroupsAndThoseAbove) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
  write("sys/fs/cgroup/a/memory.max", "4000\n");
  write("sys/fs/cgroup/a/memory.current", "3900\n");
  write("sys/fs/cgroup/a/memory.stat", "anon 3400\nfile 500\ninactive_file 300\n");
  write("sys/fs/cgroup/a/b/memory.max", "1000\n");
  write("sys/fs/cgroup/a/b/memory.current", "200\n");
  EXPECT_EQ(limits().cores, 1.5);
  EXPECT_EQ(limits().memory_bytes, 1000);
  EXPECT_EQ(limits().free_bytes, 400);  // what a has left, with pages of files
}

TEST_F(ControlGroup, ReadsItsOwnAtTheRootOfAContainer) {
  write("proc/self/cgroup", "0::/docker/that/it/can/not/see\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  write("sys/fs/cgroup/memory.max", "2000\n");
  write("sys/fs/cgroup/memory.current", "2500\n");  // for a moment
  EXPECT_EQ(limits().cores, 0.5);
  EXPECT_EQ(limits().free_bytes, 0);
}

TEST_F(ControlGroup, ReadsVersionOne) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/m\nnonsense\n");
  write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "300000\n");
  write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "700\n");
  write("sys/fs/cgroup/memory/m/memory.usage_in_bytes", "600\n");
  EXPECT_EQ(limits().cores, 3);
  EXPECT_EQ(limits().memory_bytes, 700);
  EXPECT_EQ(limits().free_bytes, 100);
}

TEST(Host, HasCoresAndMemoryWithinItsLimits) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  const DeviceMemory memory = host_memory();
  EXPECT_GT(memory.free, 0);
  EXPECT_LE(memory.free, memory.total);
}

#ifdef __linux__
TEST(Host, HasTheCoresOfItsAffinity) {
  int cores = 0;
  std::thread([&] {  // of whom the affinity is
    cpu_set_t mine;
    CPU_ZERO(&mine);
    ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    int first = 0;
    while (!CPU_ISSET(first, &mine)) ++first;
    CPU_ZERO(&mine);
    CPU_SET(first, &mine);
    ASSERT_EQ(sched_setaffinity(0, sizeof mine, &mine), 0);
    cores = usable_cores();
  })
      .join();
  EXPECT_EQ(cores, 1);
}
#endif

}  // namespace
}  // namespace dendrite
