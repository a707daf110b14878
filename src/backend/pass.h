#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "backend/attention_plan.h"
#include "backend/kv_store.h"
#include "backend/recurrence_plan.h"
#include "backend/state_store.h"

namespace dendrite {

/// Numbers of the rows of a pass, a row's by another's, that go to the device before the ops run.
struct PassTable {
  std::span<const float> values;
  float* device = nullptr;
};

/// What differs between the passes of a model: host arrays.
struct PassInputs {
  std::uint64_t model = 0;  // Backend::new_model(): the same ops on the same tensors
  KvStore* kv = nullptr;
  std::int64_t heads = 0;                // query heads
  std::span<const std::int32_t> tokens;  // [rows], ids or token_of_draw()
  /// [rows]. A row's slot, and its extra ones, are places of its position.
  std::span<const std::int64_t> slots;
  std::span<const ExtraStore> extra_stores;  // any number, rows ascending
  std::span<const std::int32_t> logit_rows;  // [logit rows]
  std::span<const AttentionPlan> plans;      // of the rows that are no padding, one a window
  StateStore* states = nullptr;              // of a model that has recurrent layers
  const RecurrencePlan* recurrence = nullptr;
  std::int64_t first_position = 0;    // the least of the rows': nothing is stored before it
  std::span<const PassTable> tables;  // angles of RoPE, and what else goes by positions
  std::int64_t max_rows = 0;          // that the ops' tensors have room for
  std::int64_t max_logit_rows = 0;
  bool padded = false;  // so that whoever is handed it pads no more

  /// What the layers of a plan keep: wide ones are those without a window.
  KvStore& kv_of(const AttentionPlan& plan) const {
    return kv->part(kv->shape().wide.layers > 0 && plan.window.size == 0 ? 1 : 0);
  }

  /// Stands for the token of draws[i] of the last LogitsSampler::begin_draw, which the host has not
  /// read yet. Requires i < LogitsSampler::kept_draws().
  static constexpr std::int32_t token_of_draw(std::int32_t i) { return -1 - i; }
};

/// What the memory that passes take beside the model's own depends on.
struct PassSizes {
  std::int64_t layers = 0, heads = 0, head_dim = 0, vocab = 0;
  std::int64_t widest = 0;     // columns of a weight
  std::int64_t tallest = 0;    // rows of a weight
  std::int64_t positions = 0;  // of the longest context
  std::int64_t recurrent = 0;  // columns of what goes into a recurrent layer and what comes out
  std::int64_t max_rows = 0;
};

/// A pass of which the first ones take longer: kernels are chosen and loaded, launches recorded.
struct FirstPass {
  std::int64_t rows = 0;
  std::int64_t logit_rows = 0;
  int times = 1;  // after which it takes as long as ever
};

/// How passes of a model run on a device, for people.
struct PassKind {
  std::string attention;  // which kernels: "tensor cores"
  std::string graphs;     // which passes are recorded and replayed; "" where no device does
  /// Not the fast way that the device has; what it is that it cannot take. Else "".
  std::string slow;
};

/// Moves of K and V so far, as far as it is known how long they took.
struct MoveTotals {
  std::int64_t bytes = 0;  // written; as many were read
  double seconds = 0;
};

/// Passes so far.
struct PassCounts {
  std::int64_t passes = 0;
  std::int64_t without_graph = 0;         // of a device that has graphs
  std::int64_t without_tensor_cores = 0;  // in attention, of a device that has them
};

}  // namespace dendrite
