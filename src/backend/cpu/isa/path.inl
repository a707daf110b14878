// All kernels of one instruction path, over the vector type that its file has included before, and with
// what else it has: DENDRITE_DOT_BF16 (a dot instruction) or DENDRITE_TILES (the class Tiles). With
// DENDRITE_OTHER_FORMATS, a path of the same vectors, the other formats and recurrent layers are that one's code; with
// DENDRITE_OTHER_GROUPS grouped weights are.
// Included inside an unnamed namespace by the path's file. Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/formats.inl"
#include "backend/cpu/isa/code_panels.inl"
#include "backend/cpu/isa/matmul.inl"
#include "backend/cpu/isa/groups.inl"
#if !defined(DENDRITE_OTHER_GROUPS)
#include "backend/cpu/isa/matmul_groups.inl"
#endif
#include "backend/cpu/isa/e4m3.inl"
#include "backend/cpu/isa/rows.inl"
#include "backend/cpu/isa/activations.inl"
#include "backend/cpu/isa/turned_keys.inl"
#include "backend/cpu/isa/attention_block.inl"
#include "backend/cpu/isa/attention.inl"
#if !defined(DENDRITE_OTHER_FORMATS)
#include "backend/cpu/isa/weighted_sums.inl"
#include "backend/cpu/isa/decays.inl"
#include "backend/cpu/isa/delta_net.inl"
#include "backend/cpu/isa/short_conv.inl"
#include "backend/cpu/isa/mamba.inl"
#endif
#if defined(DENDRITE_TILES)
#include "backend/cpu/isa/matmul_tiles.inl"
#include "backend/cpu/isa/matmul_groups_tiles.inl"
#include "backend/cpu/isa/attention_tiles.inl"
#endif
// clang-format on

template <class... F>
void matmul_of(FormatList<F...>, const MatmulArgs& args, std::int64_t begin, std::int64_t end) {
  (void)((args.format == F::kFormat && (matmul_panels<F>(args, begin, end), true)) || ...);
}

void matmul(const MatmulArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.format == StepFormat::kDotBF16) {
#if defined(DENDRITE_TILES)
    multiply_by_tiles(args, begin, end);
#elif defined(DENDRITE_DOT_BF16)
    matmul_panels<DotFormat>(args, begin, end);
#endif
    return;  // the backend asks no path for it that lacks it
  }
  if (args.format == StepFormat::kGroups) {
#if defined(DENDRITE_TILES)
    if (args.tiled) return multiply_groups_by_tiles(args, begin, end);
#endif
#if defined(DENDRITE_OTHER_GROUPS)
    return DENDRITE_OTHER_GROUPS().matmul(args, begin, end);
#else
    return multiply_groups(args, begin, end);
#endif
  }
#if defined(DENDRITE_OTHER_FORMATS)
  DENDRITE_OTHER_FORMATS().matmul(args, begin, end);
#else
  matmul_of(CommonFormats{}, args, begin, end);
#endif
}

void pack_activations(const PackRowsArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.format != StepFormat::kGroups) return pack_rows(args, begin, end);
#if defined(DENDRITE_TILES)
  if (args.tiled) return pack_tiled_rows(args, begin, end);
#endif
#if defined(DENDRITE_OTHER_GROUPS)
  DENDRITE_OTHER_GROUPS().pack_rows(args, begin, end);
#else
  pack_grouped_rows(args, begin, end);
#endif
}

/// Pages are never f16, and those of FP8 are multiplied as bf16.
void attention(const AttentionTask& task) {
  if (task.format == StepFormat::kDotBF16) {
#if defined(DENDRITE_TILES)
    attend_by_tiles(task);
#elif defined(DENDRITE_DOT_BF16)
    attend<DotFormat>(task);
#endif
    return;
  }
#if defined(DENDRITE_OTHER_FORMATS)
  DENDRITE_OTHER_FORMATS().attention(task);
#else
  if (task.format == StepFormat::kF32) return attend<F32Format>(task);
  if (task.format == StepFormat::kBF16) attend<BF16Format>(task);
#endif
}

void delta_net(const DeltaNetTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
#if defined(DENDRITE_OTHER_FORMATS)
  DENDRITE_OTHER_FORMATS().delta_net(task, scratch, begin, end);
#else
  delta_net_heads(task, scratch, begin, end);
#endif
}

void short_conv(const ShortConvTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
#if defined(DENDRITE_OTHER_FORMATS)
  DENDRITE_OTHER_FORMATS().short_conv(task, scratch, begin, end);
#else
  short_conv_channels(task, scratch, begin, end);
#endif
}

void mamba(const MambaTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
#if defined(DENDRITE_OTHER_FORMATS)
  DENDRITE_OTHER_FORMATS().mamba(task, scratch, begin, end);
#else
  mamba_heads(task, scratch, begin, end);
#endif
}

void mamba_norm(const MambaTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
#if defined(DENDRITE_OTHER_FORMATS)
  DENDRITE_OTHER_FORMATS().mamba_norm(task, scratch, begin, end);
#else
  mamba_norm_rows(task, scratch, begin, end);
#endif
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
      .pack_rows = pack_activations,
      .matmul = matmul,
      .rms_norm = rms_norm,
      .activate = activate,
      .scale = scale,
      .squared_relu = squared_relu,
      .add_normed = add_normed,
      .gate = gate,
      .route = route,
      .add_rows = add_rows,
      .rope_and_store = rope_and_store,
      .attention = attention,
      .fold = fold,
      .delta_net = delta_net,
      .short_conv = short_conv,
      .mamba = mamba,
      .mamba_norm = mamba_norm,
  };
}
