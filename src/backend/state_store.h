#pragma once

#include <cstdint>
#include <span>

namespace dendrite {

/// What recurrent layers keep of a path, in f32: see RecurrencePlan.
struct StateShape {
  std::int64_t layers = 0;          // that are recurrent
  std::int64_t anchor_values = 0;   // a layer
  std::int64_t journal_values = 0;  // a layer and position
  std::int64_t anchors = 0;         // slots
  std::int64_t journals = 0;

  std::int64_t anchor_bytes() const { return layers * anchor_values * 4; }
  std::int64_t journal_bytes() const { return layers * journal_values * 4; }
  std::int64_t size_bytes() const { return anchors * anchor_bytes() + journals * journal_bytes(); }
};

/// The memory of anchors and journals, made by Backend::make_state_store. Who may write a slot, and
/// what is in it, its owner knows. Memory is touched on first use.
class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual const StateShape& shape() const = 0;

  /// All layers of a slot, [layers][anchor_values] or [layers][journal_values].
  virtual void read_anchor(std::int32_t slot, std::span<float> out) const = 0;
  virtual void write_anchor(std::int32_t slot, std::span<const float> in) = 0;
  virtual void read_journal(std::int32_t slot, std::span<float> out) const = 0;
  virtual void write_journal(std::int32_t slot, std::span<const float> in) = 0;
};

}  // namespace dendrite
