#pragma once

#include <chrono>
#include <concepts>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dendrite/compose.h"
#include "dendrite/distribution.h"
#include "dendrite/engine.h"
#include "dendrite/pending.h"

namespace dendrite {

struct BranchState;
struct Internals;
struct SessionCore;

struct ForkOptions {
  /// Its random stream. Default: one that nothing else has, of the parent's stream, the fork's
  /// length, and how many forks by this default the parent has had, kept or dropped. The parent's
  /// own stream makes a fork that draws what the parent would.
  std::optional<std::uint64_t> stream{};
};

/// One path of the token tree that can decode: its KV, random stream, stop and text state, by one
/// handle. Move-only; copying is spelled fork(). Dropping it frees the pages that only it held.
/// A handle is used by one thread at a time; different handles may be used from different threads.
class Branch {
 public:
  Branch() = default;  ///< empty; valid() is false
  Branch(Branch&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Branch& operator=(Branch&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Branch() { prune(); }

  bool valid() const { return state_ != nullptr; }
  BranchId id() const;
  BranchId parent() const;  ///< the branch it was forked from, kNone for a prefilled one

  /// Another branch at the same point, with a random stream of its own. O(1) whatever the length
  /// and depth; no page is touched until one of the two writes.
  Branch fork(const ForkOptions& options = {});
  std::vector<Branch> fork(int count);
  /// A fork from the past: the first `length` tokens, in constant time too. Throws Error unless 0 <
  /// length <= length().
  Branch at(std::int64_t length, const ForkOptions& options = {});

  /// Adds tokens without computing them; they are computed with the next step that needs them.
  /// Text is encoded by encode(). Throws Error, and adds none, where the branch's constraint
  /// refuses one.
  void append(std::string_view text);
  void append(std::span<const Token> tokens);

  /// From here on its text must be what the constraint says: decode, expand, select and strategies
  /// take no token that could not be part of it, append refuses others, and score gives them
  /// -infinity. Where the text can only end, decode ends with kStop before anything is drawn. Forks
  /// inherit it with all that has been matched, O(1); at() restores what held in the past. Another
  /// one replaces it. Throws ConstraintError, see Engine::check.
  void constrain(const Constraint& constraint);
  /// The same from token `begin` on: what the branch has from there is matched first, for example
  /// where it was composed of what had been under the constraint. O(those tokens). False, and
  /// nothing changes, where the constraint refuses one of them or that comes to a limit of work.
  /// Throws Error unless 0 <= begin <= length(), too.
  [[nodiscard]] bool constrain_from(const Constraint& constraint, std::int64_t begin);
  /// Free again.
  void unconstrain();
  /// What it is under now.
  std::optional<Constraint> constraint() const;
  /// The first token that this holds for; length(): none so far. nullopt: it is free.
  std::optional<std::int64_t> constraint_begin() const;
  /// Its text is whole: it may end here. True where there is no constraint.
  bool is_accepted() const;
  /// The tokens that decode, expand, next_tokens and append take next under its constraint, in
  /// ascending order; end-of-sequence tokens are among them where the text may end. None: the text
  /// can only end and the model has no token for that, or it is a dead end (is_accepted tells
  /// which). nullopt: there is no constraint. What DecodeParams add for one call (constraint,
  /// logit_bias) is not in it. O(vocabulary); nothing is computed by the model.
  std::optional<std::vector<Token>> allowed_tokens() const;

  /// Frees what only this branch held; the handle is empty afterwards.
  void prune();

  /// Who goes first when not all fit into a step: higher ones, though a small part of the rows goes
  /// to who has waited long. And who gives way when KV pages run out: lower ones first. 0 to begin
  /// with, forks inherit it. A branch that gave way keeps its tokens and state, and its K and V are
  /// computed again, to the same bits, when it is used next.
  void set_priority(int priority);
  int priority() const;

  /// Keeps the K and V that the branch has from being evicted while it waits, for a tool or a
  /// person, until `limit` has passed or release() is called; another hold replaces the limit. For
  /// what cannot run without those pages a call ends with Finish::kBudget at once, and the
  /// session's shortage() tells how many are on hold. A branch in a call that computes gives way
  /// like any other. Forks do not inherit it; snapshots do not keep it. Throws Error unless limit >
  /// 0.
  void hold(std::chrono::milliseconds limit);
  void release();

  /// The tokens of a text as what follows the branch, see Engine::encode_after.
  std::vector<Token> encode(std::string_view text) const;

  std::int64_t length() const;  ///< tokens, prompt included
  std::vector<Token> tokens() const;
  Token last_token() const;
  std::int64_t prompt_length() const;  ///< tokens that prefill was given
  std::string text() const;            ///< of all tokens after the prompt, without special tokens
  /// Sum over the tokens that decode, expand or select chose, the model's own; one that a
  /// constraint left no choice about adds nothing. at() starts it afresh.
  double logprob() const;
  Finish finish() const;         ///< how its last decode call ended
  std::uint64_t stream() const;  ///< its random stream; pass to prefill or fork to replay it
  BranchStats stats() const;     ///< O(pages and segments of the branch)
  /// What it is composed of: all of its path. O(pieces and segments).
  Composition composition() const;

  /// Log-probs of continuations, in one pass over their common prefixes; the branch is unchanged.
  /// Texts are encoded by encode(). From the first token on that the branch's constraint refuses,
  /// and in sum, they are -infinity; all others are the model's own.
  std::vector<Score> score(const std::vector<std::string>& continuations,
                           const ScoreParams& params = {});
  std::vector<Score> score_tokens(const std::vector<std::vector<Token>>& continuations,
                                  const ScoreParams& params = {});
  /// What its next token is drawn from; computed where that has not been done. Not valid, and
  /// finish() says why, when budget or pages forbid it.
  Distribution distribution();
  /// Scores the options, appends the likeliest (ties: the first) and returns its index. nullopt,
  /// and nothing appended, when budget or pages forbid it, or its constraint refuses all.
  std::optional<std::size_t> select(const std::vector<std::string>& options);

 private:
  friend struct Internals;
  explicit Branch(BranchState* state) : state_(state) {}
  BranchState* state_ = nullptr;
};

/// Several branches that stay where they are: an array of handles, or one of pointers to them, of
/// which none may be null. A view, as cheap as a span; what it views must outlive the call.
template <typename B>
class BranchView {
 public:
  BranchView() = default;
  template <typename Handles>
  requires std::convertible_to<Handles&&, std::span<B>> BranchView(
      Handles&& handles) {  // NOLINT: meant to be implicit
    const std::span<B> all = std::forward<Handles>(handles);
    handles_ = all.data();
    size_ = all.size();
  }
  template <typename Pointers>
  requires std::convertible_to<Pointers&&, std::span<B* const>> &&
      (!std::convertible_to<Pointers&&, std::span<B>>)
          BranchView(Pointers&& pointers) {  // NOLINT: meant to be implicit
    const std::span<B* const> all = std::forward<Pointers>(pointers);
    pointers_ = all.data();
    size_ = all.size();
  }

  template <typename Other>
  requires(std::is_const_v<B>&& std::same_as<Other, std::remove_const_t<B>>)
      BranchView(const BranchView<Other>& other)  // NOLINT: meant to be implicit
      : handles_(other.handles_), pointers_(other.pointers_), size_(other.size_) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  B& operator[](std::size_t i) const { return handles_ != nullptr ? handles_[i] : *pointers_[i]; }
  class Iterator {
   public:
    Iterator(const BranchView& view, std::size_t place) : view_(view), place_(place) {}
    B& operator*() const { return view_[place_]; }
    Iterator& operator++() {
      ++place_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return place_ == other.place_; }

   private:
    const BranchView& view_;
    std::size_t place_;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size_}; }
  std::vector<B*> pointers() const {
    std::vector<B*> out(size_);
    for (std::size_t i = 0; i < size_; ++i) out[i] = &(*this)[i];
    return out;
  }

 private:
  friend class BranchView<const B>;
  B* handles_ = nullptr;
  B* const* pointers_ = nullptr;
  std::size_t size_ = 0;
};
using Branches = BranchView<Branch>;
using ConstBranches = BranchView<const Branch>;

/// A branch that was composed. Where pages or budget did not suffice, or the call was cancelled,
/// branch.finish() says so; its tokens are there.
struct Composed {
  Branch branch;
  Composition report;
};

/// Running out ends calls with Finish::kBudget and disturbs nobody else.
struct Budget {
  std::int64_t tokens = 0;  ///< rows computed; 0: no limit
  double milliseconds = 0;  ///< spent inside calls; 0: no limit
};

/// What is drawn depends on the seed, and on a branch's random stream, its tokens and parameters. A
/// branch that was discarded leaves no trace in it, but for prompts and forks that are asked for
/// again: those draw afresh.
struct SessionOptions {
  std::uint64_t seed = 0;
  Budget budget{};
  std::uint64_t stream =
      0;              ///< tells sessions of one seed apart: those with the same draw the same
  double weight = 1;  ///< > 0: its part of a step's rows where those are short, against others'
  /// Called by each thread that waits in a blocking call of the session (strategies make such, too;
  /// a Pending's wait is none): between two steps or while it sleeps, 50 ms after the thread's last
  /// time. No lock is held, and it may do what DecodeParams::on_token may. False: the call ends
  /// with kCancelled. What it throws ends the call as well and comes out of it. For what interrupts
  /// a program: a signal, a request that is gone.
  std::function<bool()> poll{};
};

struct PrefillOptions {
  /// Its random stream, for example to continue that of another branch. Default: one of the
  /// session's seed and stream, the prompt's tokens, and how often the session was given these
  /// tokens by this default before.
  std::optional<std::uint64_t> stream{};
  /// Pages are shared, and found, among prompts of one salt alone, so that nobody who has another
  /// learns by the time that a prompt takes whether it was computed before. No result depends on
  /// it. Forks, and what is composed of a branch, have the branch's; chunks have none.
  std::string salt{};
  bool add_special = true;   ///< text only: BOS and the like, as the tokenizer says
  std::stop_token cancel{};  ///< cancelled: the branch holds its tokens, not all computed
};

struct ExpandParams {
  int top = 0;          ///< at most this many children; 0: no limit, then min_prob must be > 0
  double min_prob = 0;  ///< only tokens with at least this probability (raw distribution)
  std::stop_token cancel{};
};

/// What goes into a snapshot beside branches.
struct SaveOptions {
  /// The caller's own text, for whom Restored has it: what goes with the branches and must not be
  /// lost or changed without them.
  std::string attachment{};
  /// false: no K and V, nor states of recurrent layers; they are computed again when next needed.
  bool kv = true;
};

/// One agent's tree with its budget. Calls may come from several threads, and those that compute
/// share their steps with all others of the engine; forks, drops and statistics wait for none.
/// While a branch is in a call, it may be forked and read; what would change it throws BranchBusy,
/// and pruning it takes it out of the call. Keep the handles or the session: each keeps the tree
/// alive.
///
/// An empty handle throws BranchEmpty, and one that decode, score, next_tokens or expand are given
/// twice, or of another session, Error.
class Session {
 public:
  explicit Session(const Engine& engine, const SessionOptions& options = {});

