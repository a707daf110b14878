#include "backend/host_cores.h"

#include <algorithm>
#include <cmath>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

#include "backend/control_group.h"

namespace dendrite {
namespace {

int cores_of_affinity() {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

int usable_cores() {
  const int cores = cores_of_affinity();
  const double allowed = group_limits().cores.value_or(cores);
  return std::max(1, static_cast<int>(std::min<double>(cores, std::ceil(allowed))));
}

}  // namespace dendrite
