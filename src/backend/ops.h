#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "backend/attention_plan.h"
#include "backend/delta_net_sizes.h"
#include "backend/kv_store.h"
#include "backend/mamba_sizes.h"
#include "backend/recurrence_plan.h"
#include "backend/rope.h"
#include "backend/rows.h"
#include "backend/short_conv_sizes.h"
#include "backend/state_store.h"
#include "backend/tensor.h"
#include "backend/weight.h"

// What the ops of a Backend are given. `tokens`: rows of the call.
namespace dendrite {

/// Arguments of Backend::rope_and_store.
struct RopeStore : Rope {
  /// [tokens, (heads + 2 * kv_heads) * head_dim]; the q part is rewritten. Without kv_heads nothing
  /// is stored. Without v, (heads + kv_heads) * head_dim, where values are keys.
  Tensor qkv;
  /// [tokens]: page * page_tokens + offset; -1: K and V are not stored.
  std::span<const std::int64_t> slots;
  std::span<const ExtraStore> extra_stores;  // rows ascending
  KvStore* kv = nullptr;
  std::int64_t layer = 0;
};

/// Arguments of Backend::attention.
struct AttentionArgs {
  Rows out;  // [tokens, heads * head_dim], overwritten; begins on 16 bytes
  Tensor q;  // [tokens, heads * head_dim], after RoPE
  std::int64_t heads = 0;
  float scale = 1.0f;  // multiplies q . k
  float soft_cap = 0;  // a score s becomes soft_cap * tanh(s / soft_cap); 0: it stays
  /// device [heads] or null: a score more of each head in its softmax, with no value behind it.
  const float* sinks = nullptr;
  const KvStore* kv = nullptr;
  std::int64_t layer = 0;
  const AttentionPlan* plan = nullptr;  // rows of q beyond the plan's are padding
};

/// Arguments of Backend::head_products.
struct HeadProducts {
  Tensor out;  // [tokens, ...]: head h begins at column h * out_step
  std::int64_t out_step = 0;
  Tensor x;  // [tokens, ...]: head h begins at column h * x_step
  std::int64_t x_step = 0;
  std::span<const std::unique_ptr<Weight>> weights;  // one a head, of one size
};

/// Arguments of Backend::copy_heads: as of head_products.
struct HeadCopies {
  Tensor out;
  std::int64_t out_step = 0;
  Tensor x;
  std::int64_t x_step = 0;  // 0: each head gets the same
  std::int64_t heads = 0;
  std::int64_t cols = 0;  // of a head
};

/// Arguments of Backend::delta_net.
struct DeltaNet : DeltaNetSizes {
  /// [rows, in_columns()]: what is convolved (queries, keys, values), the gates of what comes out,
  /// and for each value head how much is written, then how much decays; by channel (DeltaNetSizes)
  /// the gates come last.
  Tensor in{};
  const float* conv = nullptr;     // device [channels(), taps]
  const float* decay = nullptr;    // device [value_heads]: exp(A_log)
  const float* dt_bias = nullptr;  // device [decay_columns()]
  const float* norm = nullptr;     // device [value_dim]
  float norm_eps = 0;
  Rows out{};  // [rows, out_columns()]

  StateStore* states = nullptr;
  std::int64_t layer = 0;                // of the store
  const RecurrencePlan* plan = nullptr;  // rows beyond it are padding
};

/// Arguments of Backend::short_conv.
struct ShortConv : ShortConvSizes {
  /// [rows, in_columns()]: what multiplies what is convolved, what multiplies what comes out, and
  /// what is convolved.
  Tensor in{};
  const float* conv = nullptr;  // device [channels, taps]
  const float* bias = nullptr;  // device [channels] or null
  Rows out{};                   // [rows, out_columns()]

  StateStore* states = nullptr;
  std::int64_t layer = 0;                // of the store
  const RecurrencePlan* plan = nullptr;  // rows beyond it are padding
};

/// Arguments of Backend::mamba.
struct Mamba : MambaSizes {
  /// [rows, in_columns()]: gates of what comes out, what is convolved (x, B, C), and dt of each
  /// head.
  Tensor in{};
  const float* conv = nullptr;       // device [channels(), taps]
  const float* conv_bias = nullptr;  // device [channels()] or null
  const float* decay = nullptr;      // device [heads]: exp(A_log)
  const float* dt_bias = nullptr;    // device [heads]
  const float* skip = nullptr;       // device [heads]: D
  const float* norm = nullptr;       // device [out_columns()]
  float norm_eps = 0;
  float least_dt = 0;  // dt is held within these, once its bias and softplus are applied
  float most_dt = std::numeric_limits<float>::infinity();
  Rows out{};  // [rows, out_columns()]