  /// Computes a prompt and returns its branch. Pages of a prompt's longest known prefix are reused.
  /// Throws Error for an empty prompt, an id outside the vocabulary or a prompt that can never fit.
  Branch prefill(std::string_view text, const PrefillOptions& options = {});
  Branch prefill(std::span<const Token> tokens, const PrefillOptions& options = {});

  // Context that is composed (compose.h). None of these changes a branch that it is given: each
  // returns a new one, with a random stream of its own and without text or constraint, whose
  // prompt_length is its length.

  /// Text, stripped of white space at both ends and with LF for CR LF, encoded as what follows a
  /// line end, or tokens as they are; computed at once. The same content behind the same context is
  /// one chunk, whoever registers it. Throws Error for text that is empty or no UTF-8.
  Chunk register_chunk(std::string_view text, const ChunkParams& params = {});
  Chunk register_chunk(std::span<const Token> tokens, const ChunkParams& params = {});
  /// The pieces one after the other. Rows are computed for text, repairs and the last token alone;
  /// of what was composed before, and is still there, none. Throws Error for an empty composition,
  /// a span outside of its branch, and a model whose K cannot be moved.
  Composed compose(std::span<const Piece> pieces, const ComposeParams& params = {});
  /// compose() and decode().
  Generation generate_from_chunks(std::span<const Piece> pieces, const DecodeParams& params = {},
                                  const ComposeParams& compose_params = {});
  /// The branch with spans dropped, replaced or moved, in ascending order and apart from each
  /// other. What is before the first is shared; behind it nothing is exact, in no mode but kExact:
  /// what is kept remembers what was dropped. Where a fact was corrected, or a secret removed, use
  /// kExact.
  Composed edit(const Branch& branch, std::span<const Edit> edits,
                const ComposeParams& params = {});
  /// The branch with these spans alone; `summary` goes where the first gap is.
  Composed compact(const Branch& branch, std::span<const Span> keep, std::string_view summary = {},
                   const ComposeParams& params = {});
  /// What the siblings have in common, then each one's own tokens in this order. The first one's
  /// are shared, the others' moved, or computed in one batch (kExact).
  Composed join(ConstBranches siblings, const JoinParams& params = {});
  /// Several joins, whose rows share their steps.
  std::vector<Composed> join_many(std::span<const std::vector<const Branch*>> groups,
                                  const JoinParams& params = {});
  /// The branch of the same tokens that nothing was moved to.
  Branch settle(const Branch& branch, std::stop_token cancel = {});
  /// How far the branch is from that one, after its last 32 tokens. Nothing changes, and where the
  /// exact one's K and V are held they are not computed.
  Estimate audit(Branch& branch, std::stop_token cancel = {});

