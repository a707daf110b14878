#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/parallel.h"
#include "dendrite/engine.h"
#include "engine/early_step.h"
#include "engine/event_hub.h"
#include "engine/locks.h"
#include "engine/logits_pool.h"
#include "engine/step_plan.h"
#include "engine/step_times.h"
#include "kv/kv_debug.h"
#include "kv/kv_tree.h"
#include "kv/prefix_index.h"
#include "model/model.h"
#include "sample/sampler.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace dendrite {

/// Counts of one step, for the session that asked for it.
struct StepReport {
  std::int64_t rows = 0;            // computed
  std::int64_t redundant_rows = 0;  // of them: K and V were held when the step was planned
  std::int64_t copies_on_write = 0;
  std::int64_t pages_acquired = 0;
  std::int64_t evictions = 0;         // segments that lost K and V to make room
  std::int64_t preemptions = 0;       // requests of the step among those that lost them
  std::int64_t regenerated_rows = 0;  // computed before, evicted, and now computed again
  /// Computed for nothing, beside `rows`: begun before it was known that the branch ends.
  std::int64_t discarded_rows = 0;
  bool stale = false;  // ... or that it would be forked
  bool early = false;  // the step began with the one before it
};

/// What a step may compute.
struct StepLimits {
  std::int64_t rows = 0;  // of requests that are not optional
  /// With optional rows it may take so many times as long as without, as far as can be foreseen.
  double slack = 1;
};

struct SessionCore;

/// A loaded model, its device and the token tree. Shared by all sessions of an Engine.
///
/// What `compute` and `tree_mutex` guard is written at each member, see locks.h. What has no such
/// mark does not change once the engine is loaded, or is safe to use from several threads.
struct EngineCore {
  EngineInfo info;
  DecoderConfig config;
  std::uint64_t fingerprint = 0;  // of config and weights: snapshots compare it
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::optional<Tokenizer> tokenizer;
  std::optional<Detokenizer> detokenizer;
  std::optional<ChatTemplate> chat_template;

  std::int64_t step_rows = 0;  // of one step, at most: what the model takes; tests set less

  ComputeMutex compute;
  TreeMutex tree_mutex;
  /// Beside the lock, which every fork touches anyway.
  EventHub events DENDRITE_GUARDED_BY(kTreeLock);
  std::unique_ptr<ThreadPool> workers;  // for sampling
  std::unique_ptr<KvStore> store;
  LogitsPool logits_pool DENDRITE_GUARDED_BY(kTreeLock);
  /// Where draw_kept() and log_probs() bring rows.
  std::unique_ptr<Buffer> kept_rows DENDRITE_PT_GUARDED_BY(kComputeLock);
  /// Null: not in debug mode.
  std::unique_ptr<KvDebug> kv_debug DENDRITE_PT_GUARDED_BY(kTreeLock);
  std::unique_ptr<KvTree> tree DENDRITE_PT_GUARDED_BY(kTreeLock);
  /// Null: switched off.
  std::unique_ptr<PrefixIndex> prefix_index DENDRITE_PT_GUARDED_BY(kTreeLock);
  /// Reused by every step.
  std::unique_ptr<StepPlan> plan DENDRITE_PT_GUARDED_BY(kComputeLock);
  EarlyStep early_step DENDRITE_GUARDED_BY(kComputeLock){*this};
  std::unique_ptr<StepTimes> step_times DENDRITE_PT_GUARDED_BY(kTreeLock) =
      std::make_unique<StepTimes>();
  std::vector<SessionCore*> sessions DENDRITE_GUARDED_BY(kTreeLock);  // alive
  /// Calls that computed: what "recently used" means.
  std::uint64_t clock DENDRITE_GUARDED_BY(kTreeLock) = 0;
  /// The time, for limits on holds; tests set another.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;

  /// Tips that calls in progress hold beside those of branches.
  std::vector<const std::vector<std::unique_ptr<Tip>>*> call_tips DENDRITE_GUARDED_BY(kTreeLock);
  /// Debug mode: checks tree and pages, after every operation that changed the tree.
  void debug_check() DENDRITE_REQUIRES(kTreeLock) {
    if (kv_debug != nullptr) [[unlikely]]
      check_all();
  }

