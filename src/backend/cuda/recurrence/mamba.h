#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/recurrence/run_places.h"
#include "backend/mamba_sizes.h"

namespace dendrite::cuda {

/// What launches of mamba need. Sizes, layouts and the order of sums are those of Mamba and
/// Backend::mamba.
struct MambaArguments : RunPlaces {
  std::int32_t heads = 0, head_dim = 0, groups = 0, state_dim = 0;
  // Columns: of what comes out, of B and of C; of what is convolved; where journals have decays.
  std::int32_t columns = 0, group_columns = 0, channels = 0, decays_at = 0;
  const float* in = nullptr;
  std::int64_t in_stride = 0;
  const float* decay = nullptr;
  const float* dt_bias = nullptr;
  const float* skip = nullptr;
  const float* norm = nullptr;
  float norm_eps = 0;
  float least_dt = 0;
  float most_dt = 0;
  void* out = nullptr;
  std::int64_t out_ld = 0;
  bool out_bf16 = false;
  const float* convolved = nullptr;  // [rows, channels]
  float* values = nullptr;           // scratch [rows, columns]: what comes out of the state
};

/// Shared memory that a thread block takes.
std::int64_t mamba_shared_bytes(const MambaArguments& args);
/// Of the runs of one level: `values`.
void launch_mamba(const MambaArguments& args, std::int32_t level, cudaStream_t stream);
/// `out` of all rows of the plan, from `values`.
void launch_mamba_norm(const MambaArguments& args, std::int64_t rows, cudaStream_t stream);

}  // namespace dendrite::cuda