  /// Generates on all branches in one batch: shared pages are read once a step. The results are in
  /// the order of the span and do not depend on it, nor on who else is in it.
  ///
  /// `ahead`: branches that will probably be decoded next, with the same parameters. Where steps
  /// have slack (DecodeParams::slack), their tokens are drawn along with the others', in pages that
  /// nobody wants, and kept aside: these branches do not change, on_token and `enough` hear
  /// nothing. A later decode that would draw the same takes the tokens over as though it had drawn
  /// them; other sampling parameters, or a change of the branch, drop them without trace. So
  /// nothing but time depends on it. Their rows count against the budget when they are taken over.
  /// The call ends when `branches` have; where there are none, when all of `ahead` have, when no
  /// page is left for them, or when `cancel` says so: for the time in which a tool or a judge
  /// works.
  std::vector<Generation> decode(Branches branches, const DecodeParams& params = {},
                                 Branches ahead = {});
  Generation decode(Branch& branch, const DecodeParams& params = {});
  /// One token; nullopt when budget, pages or cancellation forbid it (see branch.finish()).
  std::optional<Token> decode_step(Branch& branch, const DecodeParams& params = {});

  /// Log-probs of the same continuations after each of several branches, in one batch:
  /// result[branch][continuation].
  std::vector<std::vector<Score>> score(Branches branches,
                                        const std::vector<std::string>& continuations,
                                        const ScoreParams& params = {});
  std::vector<std::vector<Score>> score_tokens(Branches branches,
                                               const std::vector<std::vector<Token>>& continuations,
                                               const ScoreParams& params = {});
  /// The same where each branch has continuations of its own: continuations[branch][continuation].
  std::vector<std::vector<Score>> score_tokens_of_each(
      Branches branches, const std::vector<std::vector<std::vector<Token>>>& continuations,
      const ScoreParams& params = {});

