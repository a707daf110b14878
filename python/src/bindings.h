#pragma once

#include <dendrite/dendrite.h>
#include <nanobind/nanobind.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arguments.h"
#include "gil.h"

// What the parts of the module share. All of it is used with the GIL, but where it says otherwise.
namespace dendrite::python {

class PendingState;
struct PyChunk;
struct SessionState;

/// Use of an engine, or of a session, that was closed, or that a fork of the process inherited.
class EngineClosed : public Error {
 public:
  using Error::Error;
};

/// An engine, until it is closed.
struct EngineState {
  explicit EngineState(Engine loaded) : engine(std::move(loaded)) {}
  ~EngineState() { close(); }
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  /// Whether it belongs to the process that this one was forked from.
  bool is_foreign() const { return made_at != forks(); }
  /// Throws EngineClosed where it is.
  void refuse_fork() const;
  /// Throws EngineClosed.
  Engine& live();
  /// A thread that computes for calls that nobody waits for; the first time it is asked for.
  void start();
  /// Closes its sessions and ends its thread. Without the GIL while it waits.
  void close();

  const int made_at = forks();
  std::optional<Engine> engine;
  std::shared_ptr<const ToolGrammars> grammars;  // once somebody asked for them
  EngineThread thread;
  std::vector<std::weak_ptr<SessionState>> sessions;
  std::unordered_set<PyChunk*> chunks;  // closing empties them
};

/// A chunk's handle in Python.
struct PyChunk {
  PyChunk(std::shared_ptr<EngineState> of, Chunk chunk);
  PyChunk(const PyChunk&) = delete;
  PyChunk& operator=(const PyChunk&) = delete;
  ~PyChunk();

  /// Throws EngineClosed.
  const Chunk& live(const char* what) const;
  bool is_live() const { return own.valid() && !engine->is_foreign(); }

  std::shared_ptr<EngineState> engine;
  Chunk own;
};

/// A branch's handle in Python. Of a session's handles, all are in a list: closing the session
/// empties them, wherever references to them hide.
struct PyBranch {
  PyBranch(std::shared_ptr<SessionState> of, Branch branch);
  /// A handle that is another's, for the time of a callback, see Borrowed.
  PyBranch(std::shared_ptr<SessionState> of, Branch* theirs);
  PyBranch(const PyBranch&) = delete;
  PyBranch& operator=(const PyBranch&) = delete;
  ~PyBranch();

  /// For what reads it, or forks it. Throws BranchEmpty, EngineClosed, or BranchBusy where another
  /// thread's call may empty the handle (DecodeParams::enough).
  Branch& read(const char* what);
  /// For what changes it. Throws BranchBusy where it is in a call.
  Branch& change(const char* what);
  bool is_live() const;

  std::shared_ptr<SessionState> session;
  Branch own;
  Branch* at = &own;
  int calls = 0;                // that it is in
  unsigned long exclusive = 0;  // the thread of one that may empty the handle
  PyBranch* next = nullptr;     // in SessionState::branches
  PyBranch** link = nullptr;    // who points to this

 private:
  void insert();
};

struct SessionState {
  using Closing = std::shared_ptr<std::atomic<bool>>;
  SessionState(std::shared_ptr<EngineState> of, Session made, Closing flag)
      : engine(std::move(of)), session(std::move(made)), closing(std::move(flag)) {}
  ~SessionState();
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;

  /// Throws EngineClosed.
  Session& live();
  /// Ends its calls, prunes its branches. Without the GIL while it waits. Throws BranchBusy in a
  /// callback of one of its calls.
  void close();
  /// Cancels submitted calls that compute on this branch.
  void end_calls_on(const Branch* branch);
  /// All of them.
  void end_calls();
  /// While a thread is in a call. Throws EngineClosed.
  struct InCall {
    explicit InCall(SessionState& session);
    ~InCall();
    SessionState& of;
  };

  std::shared_ptr<EngineState> engine;
  std::optional<Session> session;
  PyBranch* branches = nullptr;
  /// Submitted, and not yet released: with them their branches stay where they are.
  std::unordered_map<PendingState*, std::shared_ptr<PendingState>> pending;
  std::vector<unsigned long> callers;  // threads that are in a call
  const Closing closing;               // asked without the GIL, by the session's poll
};

inline bool PyBranch::is_live() const {
  return at->valid() && !session->engine->is_foreign();
}

/// A session's poll: called between steps by the thread that waits, without the GIL. False where
/// the session is being closed; in the main thread raises what a signal (Ctrl-C) asks for.
std::function<bool()> poll_of(const SessionState::Closing& closing);
/// Of what nobody closes.
std::function<bool()> poll_for_signals();

/// What Python calls a session.
struct PySession {
  std::shared_ptr<SessionState> state;
};

/// Branches that a call computes on: their handles stay where they are until this is gone.
class Marked {
 public:
  Marked() = default;
  /// `enough`: the call may empty handles. Throws as PyBranch::change, and Error where one is of
  /// another session.
  Marked(SessionState& session, nb::handle branches, const char* what, bool enough = false);
  Marked(Marked&& other) noexcept = default;
  Marked& operator=(Marked&& other) noexcept;
  ~Marked() { clear(); }
  void clear();

