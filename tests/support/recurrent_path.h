#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/recurrence_plan.h"

namespace dendrite::test {

/// What recurrent layers keep of one path that only grows: a journal for each position, an anchor
/// behind each chunk.
class RecurrentPath {
 public:
  RecurrentPath(Backend& backend, StateShape shape, std::int64_t max_positions) {
    shape.journals = max_positions;
    shape.anchors = max_positions / kChunkTokens;
    store_ = backend.make_state_store(shape);
  }

  StateStore& store() { return *store_; }

  /// The plan of the next `rows` positions, in a pass that has no others.
  RecurrencePlan next(std::int64_t rows) {
    RecurrencePlan plan;
    RecurrencePlan::Run run;
    run.row_end = static_cast<std::int32_t>(rows);
    run.first_position = length_;
    run.known = static_cast<std::int32_t>(length_ % kChunkTokens);
    const std::int64_t chunk = length_ / kChunkTokens;
    run.anchor = static_cast<std::int32_t>(chunk - 1);
    for (std::int64_t i = length_ - run.known; i < length_; ++i) add(plan.known, i);
    for (std::int64_t i = length_; i < length_ + rows; ++i) add(plan.journals, i);
    length_ += rows;
    for (std::int64_t i = chunk; i < length_ / kChunkTokens; ++i) add(plan.anchors, i);
    plan.runs = {run};
    return plan;
  }

 private:
  static void add(std::vector<std::int32_t>& slots, std::int64_t slot) {
    slots.push_back(static_cast<std::int32_t>(slot));
  }

  std::unique_ptr<StateStore> store_;
  std::int64_t length_ = 0;
};

}  // namespace dendrite::test