  /// The likeliest tokens of each branch's next-token distribution (raw logits), likeliest first
  /// (ties: lowest id). All distributions are computed in one batch; no branch is made or changes.
  /// result[branch][token]; a branch whose distribution could not be computed has none and says why
  /// in finish().
  std::vector<std::vector<TokenLogprob>> next_tokens(ConstBranches branches,
                                                     const ExpandParams& params);
  /// The next-token distributions themselves, all computed in one batch: for samplers, masks and
  /// measures of one's own. result[branch]; not valid where it could not be computed, and finish()
  /// of the branch says why. No branch changes.
  std::vector<Distribution> distributions(Branches branches, std::stop_token cancel = {});
  /// Children of each branch, one for each of its tokens: forks with that token appended, and its
  /// log-prob counted. Computes nothing. Their random streams depend on the parent's, its length
  /// and the token alone, so they shift no other branch's, and asked for twice they draw the same;
  /// fork the parent, and ask for the fork's, to draw otherwise.
  std::vector<std::vector<Branch>> children(ConstBranches branches,
                                            std::span<const std::vector<TokenLogprob>> tokens);
  /// Children for the likeliest tokens: both of these.
  std::vector<std::vector<Branch>> expand(Branches branches, const ExpandParams& params);

  // The same calls without waiting: each runs along with all others, and what comes of it is asked
  // of its handle. Their callbacks are called by the thread that drives, and hold up all others.

