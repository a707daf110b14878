#include "server/branch_store.h"

namespace dendrite::server {
namespace {

Fault no_branch(const std::string& id) {
  return not_found("there is no branch " + echoed(id), "branch_id");
}

}  // namespace

Fault branch_is_busy(const std::string& id) {
  return {409, "invalid_request_error", "branch_busy", "branch_id",
          "the branch " + echoed(id) + " is being decoded; please fork it, or wait"};
}

std::vector<std::string> BranchStore::add(std::uint64_t key, const std::string& parent,
                                          std::int64_t shared, std::vector<Branch> branches) {
  const std::lock_guard lock(mutex_);
  std::size_t& count = of_key_[key];
  if (count + branches.size() > most_) {
    throw Fault(429, "rate_limit_error", "rate_limit_exceeded", "n",
                "this key has " + std::to_string(count) + " branches; at most " +
                    std::to_string(most_) + " are kept");
  }
  std::vector<std::string> ids;
  for (Branch& branch : branches) {
    const std::string id = new_id("br_");
    Held& held = held_[id];
    held.id = id;
    held.parent = parent;
    held.key = key;
    held.shared = shared;
    held.branch = std::move(branch);
    held.used = std::chrono::steady_clock::now();
    ids.push_back(id);
    ++count;
  }
  return ids;
}

void BranchStore::use(const std::string& id, std::uint64_t key,
                      const std::function<void(Held&)>& act) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end() || found->second.key != key) throw no_branch(id);
  found->second.used = std::chrono::steady_clock::now();
  act(found->second);
}

bool BranchStore::has(const std::string& id, std::uint64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  return found != held_.end() && found->second.key == key;
}

void BranchStore::use_all(std::uint64_t key,
                          const std::function<void(std::span<Held* const>)>& act) {
  const std::lock_guard lock(mutex_);
  std::vector<Held*> all;
  for (auto& [id, held] : held_) {
    if (held.key == key) all.push_back(&held);
  }
  act(all);
}

std::vector<std::uint64_t> BranchStore::keys() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> keys;
  for (const auto& [key, count] : of_key_) {
    if (count > 0) keys.push_back(key);
  }
  return keys;
}

void BranchStore::restore(Held held) {
  const std::lock_guard lock(mutex_);
  held.used = std::chrono::steady_clock::now();
  ++of_key_[held.key];
  const std::string id = held.id;
  held_[id] = std::move(held);
}

void BranchStore::remove(const std::string& id, std::uint64_t key) {
  Held gone;  // after the lock
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end() || found->second.key != key) throw no_branch(id);
  gone = std::move(found->second);
  held_.erase(found);
  --of_key_[key];
  gone.turn.cancel();
}

void BranchStore::give_back(const std::string& id, Branch branch) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end()) return;
  found->second.branch = std::move(branch);
  found->second.before = {};
  found->second.turn = {};
  found->second.busy = false;
  found->second.used = std::chrono::steady_clock::now();
}

void BranchStore::sweep() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  for (auto at = held_.begin(); at != held_.end();) {
    if (at->second.busy || now - at->second.used < idle_) {
      ++at;
      continue;
    }
    --of_key_[at->second.key];
    at = held_.erase(at);
  }
}

}  // namespace dendrite::server
