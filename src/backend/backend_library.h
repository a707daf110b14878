#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

// A backend that comes as a library of its own (libdendrite_cuda.so), so that one build for CPUs
// serves machines with and without a GPU. The library exports two functions (library_entry.cpp):
//
//   extern "C" const char* dendrite_backend_build_id();               // its build_id()
//   extern "C" Backend* dendrite_backend(const BackendRequest&);      // the caller's; throws Error
//
// Objects and exceptions cross as C++, which holds where both were built from the same sources by
// the same compiler over one libstdc++: the first function, which needs none of that, is asked
// before the second is called.
namespace dendrite {

struct BackendRequest {
  Numerics numerics = Numerics::kBF16;
  CudaOptions options{};
};

/// The CUDA backend of the library in this file. It stays open as long as the process runs. Throws
/// Error naming the file when it cannot be opened (also for a library that it needs), is none of
/// Dendrite's, or is of another build; and as make_cuda_backend does.
std::unique_ptr<Backend> open_cuda_backend(const std::string& library,
                                           const BackendRequest& request);

}  // namespace dendrite
