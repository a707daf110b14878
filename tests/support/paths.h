#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

// Which device and kernels tests run on: all CPU paths of the machine, or with
// DENDRITE_TEST_DEVICE=cuda in the environment the GPU, as a path named "cuda". "cuda_fast" is the
// GPU without the promise that a row's bits do not depend on its company. Engines of the engine's
// tests take the CPU as a device that samples with DENDRITE_TEST_DEVICE=sampling.
namespace dendrite::test {

inline std::string test_device() {
  const char* device = std::getenv("DENDRITE_TEST_DEVICE");
  return device == nullptr ? "" : device;
}
inline bool on_cuda() {
  return test_device() == "cuda";
}

/// Where the machine lacks a path whose bits a model computes, the model is tested in its place.
inline std::vector<std::string> kernel_paths() {
  if (on_cuda()) return {"cuda"};
  std::vector<std::string> paths = cpu_kernel_paths();
  if (std::find(paths.begin(), paths.end(), "amx_bf16") == paths.end()) {
    paths.emplace_back("amx_bf16_model");
  }
  return paths;
}

/// What devices keep K and V as.
inline constexpr KvFormat kKvFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kFP8};

inline std::unique_ptr<Backend> make_backend(Numerics type, int threads, const std::string& path) {
  if (path == "cuda" || path == "cuda_fast")
    return make_cuda_backend(type, {.deterministic = path == "cuda"});
  return make_cpu_backend(type, threads, path);
}

}  // namespace dendrite::test
