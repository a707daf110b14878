#include "backend/cuda/base/check.h"

#include "dendrite/error.h"

namespace dendrite::cuda {

void check(cudaError_t status, const std::string& op) {
  if (status == cudaSuccess) return;
  throw Error(op + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

void check(cublasStatus_t status, const std::string& op) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(op + ": " + cublasLtGetStatusString(status) + " (" + cublasLtGetStatusName(status) +
              ")");
}

void check_launch(const char* op, std::initializer_list<Extent> shape) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  std::string text = op;
  const char* before = " (";
  for (const Extent& extent : shape) {
    text += before + std::string(extent.name) + " " + std::to_string(extent.value);
    before = ", ";
  }
  check(status, text + ")");
}

}  // namespace dendrite::cuda
