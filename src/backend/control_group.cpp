#include "backend/control_group.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace dendrite {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::optional<std::int64_t> number(const std::string& text) {
  std::istringstream in(text);
  std::int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;  // "max", or no such file
}

/// The path behind a controller in /proc/self/cgroup, whose lines are ID:CONTROLLERS:PATH; that of
/// version 2 names none. A container may read paths that it can't see: its group is the root then.
fs::path group_of(const fs::path& root, const std::string& controller) {
  std::istringstream lines(text_of(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    bool is_its = controller.empty() && second == first + 1;
    for (std::string name; std::getline(controllers, name, ',');) is_its |= name == controller;
    if (!is_its) continue;
    return fs::path(line.substr(second + 1)).relative_path();
  }
  return {};
}

template <typename T>
void lower(std::optional<T>& least, T value) {
  least = least ? std::min(*least, value) : value;
}

void limit_cores(GroupLimits& limits, std::optional<std::int64_t> quota,
                 std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  lower(limits.cores, static_cast<double>(*quota) / static_cast<double>(*period));
}

void limit_memory(GroupLimits& limits, std::optional<std::int64_t> most,
                  std::optional<std::int64_t> used, const std::string& stat) {
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // version 1 writes a number so large
  if (!most || *most <= 0 || *most >= kNoLimit) return;
  std::int64_t of_files = 0;
  std::istringstream lines(stat);
  for (std::string name, value; lines >> name >> value;) {
    if (name == "inactive_file" || name == "total_inactive_file")
      of_files = number(value).value_or(0);
  }
  lower(limits.memory_bytes, *most);
  lower(limits.free_bytes, std::clamp<std::int64_t>(*most - used.value_or(0) + of_files, 0, *most));
}

template <typename Read>
void upwards(const fs::path& mount, const fs::path& group, Read read) {
  for (fs::path path = group;; path = path.parent_path()) {
    read(mount / path);
    if (path.empty()) return;
  }
}

}  // namespace

GroupLimits group_limits(const fs::path& root) {
  GroupLimits limits;
  const fs::path mounts = root / "sys/fs/cgroup";
  upwards(mounts, group_of(root, ""), [&](const fs::path& at) {
    std::istringstream words(text_of(at / "cpu.max"));
    std::string quota;
    std::string period;
    words >> quota >> period;
    limit_cores(limits, number(quota), number(period));
    limit_memory(limits, number(text_of(at / "memory.max")), number(text_of(at / "memory.current")),
                 text_of(at / "memory.stat"));
  });
  upwards(mounts / "cpu", group_of(root, "cpu"), [&](const fs::path& at) {
    limit_cores(limits, number(text_of(at / "cpu.cfs_quota_us")),
                number(text_of(at / "cpu.cfs_period_us")));
  });
  upwards(mounts / "memory", group_of(root, "memory"), [&](const fs::path& at) {
    limit_memory(limits, number(text_of(at / "memory.limit_in_bytes")),
                 number(text_of(at / "memory.usage_in_bytes")), text_of(at / "memory.stat"));
  });
  return limits;
}

}  // namespace dendrite
