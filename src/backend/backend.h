#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device_info.h"
#include "backend/host_memory.h"
#include "backend/kv_move.h"
#include "backend/kv_store.h"
#include "backend/numerics.h"
#include "backend/ops.h"
#include "backend/pass.h"
#include "backend/split.h"
#include "backend/tensor.h"
#include "backend/weight.h"
#include "quant/format.h"

namespace dendrite {

class LogitsSampler;

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
  virtual Numerics numerics() const = 0;
  /// Devices that compute together what they are given, each with its share.
  virtual int ranks() const { return 1; }

  /// GB/s that the device reads its own memory with, measured now (some milliseconds); 0 where the
  /// memory is the host's, which the caller can measure itself.
  virtual double read_gb_per_s() { return 0; }

  /// Starts to time steps, or starts afresh; a CPU does not.
  virtual void start_timing() {}
  virtual DeviceTime timing() const { return {}; }

  /// Draws from logits on the device; null where the host samples (a CPU).
  virtual LogitsSampler* sampler() { return nullptr; }

  // --- memory; what the device lacks is an Error (throw_out_of_memory)
  virtual DeviceMemory memory() const = 0;
  /// Whether a KvStore takes its memory when it is made, not when its pages are first used.
  virtual bool takes_pages_at_once() const { return false; }
  /// An upper estimate of what passes will allocate.
  virtual std::int64_t pass_bytes(const PassSizes&) const { return 0; }
  virtual std::unique_ptr<Buffer> make_buffer(std::int64_t count) = 0;  // zeroed
  virtual void upload(float* device, std::span<const float> host) = 0;
  /// Of something that goes with the outputs of a weight, to a buffer of the size of all of it:
  /// each device has its share of the values, from the buffer's beginning on.
  virtual void upload_split(float* device, std::span<const float> host, const Split&) {
    upload(device, host);
  }
  virtual void download(std::span<float> host, const float* device) = 0;
  virtual std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) = 0;
  virtual std::unique_ptr<StateStore> make_state_store(const StateShape& shape) = 0;

  /// Packs matrices of equal cols, stacked along rows, into one weight. They may differ in format.
  /// Throws Error naming the tensor and its file when a value is NaN or infinite (also once it is
  /// rounded to what the device keeps).
  virtual std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) = 0;
  /// The same of what the devices of a group share.
  virtual std::unique_ptr<Weight> pack_split(std::span<const StoredMatrix> parts, const Split&) {
    return pack(parts);
  }
  /// Whether products with such a matrix round what they multiply it with to less than the numbers
  /// of plain weights have: StoredMatrix::as_plain forbids it.
  virtual bool rounds_inputs(const StoredMatrix&) const { return false; }
  /// Random weights N(0, 1/cols) of these numbers, made in place from `seed`, for speed tests only.
  virtual std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType number,
                                                std::uint64_t seed) = 0;
  virtual std::unique_ptr<Weight> random_split(std::int64_t rows, std::int64_t cols, DType number,
                                               std::uint64_t seed, const Split&) {
    return random_weight(rows, cols, number, seed);
  }

  /// Runs `ops`, the ops of one pass over a model. While it runs, host arrays that ops are given
  /// (those of `inputs`) do not change, so a device may carry each of them over once. A device may
  /// hand `ops` padded inputs: more rows than there are (token 0, no slot, in no attention item)
  /// and more logit rows, whose results mean nothing. And it may record what `ops` enqueues, and
  /// replay that for later inputs of the same sizes instead of calling `ops`.
  using PassOps = std::function<void(const PassInputs&)>;
  virtual void run_pass(const PassInputs& inputs, const PassOps& ops);
  /// For PassInputs::model: another number each time.
  std::uint64_t new_model() { return ++models_; }
  /// How passes run over such pages.
  virtual PassKind pass_kind(const KvShape& kv) const;
  const PassCounts& pass_counts() const { return pass_counts_; }
  /// As if there had been no pass so far.
  void restart_pass_counts() { pass_counts_ = {}; }
  /// What a model that was loaded should be run with before anybody waits for it, in this order.
  virtual std::vector<FirstPass> first_passes() const { return {}; }
  /// Of move_kv.
  virtual MoveTotals move_totals() { return move_totals_; }

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
  /// v, which may be normed, too, go to the slots of `kv`. Source: Su et al. 2021,
  /// arXiv:2104.09864.
  virtual void rope_and_store(const RopeStore& args) = 0;

  /// In all layers, V of runs of tokens is copied to other pages, and K with it, rotated from the
  /// old position to the new one. For each pair (a, b) of dims i and i + rotary_dim/2, with cosine
  /// and sine (c, s) at the old and (c', s') at the new position:
  ///   u = inverse_scale2 * (a c + b s, b c - a s);   (a', b') = (u1 c' - u2 s', u2 c' + u1 s')
  /// in f32, each operation rounded by itself, then once to the type of the pages. The bits are the
  /// same on all devices. Where the position stays, and from rotary_dim on, K's bits are copied;
  /// but in FP8 a K of another position is rounded as a whole, with a scale of its own. Not part of
  /// a pass: enqueued at once, behind the copies that the store has waiting. Costs what copying as
  /// many bytes costs.
  virtual void move_kv(const KvMoves& args) = 0;

  /// Attention of rows over a tree of pages, see AttentionPlan.
  virtual void attention(const AttentionArgs& args) = 0;

  /// A gated delta network behind its projections, by value head, S [key_dim, value_dim] its state:
  ///   q, k, v = silu(sum over j of conv[:, j] * what came taps - 1 - j positions before)
  ///   q, k    over their norms sqrt(sum^2 + 1e-6); q over sqrt(key_dim), too
  ///   w = sigmoid(write);  g = -decay * softplus(in + dt_bias), at least -88: e^g is 0 there
  ///   S = e^g S;  d = w (v - S^T k);  S = S + k d^T;  o = S^T q
  ///   out = norm * o / sqrt(mean(o^2) + norm_eps) * silu(gate)
  /// all in f32. Sums are cut at absolute positions: with S the anchor before the row's chunk, G
  /// the sum of g since then, and j the rows of the chunk before this one, oldest first,
  ///   S^T k = e^G S^T k + sum over j of e^(G - Gj) (kj . k) dj,   o likewise with j up to the row,
  /// and behind a chunk S = e^G S + sum over j of e^(G - Gj) kj dj^T. So a row has the same bits in
  /// a prompt, alone and beside siblings. Source: Yang et al. 2024, arXiv:2412.06464.
  /// By channel (DeltaNet::by_channel) g is a vector [key_dim], and so are all powers of e: with
  /// L(j) the product of e^g of the rows behind j up to this one, formed from this one back,
  ///   S^T k = S^T (L k) + sum over j of (L(j) kj . k) dj,   L that of all rows of the chunk,
  /// o likewise, S = L S + sum over j of (L(j) kj) dj^T, and the gate is sigmoid. Products of what
  /// is left lose no digits where a row forgets a channel. Source: Kimi Team 2025,
  /// arXiv:2510.26692.
  virtual void delta_net(const DeltaNet& args) = 0;

  /// A short convolution between its projections, by channel, with (b, c, x) what goes in:
  ///   u = b x;  out = c (bias + sum over j of conv[:, j] * what u was taps - 1 - j positions
  ///   before)
  /// in f32, from the oldest on. What it sums up lies within taps positions, so nothing depends on
  /// where chunks end; anchors and journals are where a row finds u of the rows before it.
  /// Source: Liquid AI 2025, arXiv:2511.23404.
  virtual void short_conv(const ShortConv& args) = 0;

  /// A Mamba-2 layer between its projections, by head, S [state_dim, head_dim] its state, with
  /// (z, x B C, t) what goes in:
  ///   x, B, C = silu(bias + sum over j of conv[:, j] * what came taps - 1 - j positions before)
  ///   dt = softplus(t + dt_bias), held within [least_dt, most_dt];  g = -decay dt, at least -88
  ///   S = e^g S + B (dt x)^T;  y = S^T C + D x
  ///   out = norm * u / sqrt(mean(u^2) + norm_eps), u = y silu(z), the mean over a group's heads
  /// all in f32. Sums are cut at absolute positions: with S the anchor before the row's chunk, j
  /// the rows of the chunk up to the row, oldest first, and G(j) the sum of g of those behind j, in
  /// their order,
  ///   y = e^G S^T C + sum over j of e^G(j) (Bj . C) dtj xj + D x,
  /// and behind a chunk S = e^G S + sum over j of e^G(j) Bj (dtj xj)^T. So a row has the same bits
  /// in a prompt, alone and beside siblings. Source: Dao & Gu 2024, arXiv:2405.21060.
  virtual void mamba(const Mamba& args) = 0;

  /// out = x * sigmoid(gate).  out, x [rows, cols]; gate [rows, n], each for cols / n columns
  virtual void gate(const Rows& out, Tensor x, Tensor gate) = 0;

  /// out[t, i] = silu(gate_up[t, i]) * gate_up[t, ffn + i].  gate_up [tokens, 2 * ffn]; out
  /// [tokens, ffn]. Source: Shazeer 2020, arXiv:2002.05202.
  virtual void silu_mul(Tensor out, Tensor gate_up) = 0;
  /// The same with any activation.
  virtual void activate(Tensor out, Tensor gate_up, const Activation& activation) = 0;

  /// x = max(x, 0)^2.  x [rows, cols]. Source: So et al. 2021, arXiv:2109.08668.
  virtual void squared_relu(Tensor x) = 0;

  /// x = factor * x, then with a `cap` cap * tanh(x / cap).  x [rows, cols]
  virtual void scale(Tensor x, float factor, float cap) = 0;
  /// x[t] *= factors[t].  x [rows, cols]; factors device [rows]
  virtual void scale_rows(Tensor x, const float* factors) = 0;
  /// out[t] += factor * x[t], or factor * rms_norm(x[t]) where there is a weight.  out, x [tokens,
  /// dim]; weight device [dim] or null
  virtual void add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) = 0;

  /// Rows of a mixture of experts: out[t] += sum over the experts e that row t chooses, ascending,
  /// of weight * W_down,e (silu(W_gate,e x[t]) * W_up,e x[t]), the shared one last; where routing
  /// weighs inputs, of weight * x[t] in the place of x[t] instead. What is here reads each expert
  /// that some row takes once, for all its rows, and composes ops. Sources: Shazeer et al. 2017,
  /// arXiv:1701.06538; Jiang et al. 2024, arXiv:2401.04088.
  virtual void experts(const Experts& args);
  /// Whether the device computes experts(); else its ops throw Error.
  virtual bool has_experts() const { return false; }
  /// pack(), of a matrix of an expert.
  virtual std::unique_ptr<Weight> pack_expert(std::span<const StoredMatrix> parts) {
    return pack(parts);
  }
  /// Before experts() is called with this list of a layer's, which stays where it is.
  virtual void add_experts(std::span<const Expert>) {}
  /// What rows of logits [rows, routing.logits()] take: out [rows][routing.choices()], host,
  /// experts of a row ascending. Scores in f32; among equals the lower expert is chosen.
  /// `correction`, `factors`: as in Experts.
  virtual void choose_experts(std::span<ExpertChoice> out, Tensor logits, const Routing& routing,
                              const float* correction, const float* factors);
  /// out[rows[i]] += factors[i] * x[i].  x [rows.size(), dim]; rows differ; factors host
  virtual void add_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows,
                        std::span<const float> factors);

  /// out = x.  out, x [rows, cols]; either may be columns of a wider one.
  virtual void copy(Tensor out, Tensor x) = 0;

  /// Of each head, columns of out = columns of x times its weight^T: what matmul() does, though
  /// where products are rounded not by its order of sums. Here: head by head.
  virtual void head_products(const HeadProducts& args);
  /// Of each head, columns of out = columns of x. Here: head by head.
  virtual void copy_heads(const HeadCopies& args);

  /// out[i] = x[rows[i]].  out [rows.size(), dim]
  virtual void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) = 0;

  /// A product with what is joined to it: norm and gathering before; adding, silu_mul or
  /// rope_and_store behind. What is here composes the ops above; a device may do the same in fewer
  /// steps, within the tolerances of the ops.
  virtual void product(const Product& args);

 protected:
  /// What is before a product with a norm: rms_norm of the rows of args.x that it takes.
  void norm_before(const Product& args, Tensor normed);

  PassCounts pass_counts_;
  MoveTotals move_totals_;

 private:
  std::uint64_t models_ = 0;
};

