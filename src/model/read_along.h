#pragma once

#include <cstdint>

#include "backend/kv_store.h"
#include "backend/path_stores.h"
#include "model/batch.h"

namespace dendrite {

/// Whoever reads along with a model to draft for it: of each row of a step it makes K and V of its
/// own, in pages of the ids that the tree hands out.
class ReadAlong {
 public:
  virtual ~ReadAlong() = default;

  /// K and V of the rows of the model's last pass go to their slots, the extra ones too.
  virtual void add_context(const Batch& batch, KvStore& kv) = 0;
  /// Its pages, beside a model's with pages of this shape.
  virtual KvShape shape_beside(KvShape model) const = 0;
  /// Whether batches say where their tokens are (Batch::places).
  virtual bool wants_places() const { return false; }
  /// Who is to hear of copies of slots; null: nobody.
  virtual SlotCopies* copies() { return nullptr; }

  virtual std::int64_t parameters() const = 0;
  virtual std::int64_t weight_bytes() const = 0;  // on the device
};

}  // namespace dendrite
