#pragma once

#include <cstdint>

#include "backend/kv_store.h"
#include "backend/state_store.h"

namespace dendrite {

/// Whoever keeps something else by slots of pages.
class SlotCopies {
 public:
  virtual ~SlotCopies() = default;
  /// As KvStore::copy_slots.
  virtual void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) = 0;
};

/// All that a device keeps of the tokens of a path. The tree hands out pages; a page id means the
/// same tokens in every store of pages. A value: the stores outlive it.
struct PathStores {
  KvStore& kv;
  /// K and V of whoever reads along (model/read_along.h), in pages of the same ids. Null: none.
  KvStore* drafter = nullptr;
  /// Of recurrent layers. Null: the model has none.
  StateStore* states = nullptr;
  /// Hears of copies, too. Null: nobody.
  SlotCopies* copies = nullptr;

  PathStores(KvStore& pages, KvStore* of_drafter = nullptr,  // NOLINT: one store is all, mostly
             StateStore* of_states = nullptr, SlotCopies* by_slots = nullptr)
      : kv(pages), drafter(of_drafter), states(of_states), copies(by_slots) {}

  /// KvStore::copy_slots and flush_copies, of every store.
  void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) const {
    kv.copy_slots(from, to, tokens);
    if (drafter != nullptr) drafter->copy_slots(from, to, tokens);
    if (copies != nullptr) copies->copy_slots(from, to, tokens);
  }
  void flush_copies() const {
    kv.flush_copies();
    if (drafter != nullptr) drafter->flush_copies();
  }
};

}  // namespace dendrite
