#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "server/metrics.h"
#include "server/turn_state.h"

namespace dendrite::server {

/// Who may compute, and who waits for a place: higher priority first, then who came first.
class Admission {
 public:
  Admission(const ServerOptions& options, Metrics& metrics)
      : options_(options), metrics_(metrics) {}

  /// True: it has a place. False: it waits, and run() will be called. Throws Fault 429 or 503.
  bool enter(const std::shared_ptr<TurnState>& turn);
  /// Gives the place, or that in line, back.
  void leave(const std::shared_ptr<TurnState>& turn);
  /// None enters any more; all that are here are told so.
  void close();
  /// All have left.
  bool empty() const;
  /// Tokens came, or a step of a turn: what runs is not stuck.
  void progress() { progress_ = now(); }
  /// Something runs, and nothing has come for so long.
  bool is_stuck(std::chrono::seconds time) const;
  Metrics& metrics() { return metrics_; }

 private:
  static std::int64_t now();
  bool has_room(const TurnState& turn) const;

  const ServerOptions& options_;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  std::set<std::shared_ptr<TurnState>> running_;
  std::deque<std::shared_ptr<TurnState>> waiting_;
  std::map<std::uint64_t, int> choices_of_key_;
  int choices_ = 0;
  bool closed_ = false;
  std::atomic<std::int64_t> progress_{0};
};

/// The one implementation of Turns.
class EngineTurns final : public Turns {
 public:
  EngineTurns(const ServerOptions& options, Metrics& metrics) : admission_(options, metrics) {}
  /// Before anything else; `service` must outlive it.
  void serve(Service& service);

  Turn start(TurnRequest request, Caller caller, std::shared_ptr<TurnSink> sink) override;
  Session& session(Caller caller) override;
  std::vector<Token> count(const TurnRequest& request) const override;
  Admission& admission() { return admission_; }

 private:
  Service* service_ = nullptr;
  Admission admission_;
  std::mutex mutex_;
  std::map<std::uint64_t, Session> sessions_;
};

}  // namespace dendrite::server
