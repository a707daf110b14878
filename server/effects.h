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
  /// `saved`: each is held back until show() says that it would survive.
  EffectLog(HttpServer& http, bool saved) : http_(http), saved_(saved) {}

  /// `type`: effect.committed or effect.aborted.
  void add(const char* type, Json effect);
  /// Those behind number `after`. Throws Fault 410 where some of them are no longer kept.
  Json list(std::int64_t after) const;
  /// Writes them, and those that come, until the client goes. In the I/O thread. Throws like list.
  void watch(const Reply& reply, std::int64_t after);
  /// Ends all streams. In the I/O thread.
  void end();

  /// All that is there, held back or not; and its number.
  Json save(std::int64_t& last) const;
  void restore(const Json& saved);
  bool holds_back() const;
  /// Up to this number they may be told.
  void show(std::int64_t last);

 private:
  struct Watcher {
    Reply reply;
    std::int64_t after = 0;
  };
  std::vector<Json> behind(std::int64_t after) const;
  void wake();
  void tell();

  HttpServer& http_;
  const bool saved_;
  mutable std::mutex mutex_;
  std::deque<Json> events_;
  std::int64_t last_ = 0, shown_ = 0;
  std::vector<Watcher> watchers_;  // in the I/O thread
};

/// The effects of one key's branches. Its functions are called while nobody else has the branch.
class KeyEffects {
 public:
  KeyEffects(HttpServer& http, const Session& session, bool saved);
  /// Those of a former process, of the branches that were restored.
  KeyEffects(HttpServer& http, const Session& session, const Json& saved, ConstBranches branches);

  /// What the branch has by this key at its end: begun by this call, and with `value` ended, too,
  /// where it had none. Throws Fault 409 effect_open where there is one that has not ended.
  Json begin(const Branch& branch, const std::string& key, const std::optional<std::string>& value);
  /// All of its path, the first one first; `key`: those by it.
  Json path(const Branch& branch, const std::optional<std::string>& key) const;
  /// What the branch has is final; its path. Throws Fault 409 effect_open.
  Json commit(const Branch& branch);

  /// What `from` has at its end, `branch` has from now on, instead of its own.
  void follow(const Branch& branch, const Branch& from) { ledger_.follow(branch, from); }

  /// By the effect's own id. Throw Fault 404 where there is none, 409 effect_ended.
  Json end(const std::string& id, const std::string& value);
  Json forget(const std::string& id);

  /// What the second constructor takes, and the last event in it. While branches do not change.
  Json save(std::int64_t& last_event);

  /// Says what is due: of branches that are gone.
  void settle() { ledger_.settle(); }
  EffectLog& log() { return *log_; }
  bool has(const std::string& id) const { return id.starts_with(prefix_); }

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
  /// `saved`: events are held back until they are saved.
  Effects(HttpServer& http, bool saved) : http_(http), saved_(saved) {}
  KeyEffects& of(std::uint64_t key, const Session& session);
  /// nullptr: nobody has asked for them.
  KeyEffects* find(std::uint64_t key) const;
  /// Whether the key's effects have ids like this one.
  bool has(const std::string& id, std::uint64_t key) const;
  void restore(std::uint64_t key, const Session& session, const Json& saved,
               ConstBranches branches);
  /// Settles all. Returns the keys that have held back events.
  std::vector<std::uint64_t> settle();
  /// Ends all streams of events. In the I/O thread.
  void end_streams();

 private:
  std::map<std::uint64_t, KeyEffects*> all() const;

  HttpServer& http_;
  const bool saved_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<KeyEffects>> of_key_;
};

}  // namespace dendrite::server
