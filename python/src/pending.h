#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "bindings.h"

namespace dendrite::python {

/// What the engine's thread has to tell an event loop: numbers of calls that have ended or have new
/// tokens. However many come together, the loop is woken once.
class Inbox {
 public:
  /// `wake` is called with the GIL, from any thread. None: whoever reads it asks.
  explicit Inbox(nb::handle wake) : wake_(wake) {}
  /// From any thread, with or without the GIL.
  void post(std::uint64_t number);
  bool empty();
  /// All since the last time.
  std::vector<std::uint64_t> take();

 private:
  std::mutex mutex_;
  std::vector<std::uint64_t> numbers_;
  Callable wake_;
};

/// A submitted call with the Python branches that are in it. The handles of the library are used
/// with the GIL, but for waiting: who waits keeps them, as another thread may drop() the call.
class PendingState : public std::enable_shared_from_this<PendingState> {
 public:
  using Handle = std::variant<PendingDecode, PendingPrefill, PendingScore, PendingTokens,
                              PendingCompose, PendingJoins, PendingChunk>;
  PendingState(std::shared_ptr<SessionState> session, Marked branches);
  ~PendingState();

  /// Once, after it was submitted: from then on its session keeps it, until release().
  void set(Handle handle);
  template <typename T>
  T& as() {
    return std::get<T>(*handle_);
  }
  Pending& pending();
  SessionState& session() { return *session_; }
  const std::shared_ptr<SessionState>& shared_session() { return session_; }
  const Marked& branches() const { return branches_; }
  /// Of the call's branches, also when they are free again.
  BranchId id_of(std::size_t index) const { return ids_[index]; }
  /// It has ended: its branches are free again.
  void release();
  /// The same, and what it has come to goes, however long this object lives.
  void drop();
  /// Cancels, waits without the GIL, and releases. Nothing, if it was released or dropped.
  void cancel_and_wait();
  /// A decode's next step, or its end. Without the GIL, for at most this long.
  void wait_for_step(std::chrono::milliseconds timeout);

 private:
  std::shared_ptr<SessionState> session_;
  Marked branches_;
  std::vector<BranchId> ids_;
  std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
};

/// Submits a call on these branches, by what `how` does: nothing of it is left if that throws.
using Submit = std::function<PendingState::Handle(Session& session, const Marked& branches)>;
std::shared_ptr<PendingState> submit(const PySession& self, Marked branches, const Submit& how);

}  // namespace dendrite::python
