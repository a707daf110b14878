#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

struct EngineCore;

/// What can happen in an engine, and which fields of Event tell more of it. All events of a kind
/// have the same fields; `sequence`, `time_ns` and `session` go with each.
enum class EventKind : std::uint8_t {
  kPrefill,      ///< a prompt became a branch: branch, length, tokens (of them known), pages_used
  kFork,         ///< branch, parent, length (less than the parent's: a rewind), pages_used
  kCopyOnWrite,  ///< a step made copies of shared pages for a branch: branch, copies, tokens (slots
                 ///< that were copied), pages_used
  kStep,         ///< rows, redundant_rows, branches, waiting, copies, pages (taken for it),
                 ///< pages_used, unique_bytes, naive_bytes, ms, ran, waited
  kNoRoom,       ///< a branch got no pages in a step: branch, length, pages (that it needs)
  kFinish,  ///< a prefill or decode call is over for a branch: branch, length, tokens (that the
            ///< call generated), ms (since the call began), finish
  kPrune,   ///< branch, length, pages (that came free), pages_used
  kForget,  ///< the prefix index gave prompts back: pages (that came free), pages_used
  kEvict,   ///< a branch lost K and V to others: branch, length, tokens (lost), pages (that came
            ///< free), pages_used
  kRegenerate,  ///< a step computed again what had been evicted: branch, tokens
  kPreempt,     ///< one that took part in steps gives way: branch, length, pages (that came free)
  kBudget,      ///< the session's budget ended a call: tokens (computed so far), ms (spent so far)
  kCancel,      ///< the caller ended a call: ms (since the call began)
  kSave,        ///< a snapshot was written: branches, bytes, ms
  kRestore,     ///< a snapshot was read: branches, bytes, ms
  kDraft,  ///< a step computed a draft of a branch: branch, length, rows (of the draft), tokens (of
           ///< them accepted), speculate, drafted
  kCompose,  ///< a composition is over: branch, length, kept, moved, repaired, computed (its
             ///< tokens), ms (since the call began), kl (0). Or its error was estimated, or found
             ///< by an audit: the same, with kl, and ms of that
  kChunk,    ///< a chunk was computed: branch, length (with what it is computed behind), tokens, ms
  /// Pages are short: level. At kSoft and kHard also pages_used, once a step each; at kReject
  /// branch, length, pages (that it lacks), tokens (the least kv_tokens with which they would be
  /// free), pages_used.
  kPressure,
  kAllocate,  ///< a step took pages for a branch, for its own tokens or for copies of shared pages:
              ///< branch, length, pages, pages_used
  kCall,      ///< a call is over: call, branches, rows, tokens (that it generated), queued_ms,
              ///< first_token_ms, ms (since it began), tokens_per_second, finish
};
inline constexpr int kEventKinds = 21;

/// "prefill", "fork", "copy_on_write", "step", ...
const char* name_of(EventKind kind);

/// How short pages are, from the least to the most.
enum class Pressure : std::uint8_t {
  kSoft,    ///< remembered prompts, compositions and chunks that nobody holds go; no branch loses
            ///< anything
  kHard,    ///< nothing is left to forget: branches lose K and V, and each of them is told of by
            ///< kEvict, one that runs by kPreempt as well
  kReject,  ///< even so there are too few: a branch's call ends with Finish::kBudget.
            ///< Session::shortage() says who holds the pages and what would help
};
/// "soft", "hard" or "reject"
const char* name_of(Pressure level);

/// What the caller asked for: expand() is kNextTokens, settle() is kPrefill, and edit(), compact()
/// and join() are kCompose.
enum class CallKind : std::uint8_t {
  kPrefill,
  kDecode,
  kScore,
  kNextTokens,
  kDistributions,
  kCompose,
  kChunk,
  kEmbed
};
/// "prefill", "decode", "score", "next_tokens", "distributions", "compose", "chunk" or "embed"
const char* name_of(CallKind kind);

/// A set of kinds.
using EventMask = std::uint32_t;
template <typename... Kinds>
constexpr EventMask mask_of(Kinds... kinds) {
  return ((EventMask{1} << static_cast<unsigned>(kinds)) | ... | EventMask{0});
}
inline constexpr EventMask kAllEvents = (EventMask{1} << kEventKinds) - 1;

/// A token of a draft (DecodeParams::speculate) that got a row.
struct DraftedToken {
  Token token = 0;
  std::int32_t parent = -1;  ///< its place among them; -1: it follows what the branch had
  bool accepted = false;     ///< it was drawn
};