  // --- for EngineStats and events
  std::uint64_t sessions_made DENDRITE_GUARDED_BY(kTreeLock) = 0;
  Stats ended_sessions DENDRITE_GUARDED_BY(kTreeLock);           // sums over those that are gone
  double step_ms DENDRITE_GUARDED_BY(kTreeLock) = 0;             // spent in steps
  PassCounts pass_counts DENDRITE_GUARDED_BY(kTreeLock);         // of the backend, at the last step
  std::int64_t unique_bytes DENDRITE_GUARDED_BY(kTreeLock) = 0;  // at the last step, as in Event
  std::int64_t naive_bytes DENDRITE_GUARDED_BY(kTreeLock) = 0;
  /// A session begins and ends.
  void enter(SessionCore& session) DENDRITE_EXCLUDES(kTreeLock);
  void leave(SessionCore& session) DENDRITE_EXCLUDES(kTreeLock);
  /// Counts a step that took `ms`. O(sessions).
  void record_step(double ms) DENDRITE_REQUIRES(kTreeLock);

  EngineCore() = default;
  ~EngineCore();

  /// One turn of the engine: plan (who runs, in the order of `requests`, how many tokens each),
  /// make room (pages; a shared page is copied before its first write; others lose theirs), build
  /// the batch, forward, commit. Brings open requests nearer to being served: afterwards a
  /// request's missing tokens may all be computed, or some of them, or it waits for pages, or it is
  /// kNoRoom. `sink` receives the logits rows that requests asked for beyond their tip's own.
  /// Where the device samples, it may leave the next step begun: see EarlyStep.
  StepReport step(std::span<StepRequest> requests, LogprobSink* sink,
                  const StepLimits& limits) DENDRITE_COMPUTES;

  // --- step()'s parts
  void plan_step(std::span<StepRequest> requests, const StepLimits& limits,
                 StepReport& report) DENDRITE_COMPUTES;
  /// The pass over the plan's batch, the one place where the model runs: [logit rows, vocab].
  Tensor forward() DENDRITE_COMPUTES { return model->forward(plan->batch, *store); }
  /// What becomes of the step's logits [logit rows, vocab] (step_logits.cpp). On the host: all
  /// stay.
  void take_on_host(LogprobSink* sink, const Tensor& logits) DENDRITE_COMPUTES;
  /// On the device: draws that requests want, ...
  void begin_draws(std::span<const StepRequest> requests, const Tensor& logits) DENDRITE_COMPUTES;
  void finish_draws(std::span<StepRequest> requests) DENDRITE_COMPUTES;
  /// ... log-probs that `sink` wants, ...
  void take_log_probs(LogprobSink& sink, const Tensor& logits) DENDRITE_COMPUTES;
  /// ... and rows that outlive their draws.
  void keep_rows(const Tensor& logits) DENDRITE_COMPUTES;
  bool keeps_rows() DENDRITE_COMPUTES;
  void commit_computed(StepReport& report) DENDRITE_REQUIRES(kComputeLock, kTreeLock);

  /// Draws from rows that segments keep: draws[i] from *rows[i], on the device, which must have a
  /// sampler.
  void draw_kept(std::span<const LogitsRow* const> rows, std::span<Draw> draws) DENDRITE_COMPUTES;
  /// Room on the device for so many kept rows.
  Tensor kept_tensor(std::int64_t rows) DENDRITE_REQUIRES(kComputeLock);
  /// Log-probs of tokens under a row that a segment keeps.
  std::vector<float> log_probs(const LogitsRow& row,
                               std::span<const Token> tokens) DENDRITE_COMPUTES;

  void check_all() DENDRITE_REQUIRES(kTreeLock);

  const Tokenizer& require_tokenizer() const;
  std::int64_t vocab() const { return config.vocab; }
  /// Throws Error naming the first id outside the vocabulary.
  void check_tokens(std::span<const Token> tokens) const;
};

using MakeBackend = std::function<std::unique_ptr<Backend>(ComputeType type, int threads)>;
/// What Engine::load does, over a backend of the caller's.
std::shared_ptr<EngineCore> load_core(const std::string& model, const EngineOptions& options,
                                      const MakeBackend& make_backend);

}  // namespace dendrite