/// The CPU backend. threads 0: one a core. `kernels` empty: the best path this machine has; else
/// the path by name ("portable", "avx2", "avx512", "avx512_bf16", "amx_bf16", "neon"; for tests and
/// benches), an Error if the machine lacks it. "amx_bf16_model" has the bits of "amx_bf16"
/// anywhere.
std::unique_ptr<Backend> make_cpu_backend(Numerics numerics, int threads,
                                          const std::string& kernels = {});

struct CudaOptions {
  /// false: in bf16, how a product is summed may depend on the number of rows, which is faster for
  /// few.
  bool deterministic = true;
  /// Kernels read small arrays (tokens, page tables, plans) in page-locked host memory, where the
  /// host wrote them, instead of copies on the device. The results are the same. Unset: where the
  /// GPU's memory is the host's.
  std::optional<bool> host_tables{};
  /// GPUs by their indices: one, or of each rank of a group, several of which may be on one.
  std::vector<int> devices{0};
  bool graphs = true;  // passes may be recorded
};
/// The CUDA backend. Any thread may call it, whatever GPU is its current one. Throws Error when
/// this build has none, or the machine no GPU of such an index.
std::unique_ptr<Backend> make_cuda_backend(Numerics numerics, const CudaOptions& options = {});

/// A CPU backend that computes every model as so many ranks, each with its share of it.
std::unique_ptr<Backend> make_cpu_group(Numerics numerics, int threads, int ranks,
                                        const std::string& kernels = {});

/// Names of the paths this machine can run, best first; "portable" is always last.
std::vector<std::string> cpu_kernel_paths();

}  // namespace dendrite
