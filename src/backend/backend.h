#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/attention_plan.h"
#include "backend/rope.h"
#include "core/dtype.h"

namespace dendrite {

/// How a model computes. kF32: every product in f32, K and V stored in f32. kBF16: products of
/// bf16 values summed in f32 where the device has such an instruction (else f32 activations, which
/// is more exact); K and V stored in bf16; the residual stream, norms, RoPE and softmax in f32.
/// kF16: weights stored in f16, everything else as in kF32.
enum class ComputeType : std::uint8_t { kF32, kBF16, kF16 };

constexpr const char* name_of(ComputeType type) {
  switch (type) {
    case ComputeType::kF32:
      return "f32";
    case ComputeType::kBF16:
      return "bf16";
    case ComputeType::kF16:
      return "f16";
  }
  return "?";
}

/// Device memory of f32 values, row-major [rows, cols] with `stride` values from row to row.
/// Only a backend may dereference `data`.
struct Tensor {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  /// Columns [begin, begin + count) of every row.
  Tensor columns(std::int64_t begin, std::int64_t count) const {
    return {data + begin, rows, count, stride};
  }
  /// The first `count` rows.
  Tensor first_rows(std::int64_t count) const { return {data, count, cols, stride}; }
};

/// Device memory, freed with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual float* data() = 0;
  virtual std::int64_t count() const = 0;  // f32 values
};

/// A host view of one stored matrix [rows, cols], row-major, dense; `data` may be unaligned.
/// `name` and `file` are for error messages only.
struct HostMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::string name;
  std::string file;
};

/// A weight matrix [rows, cols] in a layout private to its backend: y = x * W^T.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t cols() const = 0;
  virtual DType dtype() const = 0;              // as stored on the device
  virtual std::int64_t size_bytes() const = 0;  // read once per matmul
};

/// Steps (a pass and its draws) as the device's own clock saw them.
struct DeviceTime {
  std::int64_t steps = 0;
  double busy_ms = 0;  // from a step's first kernel to its last, waits between kernels included
  double idle_ms = 0;  // from there to the next step's first kernel
};

class LogitsSampler;

struct KvShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t pages = 0;
  std::int64_t page_tokens = 16;  // 8, 16 or 32
  DType dtype = DType::kBF16;     // kF32 or kBF16
  bool guarded = false;           // debug mode: unused bytes around each page, KvStore::page_memory

  /// Bytes of K and V of one token over all layers, unpadded.
  std::int64_t token_bytes() const { return layers * 2 * kv_heads * head_dim * size_of(dtype); }
  std::int64_t page_bytes() const { return token_bytes() * page_tokens; }
};

/// The pages' bytes: one allocation, private layout, made by Backend::make_kv_store. A page id
/// means the same slots in every layer. K is stored after RoPE. Memory is touched on first use.
class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual const KvShape& shape() const = 0;

  /// Copies the first `tokens` slots of page `from` to page `to` in all layers; nothing else of
  /// `to` is meaningful afterwards. Requires 0 < tokens <= page_tokens, from != to.
  virtual void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) = 0;

  /// K and V of slots [0, tokens) of one page and layer, widened to f32, in canonical order:
  ///   k, v  [tokens, kv_heads, head_dim]
  virtual void read(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<float> k,
                    std::span<float> v) const = 0;
  /// The inverse of read() for values that came from it; exact. For tests.
  virtual void write(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                     std::span<const float> k, std::span<const float> v) = 0;

  /// The stored bits of slots [0, tokens) of a page in the layout of snapshots, which is the same
  /// on every device; zeros in the other slots.
  ///   out  shape().page_bytes() bytes: [layers][kv_heads][K, V][page_tokens][head_dim] of dtype
  /// Several threads may call it at once. Requires 0 <= tokens <= page_tokens.
  virtual void export_page(std::int32_t page, std::int32_t tokens,
                           std::span<std::byte> out) const = 0;
  /// The inverse: fills all slots. Several threads may call it at once for different pages.
  virtual void import_page(std::int32_t page, std::span<const std::byte> in) = 0;

  /// A page's bytes over all layers and, in a guarded store, bytes that no operation touches: 64
  /// before it, 64 and a guard region behind it. For debug mode and its tests. Whole numbers of 64
  /// bytes; all empty where the memory is not the host's.
  struct PageMemory {
    std::span<std::byte> before;
    std::span<std::byte> page;
    std::span<std::byte> after;
  };
  virtual PageMemory page_memory(std::int32_t page) = 0;
};

/// One more place where a row's K and V go: the copy of a page that a child made before its
/// parent's last tokens were computed.
struct ExtraStore {
  std::int32_t row = 0;
  std::int64_t slot = 0;  // page * page_tokens + offset
};

