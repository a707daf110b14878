#pragma once

#include <span>

#include "backend/cpu/memory.h"
#include "backend/state_store.h"

namespace dendrite::cpu {

/// Slot after slot, so that the memory in use grows with the slots in use.
class CpuStateStore final : public StateStore {
 public:
  explicit CpuStateStore(const StateShape& shape);
  const StateShape& shape() const override { return shape_; }
  void read_anchor(std::int32_t slot, std::span<float> out) const override;
  void write_anchor(std::int32_t slot, std::span<const float> in) override;
  void read_journal(std::int32_t slot, std::span<float> out) const override;
  void write_journal(std::int32_t slot, std::span<const float> in) override;

  /// Slot 0 of a layer; the next slot is as far away as all layers of one are long.
  float* anchors(std::int64_t layer) const {
    return reinterpret_cast<float*>(anchors_.data()) + layer * shape_.anchor_values;
  }
  float* journals(std::int64_t layer) const {
    return reinterpret_cast<float*>(journals_.data()) + layer * shape_.journal_values;
  }

 private:
  StateShape shape_;
  Memory anchors_;
  Memory journals_;
};

}  // namespace dendrite::cpu
