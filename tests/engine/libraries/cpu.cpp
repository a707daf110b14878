#include "backend/backend.h"
#include "dendrite/error.h"

// A backend as a library (cmake/BackendLibrary.cmake) for machines without a GPU: the CPU's.

namespace dendrite {

std::unique_ptr<Backend> make_cuda_backend(Numerics type, const CudaOptions& options) {
  if (options.host_tables) throw Error("device cuda: no GPU found; this is a test");
  return make_cpu_backend(type, 1);
}

}  // namespace dendrite
