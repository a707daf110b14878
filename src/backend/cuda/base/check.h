#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace dendrite::cuda {

/// Throws Error "op: what the driver says (name)" unless `status` is success.
void check(cudaError_t status, const std::string& op);
void check(cublasStatus_t status, const std::string& op);

/// A size, for a message.
struct Extent {
  const char* name;
  std::int64_t value;
};
/// After the launches of an op: throws Error "op (rows 8, cols 64): what the driver says (name)" if
/// one of them was refused, or if an earlier kernel is known to have failed.
void check_launch(const char* op, std::initializer_list<Extent> shape);

}  // namespace dendrite::cuda
