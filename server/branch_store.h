#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "server/service.h"

namespace dendrite::server {

/// Branches that clients hold by their ids, each a key's own. Safe to use from several threads.
class BranchStore {
 public:
  struct Held {
    std::string id, parent;  ///< parent: empty: a prompt's
    std::uint64_t key = 0;
    std::int64_t shared = 0;  ///< tokens that it had from others when it was made
    Branch branch{};          ///< empty while a turn has it
    Branch before{};          ///< as it was then, where branches are saved
    Turn turn{};              ///< that has it
    bool busy = false;
    std::chrono::steady_clock::time_point used{};
  };

  /// `most`: branches of one key.
  BranchStore(std::size_t most, std::chrono::seconds idle) : most_(most), idle_(idle) {}

  /// Their ids. Throws Fault 429 where the key has too many.
  std::vector<std::string> add(std::uint64_t key, const std::string& parent, std::int64_t shared,
                               std::vector<Branch> branches);
  /// Calls it with the branch, while nobody else has it. Throws Fault 404 for one that is not there
  /// or another key's.
  void use(const std::string& id, std::uint64_t key, const std::function<void(Held&)>& act);
  bool has(const std::string& id, std::uint64_t key) const;
  /// As use(), with all of a key.
  void use_all(std::uint64_t key, const std::function<void(std::span<Held* const>)>& act);
  /// That have branches.
  std::vector<std::uint64_t> keys() const;
  void remove(const std::string& id, std::uint64_t key);
  /// One of a former process.
  void restore(Held held);
  /// Back from a turn. One that was removed meanwhile goes.
  void give_back(const std::string& id, Branch branch);
  /// Those that nobody used for so long go.
  void sweep();

 private:
  std::size_t most_;
  std::chrono::seconds idle_;
  mutable std::mutex mutex_;
  std::map<std::string, Held> held_;
  std::map<std::uint64_t, std::size_t> of_key_;
};

/// 409: a turn has it.
Fault branch_is_busy(const std::string& id);

}  // namespace dendrite::server
