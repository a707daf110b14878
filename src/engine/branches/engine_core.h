#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "dendrite/engine.h"
#include "engine/branches/callback_threads.h"
#include "engine/branches/engine_counts.h"
#include "engine/branches/event_hub.h"
#include "grammar/grammar_cache.h"
#include "kv/kv_debug.h"
#include "kv/kv_tree.h"
#include "kv/memories.h"
#include "model/drafter.h"
#include "model/info.h"
#include "model/model.h"
#include "model/mtp_head.h"
#include "sample/sampler.h"
#include "step/locks.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace dendrite {

class ChunkCall;
class DraftProviders;
class KnownCompositions;
class StepLoop;
class Stepper;
struct BranchState;
struct SessionCore;

struct PromptKey {
  Salt salt = 0;
  std::span<const Token> tokens;
};
/// Of texts, by salt, then by their first tokens that differ.
struct PromptOrder {
  bool operator()(const PromptKey& a, const PromptKey& b) const {
    if (a.salt != b.salt) return a.salt < b.salt;
    return std::ranges::lexicographical_compare(a.tokens, b.tokens);
  }
};
/// The branches of prompts by their tokens, which their calls own. Among texts in order, the one
/// that agrees longest with another text of its salt is one of its two neighbours.
using PromptsUnderWay = std::multimap<PromptKey, const BranchState*, PromptOrder>;

/// A loaded model, its device and the token tree. Shared by all sessions of an Engine.
///
/// What `compute` and `tree_mutex` guard is written at each member, see locks.h. What has no such
/// mark does not change once the engine is loaded, or is safe to use from several threads.
struct EngineCore {
  EngineInfo info;
  ModelInfo model_info;
  std::uint64_t fingerprint = 0;  // of config and weights: snapshots compare it
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::optional<Tokenizer> tokenizer;
  std::optional<Detokenizer> detokenizer;
  std::optional<ChatTemplate> chat_template;
  std::unique_ptr<GrammarCache> grammars;  // null: no tokenizer
  /// A block drafter or the model's MTP head, which reads along with it, and its pages. Null: there
  /// is none.
  std::unique_ptr<Drafter> drafter;
  std::unique_ptr<MtpHead> mtp;
  std::unique_ptr<KvStore> drafter_store;
  ReadAlong* reader() const {
    if (mtp != nullptr) return mtp.get();
    return drafter.get();
  }
  /// Who drafts for calls that speculate. Null: of a draft model's own engine, where none does.
  std::unique_ptr<DraftProviders> drafts;

  /// Tokens that a branch may have. One that decode or expand brought there ends with kLength.
  std::int64_t position_limit = std::numeric_limits<std::int64_t>::max();
  std::int64_t step_rows = 0;     // of one step, at most: what the model takes; tests set less
  std::int64_t moves_a_step = 0;  // positions whose K and V a step moves, at most
  double step_target_ms = 0;      // of a step with a long request beside others

