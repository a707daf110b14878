#include "backend/backend_library.h"

#include <dlfcn.h>

#include "dendrite/build.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

template <class Function>
Function function_of(void* handle, const char* name, const std::string& library) {
  void* function = dlsym(handle, name);
  if (function == nullptr) {
    throw Error("backend_library " + library + ": it has no function " + name +
                "; expected libdendrite_cuda.so");
  }
  return reinterpret_cast<Function>(function);
}

}  // namespace

std::unique_ptr<Backend> open_cuda_backend(const std::string& library,
                                           const BackendRequest& request) {
  // Never closed: what it threw may be caught, and what it made may be freed, at any later time.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error("backend_library " + library + ": " + dlerror() +
                "; expected libdendrite_cuda.so and the libraries that it needs");
  }
  const std::string built =
      function_of<const char* (*)()>(handle, "dendrite_backend_build_id", library)();
  if (built != build_id()) {
    throw Error("backend_library " + library + ": it is of the build " + built + "; expected " +
                build_id() + ", that of the program that opens it");
  }
  const auto make =
      function_of<Backend* (*)(const BackendRequest&)>(handle, "dendrite_backend", library);
  return std::unique_ptr<Backend>(make(request));
}

}  // namespace dendrite
