#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

// Which device and kernels tests run on: all CPU paths of the machine, or with
// DENDRITE_TEST_DEVICE=cuda in the environment the GPU, as a path named "cuda". "cuda_fast" is the
// GPU without the promise that a row's bits do not depend on its company.
namespace dendrite::test {

inline bool on_cuda() {
  const char* device = std::getenv("DENDRITE_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}

inline std::vector<std::string> kernel_paths() {
  return on_cuda() ? std::vector<std::string>{"cuda"} : cpu_kernel_paths();
}

inline std::unique_ptr<Backend> make_backend(ComputeType type, int threads,
                                             const std::string& path) {
  if (path == "cuda" || path == "cuda_fast")
    return make_cuda_backend(type, {.deterministic = path == "cuda"});
  return make_cpu_backend(type, threads, path);
}

}  // namespace dendrite::test