  CallbackThreads callbacks;
  ComputeMutex compute;
  TreeMutex tree_mutex;
  /// Beside the lock, which every fork touches anyway.
  EventHub events DENDRITE_GUARDED_BY(kTreeLock);
  std::unique_ptr<ThreadPool> workers;  // for sampling
  std::unique_ptr<KvStore> store;
  std::unique_ptr<StateStore> states;  // null: the model has no recurrent layers
  PathStores stores() const {
    return {*store, drafter_store.get(), states.get(), reader() ? reader()->copies() : nullptr};
  }
  /// Null: not in debug mode.
  std::unique_ptr<KvDebug> kv_debug DENDRITE_PT_GUARDED_BY(kTreeLock);
  std::unique_ptr<KvTree> tree DENDRITE_PT_GUARDED_BY(kTreeLock);
  /// Null: switched off.
  std::unique_ptr<PrefixIndex> prefix_index DENDRITE_PT_GUARDED_BY(kTreeLock);
  /// Texts with K and V of their own, for compositions, and what was composed. (Without an index of
  /// prompts nothing composed is remembered, either.)
  std::unique_ptr<ChunkIndex> chunks DENDRITE_PT_GUARDED_BY(kTreeLock);
  std::unique_ptr<ComposedIndex> compositions DENDRITE_PT_GUARDED_BY(kTreeLock);
  std::unique_ptr<KnownCompositions> known_compositions DENDRITE_PT_GUARDED_BY(kTreeLock);
  Memories memories() const { return {prefix_index.get(), compositions.get(), chunks.get()}; }
  /// The loop that all calls are in, and what it turns.
  std::shared_ptr<StepLoop> loop;
  std::shared_ptr<Stepper> stepper;
  std::vector<SessionCore*> sessions DENDRITE_GUARDED_BY(kTreeLock);  // alive
  /// Calls that computed: what "recently used" means.
  std::uint64_t clock DENDRITE_GUARDED_BY(kTreeLock) = 0;
  /// The time, for limits on holds; tests set another.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;

  /// Prompts that are being computed: who comes with the same tokens waits for those.
  PromptsUnderWay prefills DENDRITE_GUARDED_BY(kTreeLock);
  /// The same of chunks.
  std::vector<const ChunkCall*> chunk_calls DENDRITE_GUARDED_BY(kTreeLock);
  /// Places of branches whose exact twins are still to be computed, see SessionCore::begin_exact.
  std::vector<BranchState*> behind DENDRITE_GUARDED_BY(kTreeLock);
  std::atomic<bool> any_behind = false;  // whether that has any, for who has no lock
  /// Tips that calls in progress hold beside those of branches, see CallTips.
  using Tips = std::deque<Tip>;  // their addresses stay
  std::vector<const Tips*> call_tips DENDRITE_GUARDED_BY(kTreeLock);
  /// Debug mode: checks tree and pages, after every operation that changed the tree.
  void debug_check() DENDRITE_REQUIRES(kTreeLock) {
    if (kv_debug != nullptr) [[unlikely]]
      check_all();
  }

  EngineCounts counts DENDRITE_GUARDED_BY(kTreeLock);
  std::uint64_t sessions_made DENDRITE_GUARDED_BY(kTreeLock) = 0;
  /// A session begins and ends.
  void enter(SessionCore& session) DENDRITE_EXCLUDES(kTreeLock);
  void leave(SessionCore& session) DENDRITE_EXCLUDES(kTreeLock);
  /// Counts a step that took `ms`. O(sessions).
  void record_step(double ms, std::int64_t bytes) DENDRITE_REQUIRES(kTreeLock);
  /// Counts a turn, all that it took from asking calls to their tokens. O(sessions).
  void record_turn(double ms, bool made_step) DENDRITE_REQUIRES(kTreeLock);

  EngineCore() = default;
  ~EngineCore();

  void check_all() DENDRITE_REQUIRES(kTreeLock);

  /// By check_moves (move_check.h).
  std::atomic<bool> moves_checked = false;

  const Tokenizer& require_tokenizer() const;
  /// Throws ConstraintError, and Error without a tokenizer.
  std::shared_ptr<const Grammar> compiled(const Constraint& constraint) const;
  /// What chunks without a prefix are computed behind (ChunkParams::stub).
  std::vector<Token> chunk_stub() const;
  std::int64_t vocab() const { return model_info.vocab; }
  /// Throws Error naming the first id outside the vocabulary.
  void check_tokens(std::span<const Token> tokens) const;
};

using MakeBackend = std::function<std::unique_ptr<Backend>(Numerics numerics, int threads)>;
/// What Engine::load does, over a backend of the caller's.
std::shared_ptr<EngineCore> load_core(const std::string& model, const EngineOptions& options,
                                      const MakeBackend& make_backend);

}  // namespace dendrite
