#include "backend/cpu/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"

namespace dendrite {
namespace cpu {
namespace {

#if defined(__x86_64__)
/// Not every compiler's __builtin_cpu_supports() knows this one.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/// Best first. GCC's and Clang's checks include what the operating system saves of the registers.
std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> paths;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx512) paths.push_back(&avx512_kernels());
  if (avx512 && __builtin_cpu_supports("avx512bf16")) {
    // AMD's bf16 dot does twice the work of an FMA in the same time. Intel's takes four times as
    // long as an FMA (measured on Emerald Rapids: 100 GFLOP/s against 190 of a core), so there
    // widening to f32 is the faster way, and the more exact one.
    const bool fast_dot = __builtin_cpu_is("amd");
    paths.insert(fast_dot ? paths.begin() : paths.end(), &avx512_bf16_kernels());
  }
  if (avx2) paths.push_back(&avx2_kernels());
#endif
#if defined(__aarch64__)
  paths.push_back(&neon_kernels());
#endif
  paths.push_back(&portable_kernels());
  return paths;
}

}  // namespace

const Kernels& select_kernels(const std::string& name) {
  const std::vector<const Kernels*> paths = runnable_kernels();
  if (name.empty()) return *paths.front();
  std::string known;
  for (const Kernels* path : paths) {
    if (path->name == name) return *path;
    known += known.empty() ? path->name : std::string(", ") + path->name;
  }
  throw Error("make_cpu_backend: this machine cannot run kernels \"" + name + "\"; it has " +
              known);
}

}  // namespace cpu

std::vector<std::string> cpu_kernel_paths() {
  std::vector<std::string> names;
  for (const cpu::Kernels* path : cpu::runnable_kernels()) names.emplace_back(path->name);
  return names;
}

}  // namespace dendrite
