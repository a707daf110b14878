#include "kv/page_pool.h"

#include <stdexcept>
#include <string>

namespace dendrite {

PagePool::PagePool(std::int32_t num_pages, PageWatch* watch)
    : holders_(static_cast<std::size_t>(num_pages), 0) {
  if (watch != nullptr) add(*watch);
  free_.reserve(holders_.size());  // so that release() never allocates
  for (std::int32_t page = num_pages - 1; page >= 0; --page) {
    free_.push_back(static_cast<PageId>(page));
  }
}

std::optional<PageId> PagePool::try_acquire() {
  if (free_.empty()) return std::nullopt;
  const PageId page = free_.back();
  free_.pop_back();
  std::int32_t& holders = holders_[static_cast<std::size_t>(index_of(page))];
  assert(holders == 0);
  holders = 1;
  ++acquired_;
  for (PageWatch* watch : watches_) watch->acquired(page);
  return page;
}

void PagePool::retain(PageId page) {
  assert(holders(page) > 0);
  ++holders_[static_cast<std::size_t>(index_of(page))];
}

void PagePool::release(PageId page) {
  assert(holders(page) > 0);
  if (--holders_[static_cast<std::size_t>(index_of(page))] > 0) return;
  for (PageWatch* watch : watches_) watch->released(page);
  free_.push_back(page);
}

void PagePool::check_invariants() const {
  std::vector<bool> listed(holders_.size(), false);
  for (const PageId page : free_) {
    const auto i = static_cast<std::size_t>(index_of(page));
    const std::string name = "page " + std::to_string(index_of(page));
    if (i >= holders_.size()) throw std::logic_error("PagePool: free " + name + " does not exist");
    if (listed[i]) throw std::logic_error("PagePool: " + name + " is on the free list twice");
    if (holders_[i] != 0) {
      throw std::logic_error("PagePool: free " + name + " has " + std::to_string(holders_[i]) +
                             " holders");
    }
    listed[i] = true;
  }
  for (std::size_t i = 0; i < holders_.size(); ++i) {
    if (!listed[i] && holders_[i] <= 0) {
      throw std::logic_error("PagePool: page " + std::to_string(i) +
                             " has no holder and is not on the free list");
    }
  }
}

}  // namespace dendrite
