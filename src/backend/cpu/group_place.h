#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels.h"

namespace dendrite::cpu {

/// Where a chunk of one row lies in a panel of grouped weights (see GroupsInfo).
struct GroupPlace {
  std::byte* chunk = nullptr;
  std::int64_t lane = 0;
  std::int64_t units = 0;
  Groups groups{};

  void write(const GroupedValues& values) const;
  GroupedValues read() const;
};

}  // namespace dendrite::cpu
