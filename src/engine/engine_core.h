#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/parallel.h"
#include "dendrite/engine.h"
#include "engine/early_step.h"
#include "engine/event_hub.h"
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
/// Locks: `compute` is held by a call that runs the model, for as long as it runs; `tree_mutex`
/// guards the tree, the prefix index, the logits pool and all branch states, and is never held
/// while the model runs. Order: compute before tree_mutex.
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

  std::mutex compute;
  std::mutex tree_mutex;
  EventHub events;                      // beside the lock, which every fork touches anyway
  std::unique_ptr<ThreadPool> workers;  // for sampling
  std::unique_ptr<KvStore> store;
  LogitsPool logits_pool;
  std::unique_ptr<Buffer> kept_rows;  // where draw_kept() and log_probs() bring rows
  std::unique_ptr<KvDebug> kv_debug;  // null: not in debug mode
  std::unique_ptr<KvTree> tree;
  std::unique_ptr<PrefixIndex> prefix_index;  // null: switched off
  std::unique_ptr<StepPlan> plan;             // reused by every step
  EarlyStep early_step{*this};
  std::unique_ptr<StepTimes> step_times = std::make_unique<StepTimes>();
  std::vector<SessionCore*> sessions;  // alive
  std::uint64_t clock = 0;             // calls that computed: what "recently used" means
  /// The time, for limits on holds; tests set another.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;

  /// Tips that calls in progress hold beside those of branches.
  std::vector<const std::vector<std::unique_ptr<Tip>>*> call_tips;
  /// Debug mode: checks tree and pages, after every operation that changed the tree.
  void debug_check() {
    if (kv_debug != nullptr) [[unlikely]]
      check_all();
  }

  // --- for EngineStats and events
  std::uint64_t sessions_made = 0;
  Stats ended_sessions;           // sums over those that are gone
  double step_ms = 0;             // spent in steps
  PassCounts pass_counts;         // of the backend, at the last step
  std::int64_t unique_bytes = 0;  // at the last step, as in Event
  std::int64_t naive_bytes = 0;
  /// A session begins and ends. Takes `tree_mutex`.
  void enter(SessionCore& session);
  void leave(SessionCore& session);
  /// Counts a step that took `ms`. O(sessions).
  void record_step(double ms);

  EngineCore() = default;
  ~EngineCore();

  /// One turn of the engine: plan (who runs, in the order of `requests`, how many tokens each),
  /// make room (pages; a shared page is copied before its first write; others lose theirs), build
  /// the batch, forward, commit. Brings open requests nearer to being served: afterwards a
  /// request's missing tokens may all be computed, or some of them, or it waits for pages, or it is
  /// kNoRoom. `sink` receives the logits rows that requests asked for beyond their tip's own.
  /// Requires `compute` to be held and `tree_mutex` not.
  /// Where the device samples, it may leave the next step begun: see EarlyStep.
  StepReport step(std::span<StepRequest> requests, LogprobSink* sink, const StepLimits& limits);

  // --- step()'s parts
  void plan_step(std::span<StepRequest> requests, const StepLimits& limits, StepReport& report);
  /// What becomes of the step's logits [logit rows, vocab] (step_logits.cpp); all of it takes
  /// `tree_mutex`. On the host: all stay.
  void take_on_host(LogprobSink* sink, const Tensor& logits);
  /// On the device: draws that requests want, ...
  void begin_draws(std::span<const StepRequest> requests, const Tensor& logits);
  void finish_draws(std::span<StepRequest> requests);
  /// ... log-probs that `sink` wants, ...
  void take_log_probs(LogprobSink& sink, const Tensor& logits);
  /// ... and rows that outlive their draws.
  void keep_rows(const Tensor& logits);
  bool keeps_rows();
  void commit_computed(StepReport& report);

  /// Draws from rows that segments keep: draws[i] from *rows[i], on the device, which must have a
  /// sampler. Requires `compute`.
  void draw_kept(std::span<const LogitsRow* const> rows, std::span<Draw> draws);
  /// Room on the device for so many kept rows.
  Tensor kept_tensor(std::int64_t rows);
  /// Log-probs of tokens under a row that a segment keeps. Requires `compute`.
  std::vector<float> log_probs(const LogitsRow& row, std::span<const Token> tokens);

  void check_all();

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
