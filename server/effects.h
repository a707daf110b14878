#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dendrite/ledger.h"
#include "server/http.h"
#include "server/json.h"

// What clients did outside for their branches: the library's ledger (dendrite/ledger.h), one for
// each key.
namespace dendrite::server {

/// That effects became final, or that nobody has them any more, numbered from 1: the newest ones,
/// for who asks or watches. Of any thread, but for watch().
class EffectLog : public std::enable_shared_from_this<EffectLog> {
 public:
  explicit EffectLog(HttpServer& http) : http_(http) {}

  /// `type`: effect.committed or effect.aborted.
  void add(const char* type, Json effect);
  /// Those behind number `after`. Throws Fault 410 where some of them are no longer kept.
  Json list(std::int64_t after) const;
  /// Writes them, and those that come, until the client goes. In the I/O thread. Throws like list.
  void watch(const Reply& reply, std::int64_t after);
  /// Ends all streams. In the I/O thread.
  void end();

 private:
  struct Watcher {
    Reply reply;
    std::int64_t after = 0;
  };
  std::vector<Json> behind(std::int64_t after) const;
  void tell();

  HttpServer& http_;
  mutable std::mutex mutex_;
  std::deque<Json> events_;
  std::int64_t last_ = 0;
  std::vector<Watcher> watchers_;  // in the I/O thread
};

/// The effects of one key's branches. Its functions are called while nobody else has the branch.
class KeyEffects {
 public:
  KeyEffects(HttpServer& http, const Session& session);

  /// What the branch has by this key at its end: begun by this call, and with `value` ended, too,
  /// where it had none. Throws Fault 409 effect_open where there is one that has not ended.
  Json begin(const Branch& branch, const std::string& key, const std::optional<std::string>& value);
  /// All of its path, the first one first; `key`: those by it.
  Json path(const Branch& branch, const std::optional<std::string>& key) const;
  /// What the branch has is final; its path. Throws Fault 409 effect_open.
  Json commit(const Branch& branch);

  /// By the effect's own id. Throw Fault 404 where there is none, 409 effect_ended.
  Json end(const std::string& id, const std::string& value);
  Json forget(const std::string& id);

  /// Says what is due: of branches that are gone.
  void settle() { ledger_.settle(); }
  EffectLog& log() { return *log_; }

 private:
  std::string name(EffectId id) const;
  Json json_of(const Effect& effect) const;
  LedgerHooks hooks();
  EffectId open(const std::string& id, const char* what) const;

  std::string prefix_;  // of ids
  std::shared_ptr<EffectLog> log_;
  Ledger ledger_;
  mutable std::mutex mutex_;  // of what follows; the ledger is not asked meanwhile
  std::uint64_t last_ = 0;
  std::map<EffectId, Effect> open_;  // begun by the ledger, and not ended
};

/// Of all keys; each is made when it is first asked for. Of any thread.
class Effects {
 public:
  explicit Effects(HttpServer& http) : http_(http) {}
  KeyEffects& of(std::uint64_t key, const Session& session);
  void settle();
  /// Ends all streams of events. In the I/O thread.
  void end_streams();

 private:
  std::vector<KeyEffects*> all() const;

  HttpServer& http_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<KeyEffects>> of_key_;
};

}  // namespace dendrite::server
