#include "backend/backend_library.h"
#include "dendrite/build.h"

// What libdendrite_cuda.so exports; everything else in it is hidden.

extern "C" __attribute__((visibility("default"))) const char* dendrite_backend_build_id() {
  static const std::string id = dendrite::build_id();
  return id.c_str();
}

extern "C" __attribute__((visibility("default"))) dendrite::Backend* dendrite_backend(
    const dendrite::BackendRequest& request) {
  return dendrite::make_cuda_backend(request.numerics, request.options).release();
}
