#include "server/store.h"

#include <utility>

namespace dendrite::server {

StoredResponse::~StoredResponse() {
  // One after the other: a long conversation would take as many frames of the stack.
  std::shared_ptr<StoredResponse> next = std::move(previous);
  while (next && next.use_count() == 1) next = std::exchange(next->previous, nullptr);
}

Json StoredResponse::response() const {
  ResponseWriter writer(head);
  events_of(writer, script, end);
  return writer.response();
}

Json StoredResponse::conversation() const {
  std::vector<const StoredResponse*> chain;
  for (const StoredResponse* each = this; each != nullptr; each = each->previous.get()) {
    chain.push_back(each);
  }
  Json items = Json::array();
  for (auto each = chain.rbegin(); each != chain.rend(); ++each) {
    for (const Json& item : (*each)->input) items.push_back(item);
    for (const Json& item : (*each)->output) items.push_back(item);
  }
  return items;
}

void ResponseStore::put(Pointer response, Clock::time_point used) {
  const std::lock_guard lock(mutex_);
  const std::string id = response->head.id;
  const bool ended = response->end.has_value();
  by_use_.push_back(id);
  entries_[id] = {std::move(response), used, ended, std::prev(by_use_.end())};
  for (auto oldest = by_use_.begin();
       entries_.size() > limits_.responses && oldest != by_use_.end();) {
    const auto entry = entries_.find(*oldest++);
    if (entry->second.ended) drop(entry);
  }
}

void ResponseStore::ended(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(id); found != entries_.end()) found->second.ended = true;
}

ResponseStore::Entry* ResponseStore::find_entry(const std::string& id, std::uint64_t key) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.response->key != key) return nullptr;
  Entry& entry = found->second;
  entry.used = Clock::now();
  by_use_.splice(by_use_.end(), by_use_, entry.place);
  return &entry;
}

ResponseStore::Pointer ResponseStore::find(const std::string& id, std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  const Entry* entry = find_entry(id, key);
  return entry == nullptr ? nullptr : entry->response;
}

ResponseStore::Pointer ResponseStore::find_ended(const std::string& id, std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  const Entry* entry = find_entry(id, key);
  return entry == nullptr || !entry->ended ? nullptr : entry->response;
}

ResponseStore::Pointer ResponseStore::erase(const std::string& id, std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  const Entry* entry = find_entry(id, key);
  if (entry == nullptr) return nullptr;
  Pointer response = entry->response;
  drop(entries_.find(id));
  return response;
}

std::vector<std::string> ResponseStore::sweep(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> gone;
  for (auto oldest = by_use_.begin(); oldest != by_use_.end();) {
    const auto entry = entries_.find(*oldest++);
    if (now - entry->second.used < limits_.ttl) break;
    if (!entry->second.ended) continue;
    gone.push_back(entry->first);
    drop(entry);
  }
  return gone;
}

std::size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::vector<ResponseStore::Pointer> ResponseStore::all_ended() const {
  const std::lock_guard lock(mutex_);
  std::vector<Pointer> all;
  for (const std::string& id : by_use_) {
    if (entries_.at(id).ended) all.push_back(entries_.at(id).response);
  }
  return all;
}

void ResponseStore::drop(Entries::iterator entry) {
  by_use_.erase(entry->second.place);
  entries_.erase(entry);
}

}  // namespace dendrite::server
