// All kernels of one instruction path, over the vector type that its file has included before, and with
// what else it has: DENDRITE_DOT_BF16 (a dot instruction) or DENDRITE_TILES (the class Tiles). With
// DENDRITE_OTHER_FORMATS, a path of the same vectors, the other formats are that one's code.
// Included inside an unnamed namespace by the path's file. Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/formats.inl"
#include "backend/cpu/isa/matmul.inl"
#include "backend/cpu/isa/rows.inl"
#include "backend/cpu/isa/attention.inl"
#if defined(DENDRITE_TILES)
#include "backend/cpu/isa/matmul_tiles.inl"
#include "backend/cpu/isa/attention_tiles.inl"
#endif
// clang-format on

void matmul(const MatmulArgs& args, std::int64_t begin, std::int64_t end) {
#if defined(DENDRITE_OTHER_FORMATS)
  if (args.format != Format::kDotBF16) {
    return DENDRITE_OTHER_FORMATS().matmul(args, begin, end);
  }
#endif
  switch (args.format) {
#if defined(DENDRITE_OTHER_FORMATS)
    default:
      return;
#else
    case Format::kF32:
      return matmul_panels<F32Format>(args, begin, end);
    case Format::kF16:
      return matmul_panels<F16Format>(args, begin, end);
    case Format::kBF16:
      return matmul_panels<BF16Format>(args, begin, end);
#endif
    case Format::kDotBF16:
#if defined(DENDRITE_TILES)
      return multiply_by_tiles(args, begin, end);
#elif defined(DENDRITE_DOT_BF16)
      return matmul_panels<DotFormat>(args, begin, end);
#else
      return;  // the backend never asks a path without the instruction
#endif
  }
}

void attention(const AttentionTask& task) {
#if defined(DENDRITE_OTHER_FORMATS)
  if (task.format != Format::kDotBF16) return DENDRITE_OTHER_FORMATS().attention(task);
#endif
  switch (task.format) {
#if !defined(DENDRITE_OTHER_FORMATS)
    case Format::kF32:
      return attend<F32Format>(task);
    case Format::kBF16:
      return attend<BF16Format>(task);
#endif
    case Format::kDotBF16:
#if defined(DENDRITE_TILES)
      return attend_by_tiles(task);
#elif defined(DENDRITE_DOT_BF16)
      return attend<DotFormat>(task);
#else
      return;
#endif
    default:
      return;  // pages are never f16
  }
}

/// `gflops`: of one core, roughly; for the choice between one thread and several.
constexpr Kernels kernels_of_path(const char* name, double gflops) {
  return {
      .name = name,
#if defined(DENDRITE_TILES) || defined(DENDRITE_DOT_BF16)
      .dot_bf16 = true,
#endif
#if defined(DENDRITE_TILES)
      .tile_rows = kTileRows,
#endif
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
