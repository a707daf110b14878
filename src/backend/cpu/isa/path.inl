// All kernels of one instruction path, over the vector type that its file has included before.
// Included inside an unnamed namespace by the path's file. Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/formats.inl"
#include "backend/cpu/isa/matmul.inl"
#include "backend/cpu/isa/rows.inl"
#include "backend/cpu/isa/attention.inl"
// clang-format on

/// `gflops`: of one core, roughly; for the choice between one thread and several.
constexpr Kernels kernels_of_path(const char* name, bool dot_bf16, double gflops) {
  return {
      .name = name,
      .dot_bf16 = dot_bf16,
      .gflops = gflops,
      .pack_rows = pack_rows,
      .matmul = matmul,
      .rms_norm = rms_norm,
      .silu_mul = silu_mul,
      .rope_and_store = rope_and_store,
      .attention = attention,
      .fold = fold,
  };
}
