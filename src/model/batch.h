#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/attention_plan.h"
#include "backend/kv_store.h"
#include "backend/recurrence_plan.h"

namespace dendrite {

/// One forward pass as arrays. A row is one token of one segment of the tree.
struct Batch {
  std::vector<std::int32_t> tokens;     // [rows], see PassInputs
  std::vector<std::int64_t> positions;  // [rows]
  std::vector<std::int64_t> slots;      // [rows] where K and V go; -1: they are held already
  std::vector<ExtraStore> extra_stores;
  /// Where whoever reads along asks for it, else empty: [rows] a place of K and V of each row's
  /// token, whether or not they are stored, and of the token before it (-1: there is none).
  std::vector<std::int64_t> places;
  std::vector<std::int64_t> before;
  std::vector<std::int32_t> logit_rows;  // rows whose next-token distribution is wanted, ascending
  std::vector<AttentionPlan> plans;      // one for each of Model::windows(), in that order
  RecurrencePlan recurrence;             // of a model with recurrent layers

  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
  /// Without rows; the memory stays.
  void clear() {
    tokens.clear();
    positions.clear();
    slots.clear();
    extra_stores.clear();
    places.clear();
    before.clear();
    logit_rows.clear();
    recurrence.clear();
  }
};

/// The least position of a batch's rows; 0 where it has none.
inline std::int64_t first_position(const Batch& batch) {
  return batch.positions.empty() ? 0 : *std::ranges::min_element(batch.positions);
}

}  // namespace dendrite
