#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/recurrence/piece_order.h"
#include "backend/cuda/recurrence/run_places.h"

namespace dendrite::cuda {

/// A pass's PieceOrder, on the device.
struct OrderedPieces {
  const PieceRun* runs = nullptr;
  std::int32_t alone = 0;
  const std::int32_t* known = nullptr;
  const RunPiece* pieces = nullptr;
  std::int32_t count = 0;  // 0: not by pieces
  const RowFamily* families = nullptr;
  std::int32_t family_count = 0;
  const FamilyRow* family_rows = nullptr;
  /// Scratch of delta_net_piece_bytes() each: of pieces, then of families' rows, sixteen each.
  std::byte* records = nullptr;
};

/// What a launch of delta_net needs. Sizes, layouts and the order of sums are those of DeltaNet and
/// Backend::delta_net.
struct DeltaNetArguments : RunPlaces {
  std::int32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 0;
  bool by_channel = false;
  /// Of a journal's decays; and of what goes in, where each begins.
  std::int32_t decay_columns = 0, writes_at = 0, decays_at = 0, gates_at = 0;
  const float* in = nullptr;
  std::int64_t in_stride = 0;
  const float* conv = nullptr;
  const float* decay = nullptr;
  const float* dt_bias = nullptr;
  const float* norm = nullptr;
  float norm_eps = 0;
  void* out = nullptr;
  std::int64_t out_ld = 0;
  bool out_bf16 = false;
  float* values = nullptr;  // scratch [rows, value_heads * value_dim]: what comes out of the state
  bool one_row = false;     // no run has more
  OrderedPieces cut;
};

/// Shared memory that a thread block takes.
std::int64_t delta_net_shared_bytes(const DeltaNetArguments& args);
/// Of the runs of one level: `values`. By a kernel for runs of one row where that fits: of heads of
/// 128 key dims and some value dims, which decay as a whole.
void launch_delta_net(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream);
void launch_delta_net_row(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream);
bool fits_delta_net_row(const DeltaNetArguments& args);
/// The same of a level of the PieceOrder: what of pieces needs no state, then the states along runs
/// and those of families.
void launch_delta_net_pieces(const DeltaNetArguments& args, std::int32_t level,
                             cudaStream_t stream);
void launch_delta_net_scan(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream);
void launch_delta_net_families(const DeltaNetArguments& args, std::int32_t level,
                               cudaStream_t stream);
bool fits_delta_net_pieces(const DeltaNetArguments& args);
std::int64_t delta_net_piece_bytes(const DeltaNetArguments& args);
std::int64_t delta_net_scan_shared_bytes(const DeltaNetArguments& args);
/// Of any such heads.
std::int64_t delta_net_family_shared_bytes();

/// `out` of all rows of the plan, from `values`.
void launch_delta_net_norm(const DeltaNetArguments& args, std::int64_t rows, cudaStream_t stream);

/// out = x * sigmoid(gate), a gate for each `of_gate` columns, rounded to bf16 or not; from cols to
/// ld zeros in bf16.
struct GateArguments {
  void* out = nullptr;
  std::int64_t out_ld = 0;
  bool out_bf16 = false;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const float* gate = nullptr;
  std::int64_t gate_stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t of_gate = 1;
};
void launch_gate(const GateArguments& args, cudaStream_t stream);

/// x = max(x, 0)^2
void launch_squared_relu(float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                         cudaStream_t stream);

}  // namespace dendrite::cuda
