#include "backend/cpu/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
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

/// Whether the CPU has AMX's tiles and their bf16 product, and the operating system grants this
/// process their registers. Asking for them once holds for all threads; it is refused where a
/// thread has a signal stack too small to keep them.
bool amx_bf16_granted() {
  constexpr unsigned kTile = 1u << 24;
  constexpr unsigned kBF16 = 1u << 22;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kTile) == 0 || (d & kBF16) == 0) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
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
  if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
    // AMD's bf16 dot does twice the work of an FMA in the same time. Intel's takes four times as
    // long as an FMA (measured on Emerald Rapids: 100 GFLOP/s against 190 of a core), so there
    // widening to f32 is the faster way, and the more exact one.
    const bool fast_dot = __builtin_cpu_is("amd");
    paths.insert(fast_dot ? paths.begin() : paths.end(), &avx512_bf16_kernels());
    if (amx_bf16_granted()) paths.insert(paths.begin(), &amx_bf16_kernels());
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

const Kernels& select_kernels(const std::string& wanted) {
  const std::vector<const Kernels*> paths = runnable_kernels();
  const char* const of_tests = std::getenv("DENDRITE_TEST_KERNELS");
  const std::string name = wanted.empty() && of_tests != nullptr ? of_tests : wanted;
  if (name.empty()) return *paths.front();
  if (name == amx_bf16_model_kernels().name) return amx_bf16_model_kernels();
  std::string known;
  for (const Kernels* path : paths) {
    if (path->name == name) return *path;
    known += known.empty() ? path->name : std::string(", ") + path->name;
  }
  throw Error("make_cpu_backend: this machine cannot run kernels \"" + name + "\"" +
              (wanted.empty() ? " (DENDRITE_TEST_KERNELS in the environment)" : "") + "; it has " +
              known);
}

std::string numerics_of(const Kernels& kernels) {
  return &kernels == &amx_bf16_model_kernels() ? "amx_bf16" : kernels.name;
}

}  // namespace cpu

std::vector<std::string> cpu_kernel_paths() {
  std::vector<std::string> names;
  for (const cpu::Kernels* path : cpu::runnable_kernels()) names.emplace_back(path->name);
  return names;
}

}  // namespace dendrite
