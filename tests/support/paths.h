#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

// Which device and kernels tests run on: all CPU paths of the machine, or with
// DENDRITE_TEST_DEVICE=cuda in the environment the GPU, as one more path named "cuda".
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
  return path == "cuda" ? make_cuda_backend(type) : make_cpu_backend(type, threads, path);
}

}  // namespace dendrite::test