/// One thing that happened. What the kind does not use is 0.
struct Event {
  EventKind kind = EventKind::kStep;
  /// Of a call: kCancelled or kBudget where any of its branches ended so, else that of the branch
  /// that ended last, and kRunning for calls that generate nothing and have done all.
  Finish finish = Finish::kRunning;
  std::uint64_t sequence = 0;         ///< counts the events of the engine that anybody listened to
  std::int64_t time_ns = 0;           ///< std::chrono::steady_clock
  std::uint64_t session = 0;          ///< sessions of an engine count from 1; 0: none in particular
  BranchId branch = BranchId::kNone;  ///< unique within the session
  BranchId parent = BranchId::kNone;
  std::int64_t length = 0;  ///< tokens of the branch
  std::int64_t tokens = 0;
  std::int64_t rows = 0;            ///< that went through the model
  std::int64_t redundant_rows = 0;  ///< of them: K and V were held already
  std::int64_t branches = 0;
  std::int64_t waiting = 0;  ///< branches that wanted to run in this step and got no room
  std::int64_t copies = 0;   ///< of pages, on write
  std::int64_t pages = 0;
  std::int64_t pages_used = 0;  ///< of the pool, afterwards
  /// Bytes of all pages in use, each once: those of every session of the engine, of remembered
  /// prompts, and what the step itself reserved.
  std::int64_t unique_bytes = 0;
  /// Bytes that the live branches of all sessions would take, had each pages of its own for all of
  /// its tokens. Remembered prompts are not in it.
  std::int64_t naive_bytes = 0;
  std::int64_t bytes = 0;  ///< of a file
  std::int64_t kept = 0;   ///< these four as in Composition
  std::int64_t moved = 0;
  std::int64_t repaired = 0;
  std::int64_t computed = 0;
  double ms = 0;
  /// Since the call began, until the first step that computed a row of it, or its first token where
  /// that took no step; all of `ms` where there was neither.
  double queued_ms = 0;
  double first_token_ms = 0;     ///< since the call began; 0: it generated none
  double tokens_per_second = 0;  ///< tokens / ms of the call
  CallKind call = CallKind::kPrefill;
  Pressure level = Pressure::kSoft;
  double kl = 0;                          ///< Estimate::kl_mean
  Speculate speculate = Speculate::kOff;  ///< who proposed
  /// Parents before their children. Valid during the call of the reader, as those below are.
  std::span<const DraftedToken> drafted{};
  /// Whose requests the step served and whose it could not.
  std::span<const BranchId> ran{};
  std::span<const BranchId> waited{};
};

/// The event as one JSON object without a line break: "sequence", "time_ns", "event" (the kind's
/// name), "session", then the kind's fields.
std::string to_json_line(const Event& event);

/// A reader stays subscribed while this lives. Move-only; it does not keep the engine alive.
class EventSubscription {
 public:
  EventSubscription() = default;
  EventSubscription(EventSubscription&& other) noexcept
      : engine_(std::move(other.engine_)), id_(std::exchange(other.id_, 0)) {}
  EventSubscription& operator=(EventSubscription&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~EventSubscription() { off(); }

  /// No call of the reader begins, or is under way, once this has returned. Not from a reader.
  void off();
  bool active() const { return id_ != 0; }

 private:
  friend class Engine;
  EventSubscription(std::weak_ptr<EngineCore> engine, std::uint64_t id)
      : engine_(std::move(engine)), id_(id) {}

  std::weak_ptr<EngineCore> engine_;
  std::uint64_t id_ = 0;
};

/// An event with lists of its own, which copies share.
struct StoredEvent : Event {
  explicit StoredEvent(const Event& event);

 private:
  struct Lists;
  std::shared_ptr<const Lists> lists_;
};

/// Events kept for threads that take them in their own time, see Engine::events. Who causes events
/// never waits for those: where there is no room, later ones are dropped and counted. Move-only; it
/// does not keep the engine alive. Any thread may use it, but for moves.
class EventQueue {
 public:
  EventQueue() = default;  ///< empty and closed
  EventQueue(EventQueue&&) noexcept = default;
  EventQueue& operator=(EventQueue&& other) noexcept;
  ~EventQueue();

  /// All that have come since the last time, in order. Never blocks.
  std::vector<StoredEvent> take();
  /// The same, once there is one; waits so long at most. None at once when it is closed.
  std::vector<StoredEvent> wait_for(std::chrono::nanoseconds timeout);
  /// Events that found no room so far.
  std::uint64_t dropped() const;
  /// No more will come, and who waits is woken; what is there can still be taken. So it is when the
  /// engine has ended, too. Not from a reader of Engine::on_event.
  void close();
  bool closed() const;

 private:
  friend class Engine;
  struct Shared;
  explicit EventQueue(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::shared_ptr<Shared> shared_;
};

}  // namespace dendrite
