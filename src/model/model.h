#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/path_stores.h"
#include "dendrite/compatibility.h"
#include "model/batch.h"

namespace dendrite {

class ThreadPool;

/// Batch to logits, for one architecture and one device.
class Model {
 public:
  virtual ~Model() = default;

  /// Runs the rows of `batch`; what it keeps of them goes to `stores`. Returns logits
  /// [batch.logit_rows.size(), vocab] in device memory that the next call reuses. Requires rows <=
  /// max_rows, logit rows <= max_logit_rows.
  virtual Tensor forward(const Batch& batch, const PathStores& stores) = 0;

  /// Hidden states of all rows of the last forward(), behind the final norm: [rows, dim] in device
  /// memory that the next pass reuses.
  virtual Tensor hidden() = 0;

  /// K and V of the rows in the first `layers` layers alone, the same as forward() gives up to
  /// rounding; `kv` may have no more layers than that.
  virtual void fill(const Batch& batch, KvStore& kv, std::int64_t layers) = 0;

  /// K and V of cached tokens once more, in other pages and for other positions: V as it is, K
  /// rotated to the new position (Backend::move_kv, whose requirements these are). In the first
  /// layer they are those of the tokens at their new positions, up to the rounding of K; further up
  /// they still know what was before the tokens at the old ones. Throws Error unless why_not_move()
  /// is "".
  virtual void move(std::span<const KvMove> runs, KvStore& kv) = 0;
  /// What in the model forbids move(); "": nothing does.
  virtual std::string why_not_move() const = 0;

  /// Makes now what else is made when a position is first computed or moved, for so many of them.
  virtual void prepare_positions(std::int64_t count, const ThreadPool& workers) = 0;

  /// Whoever reads along: the residual stream after each of `layers` is copied into the columns
  /// [i * dim, (i + 1) * dim) of `out` [max_rows, layers.size() * dim] in every pass.
  struct Taps {
    std::vector<std::int64_t> layers;  // ascending
    Tensor out;
  };
  virtual void set_taps(Taps taps) = 0;
  virtual const Weight& embedding() const = 0;      // [vocab, dim]
  virtual const Weight& output_matrix() const = 0;  // [vocab, dim]

  /// The distinct attention windows of the layers; a batch carries one plan for each.
  virtual const std::vector<AttentionWindow>& windows() const = 0;
  /// How many layers have the i-th of these.
  virtual std::int64_t layers_of_window(std::size_t i) const = 0;
  /// Of passes with contexts of so many tokens.
  virtual PassSizes pass_sizes(std::int64_t positions) const = 0;
  virtual std::int64_t max_rows() const = 0;
  virtual std::int64_t max_logit_rows() const = 0;
  virtual std::int64_t parameters() const = 0;
  virtual std::int64_t weight_bytes() const = 0;  // on the device
  /// Of the products whose inputs would be rounded; the incompatible ones round none.
  virtual const Compatibility& compatibility() const = 0;
};

struct ModelOptions {
  std::int64_t max_rows = 512;
  std::int64_t logit_bytes = std::int64_t{128} << 20;  // of one pass: wider batches take several
  bool dummy_weights = false;                          // random weights of the config's shapes
};

}  // namespace dendrite