  StateStore* states = nullptr;
  std::int64_t layer = 0;                // of the store
  const RecurrencePlan* plan = nullptr;  // rows beyond it are padding
};

/// An expert that every row takes, beside those that it chooses.
enum class SharedExpert : std::uint8_t {
  kNone,
  kPlain,  // weighs 1
  kGated,  // weighs the sigmoid of a logit of its own, the last
};

/// What makes an expert's weight of its logit.
enum class RouterScore : std::uint8_t {
  kSoftmax,  // over the logits of all
  kSigmoid,
};

/// How a row chooses among experts: those of the largest scores, which are their weights.
struct Routing {
  std::int64_t experts = 0;  // that are chosen from; a shared one has the number behind them
  std::int64_t chosen = 0;   // a row
  bool normalised = false;   // weights are divided by the sum of the chosen ones'
  SharedExpert shared = SharedExpert::kNone;
  RouterScore score = RouterScore::kSoftmax;
  float scale = 1;  // of the weights of the chosen, at last
  /// Experts lie in so many groups of one size, and are chosen from so many of these: the ones
  /// whose two best experts have the largest sum of scores.
  std::int64_t groups = 1;
  std::int64_t chosen_groups = 1;
  float sum_bias = 0;          // where normalised: is added to the sum
  bool weighs_inputs = false;  // what an expert reads is times its weight, not what it gives

  std::int64_t logits() const { return experts + (shared == SharedExpert::kGated ? 1 : 0); }
  std::int64_t all_experts() const { return experts + (shared == SharedExpert::kNone ? 0 : 1); }
  /// That a row takes.
  std::int64_t choices() const { return chosen + (shared == SharedExpert::kNone ? 0 : 1); }
};

/// An expert of a row, and how much it weighs.
struct ExpertChoice {
  std::int32_t expert = 0;
  float weight = 0;
};

/// What becomes of a gate g and what it lets through, u.
struct Activation {
  enum class Kind : std::uint8_t {
    kSilu,     // g * sigmoid(g) * u
    kGelu,     // g * P(g) * u, P: 1/2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
    kClamped,  // g * sigmoid(alpha g) * (u + 1), g at most `limit` and u within it on both sides
  };
  Kind kind = Kind::kSilu;
  float limit = 0;  // kClamped
  float alpha = 1;  // kClamped
};

/// W_down * (silu(W_gate x) * W_up x), or with another activation, or without gates; one of many.
struct Expert {
  const Weight* gate_up = nullptr;      // [2 * ffn, dim], gates first; or ups alone [ffn, dim]
  const Weight* down = nullptr;         // [dim, ffn]
  const float* gate_up_bias = nullptr;  // device [2 * ffn] or null
  const float* down_bias = nullptr;     // device [dim] or null
};

/// Arguments of Backend::experts.
struct Experts {
  Rows x;         // [tokens, dim], as a product with an expert's gate_up reads them
  Tensor logits;  // [tokens, routing.logits()]
  Routing routing{};
  /// device [routing.experts] or null: added to scores where experts are chosen, not to weights.
  const float* correction = nullptr;
  /// device [routing.experts] or null: weights of the chosen are times these, at last.
  const float* factors = nullptr;
  Activation activation{};
  bool squared_relu = false;        // experts have no gates: down(max(up(x), 0)^2)
  std::span<const Expert> experts;  // [routing.all_experts()]
  Tensor out;                       // [tokens, dim], added to

  // scratch for the rows of one expert
  Tensor in;       // [tokens, dim]
  Tensor gate_up;  // [tokens, 2 * the widest ffn]
  Tensor act;      // [tokens, the widest ffn]
  Tensor down;     // [tokens, dim]
};

/// What becomes of the sums of a product.
enum class Epilogue : std::uint8_t {
  kStore,
  kAdd,      // to what is there: the residual
  kSiluMul,  // rows of the weight are n gates, then n ups: silu(gate) * up
  kRope,     // rows of the weight are heads of q, k and v: rope_and_store
};

/// Arguments of Backend::product: x * W^T + bias, and what is joined before and behind it.
struct Product {
  const Weight* weight = nullptr;
  const float* bias = nullptr;  // device [rows of weight] or null

  // before
  Rows in;   // [tokens, cols of weight], what is multiplied; with a norm: scratch for it
  Tensor x;  // with a norm: [any, cols of weight], its rows are normed
  const float* norm = nullptr;  // device [cols of weight] or null: RMSNorm
  float norm_eps = 0;
  std::span<const std::int32_t> gather;  // with a norm: which rows of x; empty: all

  // behind
  Epilogue epilogue = Epilogue::kStore;
  Tensor out;                       // [tokens, rows of weight]; with kSiluMul scratch
  Rows act;                         // kSiluMul: [tokens, rows of weight / 2]
  const RopeStore* rope = nullptr;  // kRope; its qkv is `out`
};

}  // namespace dendrite
