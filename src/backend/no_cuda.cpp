#include "backend/backend.h"
#include "dendrite/error.h"

// Takes the place of the CUDA backend in builds without it.

namespace dendrite {

std::unique_ptr<Backend> make_cuda_backend(Numerics, const CudaOptions&) {
  throw Error(
      "device cuda: this build has no CUDA backend; expected device cpu, or the "
      "backend_library of a build that has one");
}

}  // namespace dendrite
