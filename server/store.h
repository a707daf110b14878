#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "dendrite/session.h"
#include "server/responses_script.h"

// Responses that are kept, for conversations that go on from them.
namespace dendrite::server {

class ResponseRun;

/// One that has ended or, where `run` is there, is under way. What it went on from stays with it,
/// also when that is deleted.
struct StoredResponse {
  ResponseHead head;
  std::uint64_t key = 0;                     ///< Caller::key: whose it is
  std::string key_name{};                    ///< of it, in the journal
  std::string cache_salt{};                  ///< of its prompt; not in the journal
  std::shared_ptr<StoredResponse> previous;  ///< that it goes on from
  Json input = Json::array();                ///< its own items

  // Until it has ended, of the I/O thread alone; afterwards nothing changes but `branch`.
  Script script;
  std::optional<ScriptEnd> end;
  Json output = Json::array();       ///< items
  std::shared_ptr<ResponseRun> run;  ///< while it is under way

  /// Its conversation as the model has it, in the I/O thread; empty after a restart.
  Branch branch;

  StoredResponse() = default;
  StoredResponse(const StoredResponse&) = delete;
  StoredResponse& operator=(const StoredResponse&) = delete;
  ~StoredResponse();

  /// As a client sees it, of one that has ended: written again from the script.
  Json response() const;
  /// The items of the whole conversation, the oldest first; of one that has ended.
  Json conversation() const;
};

struct StoreLimits {
  std::size_t responses = 10000;
  std::chrono::seconds ttl{24 * 3600};
};

/// Those of one server, bounded by count and age: the ones that nobody asked for the longest go
/// first, but none that is under way. Of all threads. Ids of one key are not found by another.
class ResponseStore {
 public:
  using Pointer = std::shared_ptr<StoredResponse>;
  using Clock = std::chrono::steady_clock;

  explicit ResponseStore(StoreLimits limits) : limits_(limits) {}

  /// `used`: when somebody asked for it last.
  void put(Pointer response, Clock::time_point used = Clock::now());
  /// From here on nothing of it changes but its branch.
  void ended(const std::string& id);
  /// nullptr: it is not there (any more), or somebody else's.
  Pointer find(const std::string& id, std::uint64_t key);
  /// nullptr also where it is under way: for other threads than the I/O thread.
  Pointer find_ended(const std::string& id, std::uint64_t key);
  Pointer erase(const std::string& id, std::uint64_t key);
  /// Lets those go that are too old, and returns their ids.
  std::vector<std::string> sweep(Clock::time_point now = Clock::now());
  std::size_t size() const;
  /// The one used longest ago first.
  std::vector<Pointer> all_ended() const;

 private:
  struct Entry {
    Pointer response;
    Clock::time_point used;
    bool ended = false;
    std::list<std::string>::iterator place;
  };
  using Entries = std::unordered_map<std::string, Entry>;
  Entry* find_entry(const std::string& id, std::uint64_t key);
  void drop(Entries::iterator entry);

  StoreLimits limits_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::list<std::string> by_use_;  // the one used last at the end
};

}  // namespace dendrite::server
