#pragma once

#include "backend/cuda/base/device.h"
#include "backend/state_store.h"

namespace dendrite::cuda {

/// Anchors [slots][layers][anchor_values], then journals likewise, in one allocation.
class CudaStateStore final : public StateStore {
 public:
  CudaStateStore(Device& device, const StateShape& shape);
  const StateShape& shape() const override { return shape_; }
  void read_anchor(std::int32_t slot, std::span<float> out) const override;
  void write_anchor(std::int32_t slot, std::span<const float> in) override;
  void read_journal(std::int32_t slot, std::span<float> out) const override;
  void write_journal(std::int32_t slot, std::span<const float> in) override;

  /// A layer's values of slot 0. From slot to slot there are shape().layers times as many.
  float* anchors(std::int64_t layer) const { return floats() + layer * shape_.anchor_values; }
  float* journals(std::int64_t layer) const {
    return floats() + shape_.anchors * shape_.layers * shape_.anchor_values +
           layer * shape_.journal_values;
  }

 private:
  float* floats() const { return reinterpret_cast<float*>(memory_.data()); }
  void read(const char* op, const float* from, std::span<float> out) const;
  void write(const char* op, float* to, std::span<const float> in) const;

  Device& device_;
  StateShape shape_;
  Memory memory_;
};

}  // namespace dendrite::cuda
