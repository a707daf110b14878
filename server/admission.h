#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "server/metrics.h"
#include "server/service.h"

namespace dendrite::server {

/// What computes, or waits to.
class Admitted {
 public:
  virtual ~Admitted() = default;
  virtual int choices() const = 0;
  virtual int priority() const = 0;
  virtual Caller caller() const = 0;
  /// It may compute now. Any thread, once.
  virtual void run() = 0;
  /// It is not to: its client hears why. Any thread.
  virtual void fail(const Fault& fault) = 0;
};

/// Who may compute, and who waits for a place: higher priority first, then who came first.
class Admission {
 public:
  Admission(const ServerOptions& options, Metrics& metrics)
      : options_(options), metrics_(metrics) {}

  /// True: it has a place. False: it waits, and run() will be called. Throws Fault 429 or 503.
  bool enter(const std::shared_ptr<Admitted>& turn);
  /// Gives the place, or that in line, back.
  void leave(const std::shared_ptr<Admitted>& turn);
  /// None enters any more, and those that wait are told so.
  void refuse();
  /// Those that run, too.
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
  bool has_room(const Admitted& turn) const;
  static void fail(const std::vector<std::shared_ptr<Admitted>>& turns);

  const ServerOptions& options_;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  std::set<std::shared_ptr<Admitted>> running_;
  std::deque<std::shared_ptr<Admitted>> waiting_;
  std::map<std::uint64_t, int> choices_of_key_;
  int choices_ = 0;
  bool closed_ = false;
  std::atomic<std::int64_t> progress_{0};
};

}  // namespace dendrite::server
