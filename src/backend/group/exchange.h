#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/tensor.h"

namespace dendrite::group {

/// What ranks on several devices give each other, where their memories are. Enqueued behind what
/// devices were given before; what they are given later waits for it.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// On every device: out = (out +) parts[0] + parts[1] + ..., from the left. So all devices have
  /// the same bits. outs: a device's each, parts: a rank's each, packed; [rows, cols]
  virtual void sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
                   Backend::Store store) = 0;

  /// What a rank on another device has of rows on the first.
  struct Columns {
    std::size_t device = 0;
    Tensor part;  // [rows, cols], packed; `to` where writes_to_first()
    Tensor to;    // the same size
  };
  virtual void gather(std::span<const Columns> columns) = 0;
  /// Whether products on other devices write to the first's memory what is gathered next; they are
  /// behind a sum, and so behind what the first did there before.
  virtual bool writes_to_first() const = 0;

  /// The first device's draws are begun: so many of the tokens that passes take before the host
  /// knows them go to the other devices.
  virtual void share_draws(std::int64_t count) = 0;
};

}  // namespace dendrite::group