/// Arguments of Backend::rope_and_store. `tokens` = rows of qkv.
struct RopeStore : Rope {
  Tensor qkv;  // [tokens, (heads + 2 * kv_heads) * head_dim]; the q part is rewritten
  /// [tokens]: page * page_tokens + offset; -1: K and V are not stored.
  std::span<const std::int64_t> slots;
  std::span<const ExtraStore> extra_stores;
  KvStore* kv = nullptr;
  std::int64_t layer = 0;
};

/// Arguments of Backend::attention.
struct AttentionArgs {
  Tensor out;  // [tokens, heads * head_dim], overwritten
  Tensor q;    // [tokens, heads * head_dim], after RoPE
  std::int64_t heads = 0;
  float scale = 1.0f;  // multiplies q . k
  const KvStore* kv = nullptr;
  std::int64_t layer = 0;
  const AttentionPlan* plan = nullptr;  // rows of q beyond the plan's are padding
};

/// Arguments of Backend::attention_block. Tensors marked scratch hold nothing defined afterwards.
struct AttentionBlock {
  Tensor hidden;                // [tokens, dim], added to
  const float* norm = nullptr;  // device [dim]
  float norm_eps = 0;
  const Weight* qkv = nullptr;      // [(heads + 2 * kv_heads) * head_dim, dim]
  const float* qkv_bias = nullptr;  // device or null
  RopeStore rope;                   // rope.qkv: scratch
  AttentionArgs attention;          // attention.out: scratch; attention.q: columns of rope.qkv
  const Weight* out = nullptr;      // [dim, heads * head_dim]
  const float* out_bias = nullptr;  // device or null
  Tensor normed;                    // scratch [tokens, dim]
};

/// Arguments of Backend::mlp_block.
struct MlpBlock {
  Tensor hidden;                // [tokens, dim], added to
  const float* norm = nullptr;  // device [dim]
  float norm_eps = 0;
  const Weight* gate_up = nullptr;      // [2 * ffn_dim, dim]
  const float* gate_up_bias = nullptr;  // device or null
  const Weight* down = nullptr;         // [dim, ffn_dim]
  const float* down_bias = nullptr;     // device or null
  Tensor normed;                        // scratch [tokens, dim]
  Tensor gate_up_out;                   // scratch [tokens, 2 * ffn_dim]
  Tensor act;                           // scratch [tokens, ffn_dim]
};

/// Arguments of Backend::norm_matmul.
struct NormMatmul {
  Tensor out;                          // [rows.size(), rows of weight], overwritten
  Tensor x;                            // [any, dim]
  std::span<const std::int32_t> rows;  // of x
  const float* norm = nullptr;         // device [dim]
  float norm_eps = 0;
  const Weight* weight = nullptr;  // [out.cols, dim]
  Tensor gathered;                 // scratch [rows.size(), dim]
};

/// What differs between the passes of a model: host arrays.
struct PassInputs {
  std::uint64_t model = 0;  // the same number: the same ops on the same tensors and pages
  KvStore* kv = nullptr;
  std::int64_t heads = 0;                // query heads
  std::span<const std::int32_t> tokens;  // [rows], ids or token_of_draw()
  /// [rows]. A row's slot, and its extra ones, are places of its position.
  std::span<const std::int64_t> slots;
  std::span<const ExtraStore> extra_stores;  // any number
  std::span<const std::int32_t> logit_rows;  // [logit rows]
  std::span<const AttentionPlan> plans;      // of the rows that are no padding
  std::span<const float> cos_sin;            // copied to `cos_sin_device` before the ops run
  float* cos_sin_device = nullptr;
  std::int64_t max_rows = 0;  // that the ops' tensors have room for
  std::int64_t max_logit_rows = 0;

  /// Stands for the token of draws[i] of the last LogitsSampler::begin_draw, which the host has not
  /// read yet. Requires i < LogitsSampler::kept_draws().
  static constexpr std::int32_t token_of_draw(std::int32_t i) { return -1 - i; }
};

struct DeviceInfo {
  std::string kind;  // "cpu"
  std::string name;  // "Intel(R) Xeon(R) ..."
  std::string
      kernels;  // instruction path in use: "avx512_bf16", "avx512", "avx2", "neon", "portable"
  int threads = 0;
  std::int64_t memory_bytes = 0;
  /// What results' bits depend on besides the model: device kind, instruction path, compute type.
  std::string numerics_key;
};

