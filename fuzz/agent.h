#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "fuzz/mirrors.h"
#include "fuzz/verify.h"
#include "fuzz/world.h"

namespace dendrite::fuzz {

class Submitted;

/// What callbacks of agents throw.
struct Thrown {};

/// What cuts short the calls of agents, for any of them to use. Safe from several threads.
class Board {
 public:
  using Cut = std::function<void()>;
  /// `cut` may be called in any thread, at any time, also when its call has ended.
  void add(Cut cut);
  /// Any of those that were added last; nothing where there is none.
  void cut_somebody(Draws& draws);

 private:
  static constexpr std::size_t kMost = 16;

  std::mutex mutex_;
  std::vector<Cut> cuts_;
  std::size_t next_ = 0;
};

/// One branch of a call: what it was before, and what was heard of it since.
struct AgentLane {
  explicit AgentLane(Mirror& of);

  Mirror* mirror = nullptr;
  History before;
  double logprob = 0;  // before
  std::vector<Token> seen{};
  std::string shown{};
  std::vector<std::vector<Token>> forks{};  // tokens of forks that were made meanwhile
  bool pruned = false;
  bool appended = false;  // the token 1, as soon as it had ended
};

/// One of several threads that use one engine at once, with a session of its own: its branches and
/// calls, and what must have come of them. It is used by its own thread, then by that which joined
/// it. Nothing is replayed while it runs, so that its calls do meet others.
class Agent {
 public:
  /// Takes the owner's branches over. Of the world, only what does not change meanwhile is used.
  Agent(World& world, Board& board, Owner& owner, std::span<const std::vector<Token>> prompts,
        std::uint64_t key);
  ~Agent();

  /// So many operations, then an end to all calls.
  void run(std::int64_t operations);
  /// Compares everything with its replay, and hands the branches back. Requires: the thread has
  /// ended.
  void finish(Reference& reference);

  // --- for its operations
  Draws& draws() { return draws_; }
  Board& board() { return board_; }
  Owner& owner() { return owner_; }
  Session& session() { return *owner_.session; }
  const Engine& engine() const { return world_.engine(); }
  Mirrors& mirrors() { return mirrors_; }
  Counts& counts() { return counts_; }
  std::vector<std::unique_ptr<Submitted>>& submitted() { return submitted_; }
  bool full() const;
  std::span<const KnownChunk> chunks() const { return world_.chunks(); }
  /// A branch in no call; null: there is none.
  Mirror* any_idle();
  std::vector<Mirror*> idle();
  /// Some of them that may still grow; perhaps none.
  std::vector<Mirror*> company(std::int64_t most);
  /// Often one that others are given, too.
  std::vector<Token> prompt();
  /// How often the session was given this prompt before; it is now.
  std::uint64_t count_prompt(const std::vector<Token>& prompt,
                             const std::optional<std::uint64_t>& stream);

  /// Something to compare when all have ended.
  void later(std::function<void(Reference&)> check) { checks_.push_back(std::move(check)); }
  /// A call did not give all that was asked for: because of a budget, pages, or somebody's wish.
  void require_reason(bool cancelled);
  /// What a decode call gave this lane; `cancelled`: somebody may have asked for that. The mirror
  /// is brought up to date. False: the branch is gone.
  bool settle(const AgentLane& lane, const Generation& got, const DecodeParams& params,
              bool cancelled);
  /// The call threw, so that nothing is known but the branch's tokens. False: it is gone.
  bool settle_thrown(const AgentLane& lane, const DecodeParams& params);

  template <typename... T>
  void say(const T&... parts) {
    world_.say("  s", owner_.number, ": ", parts...);
  }

 private:
  World& world_;
  Board& board_;
  Owner& owner_;
  std::span<const std::vector<Token>> prompts_;
  Tape tape_;
  Draws draws_;
  Counts counts_;
  Mirrors mirrors_;
  std::vector<std::unique_ptr<Submitted>> submitted_;
  std::vector<std::function<void(Reference&)>> checks_;
};

// Calls that wait, in agent_calls.cpp.
void wait_for_prefill(Agent& agent);
void wait_for_decode(Agent& agent);
void wait_for_decode_step(Agent& agent);
void wait_for_score(Agent& agent);
void wait_for_expand(Agent& agent);
void wait_for_compose(Agent& agent);

}  // namespace dendrite::fuzz
