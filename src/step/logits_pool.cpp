#include "step/logits_pool.h"

namespace dendrite {

std::shared_ptr<LogitsRow> LogitsPool::acquire(std::int64_t vocab) {
  std::unique_ptr<LogitsRow> row;
  {
    const std::scoped_lock lock(free_->mutex);
    if (!free_->rows.empty()) {
      row = std::move(free_->rows.back());
      free_->rows.pop_back();
    }
  }
  if (row == nullptr) {
    row = std::make_unique<LogitsRow>();
    row->values.resize(static_cast<std::size_t>(vocab));
  }
  return {row.release(), [free = free_](LogitsRow* dropped) {
            const std::scoped_lock lock(free->mutex);
            free->rows.emplace_back(dropped);
          }};
}

}  // namespace dendrite
