#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "server/service.h"

namespace dendrite::server {

struct Branches;

/// Keeps branches and their effects in files, one a key: a snapshot of the library, whose
/// attachment says what clients call them. Each save writes all branches of a key, without K and V,
/// which the last one has; those that ask meanwhile share the next one.
class BranchSaves {
 public:
  using Told = std::function<void(std::optional<Fault>)>;

  /// Restores what is there. Throws Error naming the file that can't be.
  BranchSaves(Branches& all, std::filesystem::path folder);
  ~BranchSaves();
  BranchSaves(const BranchSaves&) = delete;
  BranchSaves& operator=(const BranchSaves&) = delete;

  /// `told` is called, in a thread of the saves, when what was done by now would survive, or with a
  /// fault. Where nothing `changed` and all is saved, at once.
  void after_save(std::uint64_t key, Told told, bool changed = true);
  /// The last one, when nobody asks for anything any more.
  void finish();

 private:
  void restore(std::uint64_t key);
  void end_thread();
  bool save(std::uint64_t key, bool kv);
  void loop();
  std::filesystem::path file_of(std::uint64_t key) const;

  Branches& all_;
  std::filesystem::path folder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::uint64_t, std::vector<Told>> waiting_;
  std::optional<std::uint64_t> saving_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace dendrite::server