  /// Branches are the call's until PendingDecode::release.
  PendingDecode submit_decode(std::vector<Branch> branches, const DecodeParams& params = {});
  PendingDecode submit_decode(Branch branch, const DecodeParams& params = {});
  /// The handles stay their owner's, and where they are until they are pruned or the call has
  /// ended. They may be forked, read and pruned meanwhile; but where `enough` is given, which
  /// empties handles in the thread that drives, only in the call's callbacks.
  PendingDecode submit_decode(Branches branches, const DecodeParams& params = {});
  PendingPrefill submit_prefill(std::string_view text, const PrefillOptions& options = {});
  PendingPrefill submit_prefill(std::span<const Token> tokens, const PrefillOptions& options = {});
  /// The branches stay their owner's, who may fork and read them meanwhile, and prune them: the
  /// call goes on without. They are in it until it has ended or, where its handle was dropped,
  /// until the step under way has.
  PendingScore submit_score(Branches branches, const std::vector<std::string>& continuations,
                            const ScoreParams& params = {});
  PendingScore submit_score_tokens(Branches branches,
                                   const std::vector<std::vector<Token>>& continuations,
                                   const ScoreParams& params = {});
  PendingScore submit_score_tokens_of_each(
      Branches branches, const std::vector<std::vector<std::vector<Token>>>& continuations,
      const ScoreParams& params = {});
  /// The same of next_tokens.
  PendingTokens submit_next_tokens(ConstBranches branches, const ExpandParams& params);
  /// The same of what composes context, one call each. What they are given is read before they
  /// return; branches may change, and go, from then on. Throw Error unless target_kl is 0: that
  /// takes several calls, as audit does. (Of generate_from_chunks: submit_decode with the branch.)
  PendingCompose submit_compose(std::span<const Piece> pieces, const ComposeParams& params = {});
  PendingCompose submit_edit(const Branch& branch, std::span<const Edit> edits,
                             const ComposeParams& params = {});
  PendingCompose submit_compact(const Branch& branch, std::span<const Span> keep,
                                std::string_view summary = {}, const ComposeParams& params = {});
  PendingCompose submit_join(ConstBranches siblings, const JoinParams& params = {});
  PendingJoins submit_join_many(std::span<const std::vector<const Branch*>> groups,
                                const JoinParams& params = {});
  PendingPrefill submit_settle(const Branch& branch, std::stop_token cancel = {});
  PendingChunk submit_register_chunk(std::string_view text, const ChunkParams& params = {});
  PendingChunk submit_register_chunk(std::span<const Token> tokens, const ChunkParams& params = {});

  /// Prunes branches of this session, for about half of what one by one costs where they are many;
  /// empty ones are skipped. Throws Error, and prunes none, if one belongs to another session.
  void prune(Branches branches);

  /// Runs a search strategy from a prompt: any type that has a member `cancel` and a free function
  /// `run(Session&, Branch root, const Strategy&)` in its own namespace; see search.h.
  /// `constraint`: what each text of the search must be, from the prompt on (constrain of the
  /// root).
  template <typename Strategy>
  auto run_tree(const Strategy& strategy, std::string_view prompt,
                const std::optional<Constraint>& constraint = std::nullopt) {
    Branch root = prefill(prompt, {.cancel = strategy.cancel});
    if (constraint) root.constrain(*constraint);
    return run(*this, std::move(root), strategy);
  }

  /// Writes branches of this session (empty: all that live, by id) to one file, for
  /// Engine::restore: tokens, K and V (shared pages once), random streams, budget, counters. A
  /// branch that is restored goes on as it would have without. Not in the file: distributions,
  /// which cost one row a branch to compute again, holds, tokens drawn ahead, the session's weight,
  /// and parameters of decode. `file` is replaced as a whole or not at all, whatever happens
  /// meanwhile. Other calls wait for it, between two of their steps. Throws Error in a callback,
  /// and naming the file: not writable, or being saved to by another.
  void save(const std::filesystem::path& file, ConstBranches branches = {},
            const SaveOptions& options = {});
  /// The bytes that such a file would have, in memory, for about the time of a copy.
  std::vector<std::byte> snapshot(ConstBranches branches = {}, const SaveOptions& options = {});

  Engine engine() const;
  std::uint64_t number() const;  ///< among the engine's sessions, from 1: Event::session
  std::uint64_t seed() const;
  Stats stats() const;
  /// Why a call of this session last ended for want of KV pages; nullopt: none ever did.
  std::optional<KvShortage> shortage() const;

 private:
  friend struct Internals;
  explicit Session(std::shared_ptr<SessionCore> core) : core_(std::move(core)) {}
  std::shared_ptr<SessionCore> core_;
};

/// What Engine::restore read.
struct Restored {
  Session session;               ///< with the seed, budget and counters of the saved one
  std::vector<Branch> branches;  ///< in the order in which they were saved, with the same ids
  bool kv_restored = false;      ///< false: K and V will be computed again; `note` says why
  std::string note;              ///< for people; empty when all came back
  std::string attachment;        ///< SaveOptions::attachment, from outside like all of it
};

}  // namespace dendrite
