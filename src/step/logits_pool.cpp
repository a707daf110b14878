#include "step/logits_pool.h"

namespace dendrite {

std::shared_ptr<LogitsRow> LogitsPool::acquire(std::int64_t vocab) {
  std::unique_ptr<LogitsRow> row;
  if (free_->empty()) {
    row = std::make_unique<LogitsRow>();
    row->values.resize(static_cast<std::size_t>(vocab));
  } else {
    row = std::move(free_->back());
    free_->pop_back();
  }
  // The deleter keeps the list alive: a row may outlast the pool by the time a branch is dropped.
  return {row.release(), [list = free_](LogitsRow* dropped) { list->emplace_back(dropped); }};
}

}  // namespace dendrite
