#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

class Branch;
class Call;
class Chunk;
class ChunkCall;
struct Composed;
class ComposeCall;
class DecodeCall;
class ExpandCall;
class PrefillCall;
class ScoreCall;

/// A call that was submitted (Session::submit_...). It runs along with all other calls of its
/// engine, whenever a thread drives the engine: one that waits in any blocking call or here, one
/// of Engine::start(), or one in Engine::step(). A handle is used by one thread at a time, but for
/// cancel(). It may outlive the session, the engine's handles and the branches it was made from.
/// Dropping it cancels the call.
class Pending {
 public:
  Pending() = default;  ///< empty; valid() is false
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  bool valid() const { return call_ != nullptr; }
  /// Whether it has ended, in whatever way. Never blocks.
  bool done() const;
  /// Until it has ended; drives the engine meanwhile where nobody else does. Throws BranchBusy in a
  /// callback, which must not wait, unless it has ended.
  void wait();
  /// The same, for so long at most. False: it has not ended. (One step may take it past the time.)
  bool wait_for(std::chrono::nanoseconds timeout);
  bool wait_until(std::chrono::steady_clock::time_point time);
  /// From any thread, while the handle lives; waits for nobody. The call takes part in no further
  /// step, and ends with Finish::kCancelled.
  void cancel();
  /// Called once when the call has ended, by the thread that drives; at once, in this thread, if it
  /// has already. Another one given before the end replaces it, and dropping the handle before the
  /// end drops it. It may do what DecodeParams::on_token may; what it throws is ignored.
  void on_done(std::function<void()> callback);

 protected:
  explicit Pending(std::shared_ptr<Call> call);
  /// Throws what the call failed with, and Error the second time.
  void wait_for_result();
  std::shared_ptr<Call> call_;
};

/// One token of a call, kept for whoever asks for it.
struct StreamToken {
  std::size_t index = 0;  ///< of the branch in the call
  std::int64_t step = 0;  ///< of the call, from 0: tokens of one step have the same
  Token token = 0;
  std::string text;  ///< what this token added to the branch's text; may be empty
  /// Its log-probs, with DecodeParams::top_logprobs.
  std::optional<ChosenToken> chosen{};
};

class PendingDecode : public Pending {
 public:
  PendingDecode() = default;
  /// The tokens since the last time, in the order in which they came. Never blocks.
  std::vector<StreamToken> take();
  /// The next token; waits for it as wait() does. nullopt: there is none, the call has ended.
  /// Throws what the call failed with, after its last token.
  std::optional<StreamToken> next();
  /// Waits as wait_for() does, but no longer than until the call has taken part in another step.
  /// False: it has not.
  bool wait_for_step(std::chrono::nanoseconds timeout);
  /// The branches of the call, if it owns them. They may be forked and read at any time; what would
  /// change them (append, another decode) throws BranchBusy while it runs.
  std::span<Branch> branches();
  /// Waits, and returns what each branch generated. Throws what the call failed with, and Error the
  /// second time.
  std::vector<Generation> get();
  /// Those branches, once the call has ended (it waits), however that was. Those that were pruned
  /// are empty. The handle has none afterwards.
  std::vector<Branch> release();

 private:
  friend class Session;
  explicit PendingDecode(const std::shared_ptr<DecodeCall>& call);
  DecodeCall& decode() const;
  std::vector<StreamToken> held_back_;  // by next(), in reverse
};

class PendingPrefill : public Pending {
 public:
  PendingPrefill() = default;
  /// Waits, and returns the prompt's branch. Throws what the call failed with, and Error the second
  /// time.
  Branch get();

 private:
  friend class Session;
  explicit PendingPrefill(const std::shared_ptr<PrefillCall>& call);
};

class PendingScore : public Pending {
 public:
  PendingScore() = default;
  /// Waits, and returns the scores: result[branch][continuation]. Throws what the call failed with,
  /// and Error the second time.
  std::vector<std::vector<Score>> get();

 private:
  friend class Session;
  explicit PendingScore(const std::shared_ptr<ScoreCall>& call);
};

class PendingTokens : public Pending {
 public:
  PendingTokens() = default;
  /// Waits, and returns the likeliest tokens: result[branch][token]. Throws what the call failed
  /// with, and Error the second time.
  std::vector<std::vector<TokenLogprob>> get();

 private:
  friend class Session;
  explicit PendingTokens(const std::shared_ptr<ExpandCall>& call);
};

class PendingCompose : public Pending {
 public:
  PendingCompose() = default;
  /// Waits, and returns what was composed; where pages or budget did not suffice, or the call was
  /// cancelled, its branch's finish() says so. Throws what the call failed with, and Error the
  /// second time.
  Composed get();

 private:
  friend class Session;
  explicit PendingCompose(const std::shared_ptr<ComposeCall>& call);
};

/// The same of several.
class PendingJoins : public Pending {
 public:
  PendingJoins() = default;
  std::vector<Composed> get();

 private:
  friend class Session;
  explicit PendingJoins(const std::shared_ptr<ComposeCall>& call);
};

class PendingChunk : public Pending {
 public:
  PendingChunk() = default;
  /// Waits, and returns the chunk; where it could not be computed, compositions will. Throws what
  /// the call failed with, and Error the second time.
  Chunk get();

 private:
  friend class Session;
  explicit PendingChunk(const std::shared_ptr<ChunkCall>& call);
};

}  // namespace dendrite