/// The math, once per device. Calls are enqueued in order; host memory written by a call (download)
/// is valid on return. Every row of every op is computed by an order of operations that depends on
/// that row's own inputs and on absolute positions alone: never on how many rows share the call, on
/// threads or on chunking. This is what makes fork == replay hold bit for bit. (The CUDA backend
/// gives this up for products when it is made so.)
///
/// Tolerances are against a double-precision reference on the same stored inputs, as
/// |out - ref| / rms(ref): 1e-5 where products are f32; where they are bf16, 1e-2 for matmul
/// (activations rounded to bf16) and, over each row's own rms, 3e-2 for attention (queries and
/// probabilities rounded to bf16).
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual ComputeType compute_type() const = 0;

  /// GB/s that the device reads its own memory with, measured now (some milliseconds); 0 where the
  /// memory is the host's, which the caller can measure itself.
  virtual double read_gb_per_s() { return 0; }

  /// Starts to time steps, or starts afresh; a CPU does not.
  virtual void start_timing() {}
  virtual DeviceTime timing() const { return {}; }

  /// Draws from logits on the device; null where the host samples (a CPU).
  virtual LogitsSampler* sampler() { return nullptr; }

  // --- memory
  virtual std::unique_ptr<Buffer> make_buffer(std::int64_t count) = 0;  // zeroed
  virtual void upload(float* device, std::span<const float> host) = 0;
  virtual void download(std::span<float> host, const float* device) = 0;
  virtual std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) = 0;

  /// Packs matrices of equal cols, stacked along rows, into one weight. Throws Error naming the
  /// tensor and its file when a value is NaN or infinite (also after conversion to the device
  /// type).
  virtual std::unique_ptr<Weight> pack(std::span<const HostMatrix> parts) = 0;
  /// Random weights N(0, 1/cols), made in place from `seed`, for speed tests only.
  virtual std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType dtype,
                                                std::uint64_t seed) = 0;

  /// Runs `ops`, the ops of one pass over a model. While it runs, host arrays that ops are given
  /// (those of `inputs`) do not change, so a device may carry each of them over once. A device may
  /// hand `ops` padded inputs: more rows than there are (token 0, no slot, in no attention item)
  /// and more logit rows, whose results mean nothing. And it may record what `ops` enqueues, and
  /// replay that for later inputs of the same sizes instead of calling `ops`.
  using PassOps = std::function<void(const PassInputs&)>;
  virtual void run_pass(const PassInputs& inputs, const PassOps& ops);

  // --- ops; shapes are checked, a mismatch throws Error naming the op
  /// out[t] = row tokens[t] of weight [vocab, dim], widened to f32. Exact.
  virtual void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) = 0;

  /// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight.  out, x [tokens, dim]; weight device [dim]
  /// f32; out may be x. Source: Zhang & Sennrich 2019, arXiv:1910.07467.
  virtual void rms_norm(Tensor out, Tensor x, const float* weight, float eps) = 0;

  enum class Store : std::uint8_t { kOverwrite, kAdd };
  /// out (=, or += for the residual) x * W^T + bias.  out [tokens, rows of W]; x [tokens, cols of
  /// W]; bias device [rows of W] or null. Sums run over k in ascending order, one accumulator an
  /// output.
  virtual void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias,
                      Store store) = 0;

  /// q and k: optional per-head RMSNorm, then RoPE (half-split: dims i and i + rotary_dim/2); k and
  /// v go to the slots of `kv`. Source: Su et al. 2021, arXiv:2104.09864.
  virtual void rope_and_store(const RopeStore& args) = 0;

  /// Attention of rows over a tree of pages, see AttentionPlan.
  virtual void attention(const AttentionArgs& args) = 0;

  /// out[t, i] = silu(gate_up[t, i]) * gate_up[t, ffn + i].  gate_up [tokens, 2 * ffn]; out
  /// [tokens, ffn]
  virtual void silu_mul(Tensor out, Tensor gate_up) = 0;

  /// out[i] = x[rows[i]].  out [rows.size(), dim]
  virtual void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) = 0;

  // --- parts of a decoder layer. What is here composes the ops above; a device may do the same in
  // fewer steps, within the tolerances of the ops.
  /// hidden += W_out * attention(rope(W_qkv * rms_norm(hidden))), with biases and per-head norms;
  /// K and V are stored.
  virtual void attention_block(const AttentionBlock& block);
  /// hidden += W_down * silu_mul(W_gate_up * rms_norm(hidden)), with biases.
  virtual void mlp_block(const MlpBlock& block);
  /// out[i] = W * rms_norm(x[rows[i]])
  virtual void norm_matmul(const NormMatmul& args);
};

/// The CPU backend. threads 0: one a core. `kernels` empty: the best path this machine has; else
/// the path by name ("portable", "avx2", "avx512", "avx512_bf16", "neon"; for tests and benches),
/// an Error if the machine lacks it.
std::unique_ptr<Backend> make_cpu_backend(ComputeType type, int threads,
                                          const std::string& kernels = {});

struct CudaOptions {
  /// false: in bf16, how a product is summed may depend on the number of rows, which is faster for
  /// few.
  bool deterministic = true;
  /// Kernels read small arrays (tokens, page tables, plans) in page-locked host memory, where the
  /// host wrote them, instead of copies on the device. The results are the same. Unset: where the
  /// GPU's memory is the host's.
  std::optional<bool> host_tables{};
};
/// The CUDA backend, on the first device. Throws Error when this build or machine has none.
std::unique_ptr<Backend> make_cuda_backend(ComputeType type, const CudaOptions& options = {});

/// Names of the paths this machine can run, best first; "portable" is always last.
std::vector<std::string> cpu_kernel_paths();

}  // namespace dendrite
