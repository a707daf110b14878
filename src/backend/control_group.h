#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace dendrite {

/// What the control groups (cgroups, versions 1 and 2) that a process is in allow it: how
/// containers and services are limited. The least of a group and of those above it; none where
/// nothing is limited.
struct GroupLimits {
  std::optional<double> cores;               // of time: 1.5 are three cores for half of it
  std::optional<std::int64_t> memory_bytes;  // in all
  std::optional<std::int64_t> free_bytes;  // of it; what holds pages of files alone counts as free
};

/// Of this process. `root`: where the system's files are, for tests.
GroupLimits group_limits(const std::filesystem::path& root = "/");

}  // namespace dendrite
