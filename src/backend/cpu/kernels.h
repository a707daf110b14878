#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/attention_plan.h"
#include "backend/cpu/panels.h"
#include "backend/delta_net_sizes.h"
#include "backend/mamba_sizes.h"
#include "backend/recurrence_plan.h"
#include "backend/rope.h"
#include "core/kv_format.h"

// The seam between the CPU backend (plain C++: checks, threads, memory) and its kernels, which are
// compiled once per instruction path from isa/*.inl. Everything here is plain data, so that no
// inline code is shared between files built with different instruction sets.
namespace dendrite::cpu {

/// Steps of one k chunk: 8 KB of weights, which stay in L1 while all row tiles visit them. Together
/// with the next chunk, which is being prefetched, and the activations of 16 rows that is 20 KB:
/// with 64 steps an L1 of 32 or 48 KB is full (AVX2, 16 rows: 79 % of the FMA peak, against 84 %).
inline constexpr std::int64_t kChunkSteps = 32;
/// Upper bound of activation rows that pass over a panel together: of vectors, and of tiles, which
/// multiply so fast that with fewer rows they wait for weights.
inline constexpr std::int64_t kMaxRowBlock = 96;
inline constexpr std::int64_t kMaxTiledRows = 512;
/// Steps (pairs of k) of a tile of bf16 weights, and the bytes of a panel that they are.
inline constexpr std::int64_t kTileSteps = 16;
inline constexpr std::int64_t kPanelTileBytes = kTileSteps * kPanel * 4;
/// Head dims are padded to a multiple of this in V pages and in attention states.
inline constexpr std::int64_t kHeadPad = 16;

/// Scales of vectors of E4M3, kLeastE4m3Scale and kMostE4m3Scale.
inline constexpr std::int64_t kLeastScale = 10;
inline constexpr std::int64_t kMostScale = 246;

/// How a product is formed. kDotBF16: pairs of bf16 by a dot instruction or by tiles, activations
/// rounded to bf16. kGroups: whole numbers, activations rounded to 8 bits for each 32 of a row
/// (isa/matmul_groups.inl). The others: stored values widened exactly to f32, then FMA with f32
/// activations.
enum class StepFormat : std::uint8_t { kF32, kF16, kBF16, kDotBF16, kGroups };

/// What a format's step is. A step is one k for f32 and f16, and one pair of k for bf16.
struct FormatInfo {
  std::int64_t values = 1;       // k values a step
  std::int64_t words = 1;        // 32-bit activation words a step
  std::int64_t panel_bytes = 0;  // weight bytes a step of one panel
};
constexpr FormatInfo info_of(StepFormat format) {
  switch (format) {
    case StepFormat::kF32:
      return {1, 1, kPanel * 4};
    case StepFormat::kF16:
      return {1, 1, kPanel * 2};
    case StepFormat::kBF16:
      return {2, 2, kPanel * 4};
    case StepFormat::kDotBF16:
      return {2, 1, kPanel * 4};
    case StepFormat::kGroups:
      break;  // it has no steps: GroupsInfo
  }
  return {};
}

/// Words of a row's activations in a chunk: [64] of four codes, scales [8], and of up to 16 groups
/// `lowest` times the sum of the codes, and the sum times the scale, negated.
inline constexpr std::int64_t kGroupedScales = 64;
inline constexpr std::int64_t kGroupedStarts = kGroupedScales + kChunkUnits;
inline constexpr std::int64_t kGroupedSums = kGroupedStarts + 2 * kChunkUnits;
inline constexpr std::int64_t kGroupedWords = kGroupedSums + 2 * kChunkUnits;
/// The same where tiles multiply: pairs of codes in bf16 [128], scales [8], and sums times scales,
/// negated, [8], those of 16 rows by one another (isa/matmul_groups_tiles.inl).
inline constexpr std::int64_t kTiledGroupedWords = kChunkUnits * (kUnit / 2 + 2);

/// The tiles that a path with matrix registers works on: rows and bytes of a row of each.
struct TileShapes {
  std::uint8_t rows[8];
  std::uint16_t row_bytes[8];
};

/// Activations of a row block: [chunks][packed rows][kChunkSteps * words] 32-bit words (kGroups:
/// kGroupedWords), zero-padded in k. Packed rows: the block's, up to a multiple of
/// Kernels::tile_rows where tiles multiply; what is in the rows past the block's own does not
/// matter.
struct PackRowsArgs {
  StepFormat format = StepFormat::kF32;
  const float* x = nullptr;  // [rows, cols]
  std::int64_t stride = 0;
  std::int64_t cols = 0;
  std::int64_t packed_rows = 0;     // of the whole block
  std::uint32_t* packed = nullptr;  // of the whole block
  Groups groups{};                  // kGroups: of the weight
  bool tiled = false;               // kGroups: laid out for tiles
};

/// out[row, panel columns] (+)= x * W^T + bias for one row block and a run of panels.
struct MatmulArgs {
  StepFormat format = StepFormat::kF32;
  const std::byte* weight = nullptr;      // packed, all panels
  std::int64_t rows_of_weight = 0;        // n, unpadded
  std::int64_t steps = 0;                 // per panel
  const std::uint32_t* packed = nullptr;  // activations of the block
  std::int64_t block_rows = 0;            // 1..kMaxRowBlock, or kMaxTiledRows
  std::int64_t packed_rows = 0;
  float* out = nullptr;  // first row of the block
  std::int64_t out_stride = 0;
  const float* bias = nullptr;  // or null
  bool add = false;
  Groups groups{};     // kGroups; `steps` are units then. Or bf16 of kE4M3, in CodesInfo's panels
  bool tiled = false;  // kGroups: by tiles
};

struct NormArgs {
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const float* weight = nullptr;
  std::int64_t dim = 0;
  float eps = 0;
};

/// Activation::Kind, for kernels.
enum class Gating : std::uint8_t { kSilu, kGelu, kClamped };
struct ActivateArgs {
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* gate_up = nullptr;
  std::int64_t gate_up_stride = 0;
  std::int64_t ffn = 0;
  Gating kind = Gating::kSilu;
  float limit = 0;
  float alpha = 1;
};

/// x = factor * x, then with a cap cap * tanh(x / cap).
struct ScaleArgs {
  float* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t cols = 0;
  float factor = 1;
  float cap = 0;
};

/// out += factor * x, or factor * rms_norm(x) where there is a weight.
struct AddNormedArgs {
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const float* weight = nullptr;
  std::int64_t cols = 0;
  float eps = 0;
  float factor = 1;
};

/// Rows of logits to scores [rows, cols], their softmax or sigmoids, and with `gate` the last
/// column to its sigmoid.
struct RouteArgs {
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* logits = nullptr;
  std::int64_t stride = 0;
  std::int64_t experts = 0;  // that have scores
  bool sigmoid = false;
  bool gate = false;  // a column more
};

/// out[rows[i]] += factors[i] * x[i]
struct AddRowsArgs {
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* rows = nullptr;
  const float* factors = nullptr;
  std::int64_t cols = 0;
};

struct GateArgs {
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const float* gate = nullptr;
  std::int64_t gate_stride = 0;
  std::int64_t cols = 0;
  std::int64_t of_gate = 1;  // columns
};

/// The private layout of KV pages; byte offsets.
///   K of a page and head  [head_dim / 2][page_tokens][2] bf16   or  [head_dim][page_tokens] f32
///   V of a page and head  [page_tokens / 2][padded][2]   bf16   or  [page_tokens][padded]   f32
/// so that a step of Q K^T (dims) and one of P V (tokens) look like a step of a weight panel.
/// FP8 is as bf16 with codes of a byte; behind V are the scales of vectors, [2][page_tokens], K's
/// first (quant/e4m3.h). Where values are keys there is no V, nor its scales.
struct KvLayout {
  KvFormat format = KvFormat::kBF16;
  std::int64_t head_dim = 0;
  std::int64_t padded_dim = 0;  // multiple of kHeadPad
  std::int64_t page_tokens = 0;
  int page_shift = 0;              // page_tokens = 1 << page_shift
  bool values_are_keys = false;    // KvShape
  std::int64_t word_bytes = 4;     // of a pair, or of a value of f32
  std::int64_t v_offset = 0;       // from K to V of one page, layer and head
  std::int64_t scales_offset = 0;  // from K to the scales, FP8 only
  std::int64_t head_stride = 0;
  std::int64_t layer_stride = 0;
  std::int64_t page_stride = 0;
};

struct RopeArgs : Rope {
  float* qkv = nullptr;
  std::int64_t stride = 0;
  const std::int64_t* slots = nullptr;             // a row; -1: none
  const std::int64_t* extra_rows_slots = nullptr;  // [extra_count][2]: row, slot
  std::int64_t extra_count = 0;
  std::byte* pages = nullptr;  // page 0 of the layer
  KvLayout layout{};
};

/// One record a (row, query head) of running softmax state: o [padded_dim], then m and l.
constexpr std::int64_t state_floats(std::int64_t padded_dim) {
  return padded_dim + kHeadPad;
}

/// Attention of one kv head, one super-block and a slice of rows.
struct AttentionTask {
  StepFormat format = StepFormat::kF32;  // kF32, kBF16 or kDotBF16
  KvLayout layout;
  const std::byte* pages = nullptr;  // page 0 of the layer and kv head
  const float* q = nullptr;          // row 0 of the plan, first query head of the kv head
  std::int64_t q_stride = 0;
  std::int64_t group = 1;  // query heads of a kv head
  float scale_log2e = 1;   // of what scores are, capped ones too
  float cap = 0;           // scores become cap * tanh(cap_factor * q . k) first; 0: they do not
  float cap_factor = 0;
  const AttentionItem* items = nullptr;
  std::int64_t item_count = 0;
  const std::int32_t* page_ids = nullptr;
  const std::int64_t* positions = nullptr;
  AttentionWindow window;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  float* states = nullptr;           // [(row_end - row_begin) * group] records, written
  std::uint32_t* scratch = nullptr;  // attention_scratch_words()
};

/// Words, for each of padded_dim, of the part of a task's scratch that holds K of a block of pages
/// narrower than a vector, or K and V of one that was widened from FP8.
inline constexpr std::int64_t kBlockWords = kBlockTokens + 8;
/// Likewise of the part behind it, V of a block whose values are its keys: of f32 at most.
constexpr std::int64_t value_words(const KvLayout& layout) {
  return layout.values_are_keys ? kBlockTokens : 0;
}

/// Words of scratch that a task of so many rows x group needs.
constexpr std::int64_t attention_scratch_words(std::int64_t micro_rows, const KvLayout& layout) {
  const std::int64_t query_words = (layout.padded_dim + 63) / 64 * 64;
  return (micro_rows + 15) * query_words +
         (kBlockWords + value_words(layout) + kBlockTokens / 2 + 16) * layout.padded_dim +
         40 * kBlockTokens;
}

/// Folds the partial states of super-blocks left to right and writes out = o / l.
struct FoldArgs {
  const float* states = nullptr;  // of the first super-block
  std::int64_t super_stride = 0;  // floats from one super-block's states to the next one's
  std::int64_t super_blocks = 0;
  std::int64_t group = 1;
  std::int64_t head_dim = 0;
  std::int64_t padded_dim = 0;
  float scale_log2e = 1;
  const float* sinks = nullptr;  // of the kv head's query heads: AttentionArgs::sinks
  float* out = nullptr;          // row of the first state, first query head of the kv head
  std::int64_t out_stride = 0;
};

/// What all recurrent layers are given: layouts as RecurrencePlan has them.
struct RecurrenceTask {
  const float* in = nullptr;
  std::int64_t in_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  float* anchors = nullptr;  // slot 0 of the layer
  std::int64_t anchor_stride = 0;
  float* journals = nullptr;
  std::int64_t journal_stride = 0;
  const RecurrencePlan::Run* runs = nullptr;
  std::int64_t run_count = 0;
  const std::int32_t* row_journals = nullptr;
  const std::int32_t* known = nullptr;
  const std::int32_t* new_anchors = nullptr;
  const float* zeros = nullptr;  // as many as are convolved of a row
};

/// Gated delta networks of one layer: layouts as DeltaNet and RecurrencePlan have them.
struct DeltaNetTask : RecurrenceTask, DeltaNetSizes {
  const float* conv = nullptr;
  const float* decay = nullptr;
  const float* dt_bias = nullptr;
  const float* norm = nullptr;
  float norm_eps = 0;
};

/// Vectors of keys and values are padded to a multiple of this in scratch.
inline constexpr std::int64_t kDeltaPad = 16;
constexpr std::int64_t delta_padded(std::int64_t dim) {
  return (dim + kDeltaPad - 1) / kDeltaPad * kDeltaPad;
}
/// Floats of scratch that a call of Kernels::delta_net needs; no two threads may share it.
constexpr std::int64_t delta_net_scratch_floats(const DeltaNetTask& task) {
  const std::int64_t keys = delta_padded(task.key_dim);
  const std::int64_t values = delta_padded(task.value_dim);
  const std::int64_t heads = task.value_heads / task.key_heads;
  return task.taps * (2 * keys + heads * values) + heads * task.key_dim * values +
         kChunkTokens * (3 * keys + 4 * values + 2 * kChunkTokens + 8) + 2 * values +
         (task.by_channel ? (3 * kChunkTokens + 2) * keys : 0);
}

/// Short convolutions of one layer: layouts as ShortConv and RecurrencePlan have them.
struct ShortConvTask : RecurrenceTask {
  std::int64_t channels = 0;
  std::int64_t taps = 0;
  const float* conv = nullptr;
  const float* bias = nullptr;
  /// False: what comes in is what is convolved, and silu of the sum is what goes out. What goes out
  /// of channels [kept_begin, kept_end) goes to journals, too: `kept`, of slot 0.
  bool gated = true;
  float* kept = nullptr;
  std::int64_t kept_begin = 0;
  std::int64_t kept_end = 0;
};
/// Floats of scratch that a call of Kernels::short_conv for so many channels needs; no two threads
/// may share it.
constexpr std::int64_t short_conv_scratch_floats(std::int64_t taps, std::int64_t channels) {
  return 2 * taps * (channels + kHeadPad);
}

/// Mamba-2 of one layer behind its convolution: layouts as Mamba and RecurrencePlan have them.
struct MambaTask : RecurrenceTask {
  MambaSizes sizes{};
  const float* convolved = nullptr;  // [rows, channels()]: x, B, C
  const float* decay = nullptr;
  const float* dt_bias = nullptr;
  const float* skip = nullptr;
  const float* norm = nullptr;
  float norm_eps = 0;
  float least_dt = 0;
  float most_dt = 0;
};
/// Floats of scratch that a call of Kernels::mamba or mamba_norm needs; no two threads may share
/// it.
inline std::int64_t mamba_scratch_floats(const MambaSizes& sizes) {
  const std::int64_t states = delta_padded(sizes.state_dim);
  const std::int64_t values = delta_padded(sizes.head_dim);
  const std::int64_t of_heads =
      sizes.state_dim * values + kChunkTokens * (3 * states + 2 * values + 5) + values;
  const std::int64_t of_norm = delta_padded(sizes.out_columns() / sizes.groups);
  return of_heads > of_norm ? of_heads : of_norm;
}

/// One instruction path.
struct Kernels {
  const char* name = "";
  bool dot_bf16 = false;       // takes kDotBF16
  std::int64_t tile_rows = 1;  // rows that it multiplies together for kDotBF16
  double gflops = 1;           // rough peak of one core, for the choice of threading only
  /// Rows [begin, end) of the block.
  void (*pack_rows)(const PackRowsArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  /// Panels [begin, end).
  void (*matmul)(const MatmulArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*rms_norm)(const NormArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*activate)(const ActivateArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*scale)(const ScaleArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*squared_relu)(const ScaleArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*add_normed)(const AddNormedArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*gate)(const GateArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*route)(const RouteArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*add_rows)(const AddRowsArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*rope_and_store)(const RopeArgs&, std::int64_t begin, std::int64_t end) = nullptr;
  void (*attention)(const AttentionTask&) = nullptr;
  /// Rows [0, rows) from FoldArgs::states and ::out on.
  void (*fold)(const FoldArgs&, std::int64_t rows) = nullptr;
  /// Key heads [begin, end), and the value heads that go by them.
  void (*delta_net)(const DeltaNetTask&, float* scratch, std::int64_t begin,
                    std::int64_t end) = nullptr;
  /// Channels [begin, end).
  void (*short_conv)(const ShortConvTask&, float* scratch, std::int64_t begin,
                     std::int64_t end) = nullptr;
  /// Heads [begin, end): what comes out of their states, with what skips them.
  void (*mamba)(const MambaTask&, float* scratch, std::int64_t begin, std::int64_t end) = nullptr;
  /// Rows [begin, end) of that, gated and normed.
  void (*mamba_norm)(const MambaTask&, float* scratch, std::int64_t begin,
                     std::int64_t end) = nullptr;
};

const Kernels& portable_kernels();
/// amx_bf16's bits by plain C++.
const Kernels& amx_bf16_model_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
const Kernels& amx_bf16_kernels();
#endif
#if defined(__aarch64__)
const Kernels& neon_kernels();
#endif

}  // namespace dendrite::cpu