  std::span<Branch* const> handles() const { return handles_; }

 private:
  std::vector<nb::object> objects_;
  std::vector<Branch*> handles_;
  bool enough_ = false;
};

/// Python handles to branches that are the library's, until this is gone: then they are empty, and
/// what was submitted on them and still runs is cancelled.
class Borrowed {
 public:
  Borrowed(const std::shared_ptr<SessionState>& session, std::span<Branch> branches);
  /// For reading and forking: what would change it throws BranchBusy.
  Borrowed(const std::shared_ptr<SessionState>& session, const Branch& branch);
  ~Borrowed();
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  /// A list of all, or the one.
  nb::list list() const;
  const nb::object& one() const { return objects_.front(); }

 private:
  void add(const std::shared_ptr<SessionState>& session, Branch* branch);
  std::vector<nb::object> objects_;
  bool for_reading_ = false;
};

/// A TokenEvent whose text lives as long as Python wants.
struct OwnedTokenEvent {
  explicit OwnedTokenEvent(const TokenEvent& event)
      : branch(static_cast<std::uint64_t>(event.branch)),
        index(event.index),
        token(event.token),
        text(event.text) {
    if (event.chosen != nullptr) chosen = *event.chosen;
  }
  OwnedTokenEvent(BranchId id, StreamToken of)
      : branch(static_cast<std::uint64_t>(id)),
        index(of.index),
        token(of.token),
        text(std::move(of.text)),
        chosen(std::move(of.chosen)) {}
  std::uint64_t branch;
  std::size_t index;
  Token token;
  std::string text;
  std::optional<ChosenToken> chosen;
};

/// A handle, or a list of them, that Python owns.
nb::object own(const std::shared_ptr<SessionState>& session, Branch branch);
nb::list own(const std::shared_ptr<SessionState>& session, std::vector<Branch> branches);
nb::object own(const std::shared_ptr<SessionState>& session, Chunk chunk);
/// (branch, report), or a list of them.
nb::tuple own(const std::shared_ptr<SessionState>& session, Composed composed);
nb::list own(const std::shared_ptr<SessionState>& session, std::vector<Composed> composed);

// --- conversions
nb::str to_str(std::string_view text);
/// A str's UTF-8, which lives as long as it does. Throws what Python raises.
std::string_view to_view(nb::handle text);
/// A text, which is encoded, or ids. `add_special`: a bool; None: yes, but for what
/// Engine.render_chat gave, in which the template has put what it wants. `what`: as errors call it.
std::vector<Token> to_prompt(const Engine& engine, nb::handle prompt, nb::handle add_special,
                             const char* what);
/// A text, encoded as what follows the branch, or ids.
std::vector<Token> to_continuation(const Branch& branch, nb::handle text_or_ids, const char* what);
/// Throws TypeError.
PyBranch& to_branch(nb::handle object, const std::string& what);
/// The same of several, for each branch.
std::vector<std::vector<std::vector<Token>>> to_continuations(std::span<Branch* const> branches,
                                                              nb::handle continuations);
nb::object to_array(std::vector<Token> tokens);
inline std::uint64_t id_of(BranchId id) {
  return static_cast<std::uint64_t>(id);
}
/// None for kNone.
nb::object parent_of(BranchId id);
/// None: never cancelled.
std::stop_token to_stop_token(nb::handle cancel);
/// Of a dendrite.Constraint. Throws TypeError.
Constraint to_constraint(nb::handle object);
/// Of one or None.
std::optional<Constraint> to_optional_constraint(nb::handle object);
nb::object to_object(const std::optional<Constraint>& constraint);
/// Compiles it without the GIL, which may take milliseconds. Throws ConstraintError.
void check(const Engine& engine, const Constraint& constraint);

// --- the parts of the module
void bind_types(nb::module_& module);
void bind_constraint(nb::module_& module);
void bind_params(nb::module_& module);
void bind_records(nb::module_& module);
void bind_stats(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_tool_grammar(nb::class_<EngineState>& engine);
void bind_measures(nb::module_& module);
void bind_branch(nb::module_& module);
nb::class_<PySession> bind_session(nb::module_& module);
void bind_compose(nb::module_& module, nb::class_<PySession>& session);
void bind_pending(nb::module_& module);
void bind_events(nb::module_& module);
void bind_search(nb::module_& module);
void bind_ledger(nb::module_& module);

}  // namespace dendrite::python
