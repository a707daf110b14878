#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

/// One branch, since it was made.
struct BranchStats {
  std::int64_t tokens_generated = 0;
  std::int64_t tokens_computed = 0;  ///< rows that steps computed because this branch asked first
  /// Of those: of tokens whose K and V had been there before, and were evicted.
  std::int64_t tokens_regenerated = 0;
  /// Of its prompt (prompt_length() tokens), once that is computed: whose K and V prefill found, or
  /// had from others who brought the same tokens at the same time. All other ones it computed; so
  /// over all prompts each token is counted once as computed, by the one that asked first. Forks
  /// have their prompt's. Not in snapshots.
  std::int64_t prompt_shared = 0;
  std::int64_t steps = 0;         ///< that it took part in
  double milliseconds = 0;        ///< that those steps took: its latency, company included
  std::int64_t pages = 0;         ///< that it can read
  std::int64_t own_pages = 0;     ///< of them: those that dropping it would free
  std::int64_t shared_pages = 0;  ///< of them: held by other branches or the prefix index, as well
};

enum class ChunkState : std::uint8_t {
  kRegistered,  ///< nothing of it was ever computed
  kFilling,     ///< somebody computes it
  kWarm,        ///< K and V of all its tokens are there
  kCold,        ///< they were; its tokens stay, and they are computed again at its next use
  kForgotten,   ///< only handles know it
};
/// "registered", "filling", "warm", "cold" or "forgotten"
const char* name_of(ChunkState state);

/// A registered chunk as it stands, see Engine::chunks.
struct ChunkInfo {
  std::string name;              ///< ChunkParams::name, of who registered it first
  std::string key;               ///< Chunk::key()
  std::string id;                ///< key, left context and model in hex, '-' between: its own
  std::vector<Token> beginning;  ///< its first tokens, at most 16
  std::string text;              ///< of those; empty where the model has no tokenizer
  std::int64_t left_tokens = 0;  ///< that it is computed behind
  std::int64_t tokens = 0;       ///< its own
  std::int64_t tokens_held = 0;  ///< of them: K and V are there
  ChunkState state = ChunkState::kRegistered;
  std::int64_t uses = 0;       ///< handles that live; copies are one
  std::int64_t hits = 0;       ///< times that register_chunk found it known
  std::int64_t reads = 0;      ///< pieces of compositions that were this chunk
  std::int64_t read_hits = 0;  ///< of them: K and V of all its tokens were there
  std::uint64_t last_use = 0;  ///< counts touches of all chunks: the larger, the more recent
  double fill_ms = 0;      ///< that computing it took the last time, waiting for others included
  std::int64_t pages = 0;  ///< that hold it and what it is computed behind
  std::int64_t own_pages = 0;  ///< of them: those that dropping it would free

  /// Of the times that it was wanted (registered or read), the part at which it was there: known
  /// to register_chunk, or with all K and V to a composition. 0 after the first registration.
  double hit_rate() const;
};

/// How large the errors of compositions were (Estimate::kl_mean), in nats.
struct KlHistogram {
  static constexpr std::array<double, 8> kBounds = {1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1};
  /// Up to each bound, and above the one before; the last: above all.
  std::array<std::int64_t, kBounds.size() + 1> counts{};
  double sum = 0;
};

/// An engine, all of its sessions together. Counters run since the engine was loaded.
struct EngineStats {
  std::int64_t sessions = 0;       ///< alive
  std::int64_t branches_live = 0;  ///< of all sessions

  // --- counters
  std::int64_t steps = 0;
  std::int64_t steps_early =
      0;                  ///< of them: begun by a GPU before the tokens of the last were read
  std::int64_t rows = 0;  ///< that went through the model
  std::int64_t rows_redundant = 0;    ///< of them: K and V were held, by any branch
  std::int64_t rows_discarded = 0;    ///< beside `rows`, see Stats::tokens_discarded
  std::int64_t rows_independent = 0;  ///< what the same calls would have taken without sharing
  std::int64_t tokens_generated = 0;
  std::int64_t tokens_drafted = 0;      ///< rows of drafts, in no other count, see Stats
  std::int64_t tokens_accepted = 0;     ///< of those: drawn, and then in `rows`
  std::int64_t tokens_reused = 0;       ///< prompt tokens found in other branches or prompts
  std::int64_t tokens_regenerated = 0;  ///< computed again after an eviction
  std::int64_t forks = 0;
  std::int64_t prunes = 0;
  std::int64_t copies_on_write = 0;  ///< of pages
  std::int64_t copied_tokens = 0;    ///< slots that those copies moved
  std::int64_t pages_acquired = 0;   ///< taken from the free list
  std::int64_t evictions = 0;
  std::int64_t preemptions = 0;
  std::int64_t segment_splits = 0;     ///< rewinds into the middle of a segment
  std::int64_t segments_absorbed = 0;  ///< merged into their only child
  std::int64_t prefix_lookups = 0;
  std::int64_t prefix_hits = 0;  ///< look-ups that matched at least one token
  std::int64_t prefix_looked_up_tokens = 0;
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t prefix_evictions = 0;
  std::int64_t compositions = 0;     ///< compose, edit, compact, join and what is made of them
  std::int64_t tokens_moved = 0;     ///< K and V that they took from elsewhere
  std::int64_t tokens_repaired = 0;  ///< that they computed again, to lessen their error
  std::int64_t composed_hits = 0;    ///< of them: all K and V were held since they were made before
  std::int64_t composed_evictions = 0;  ///< compositions forgotten to make room
  std::int64_t bytes_moved = 0;         ///< of K and V: written, and as many read
  double move_seconds = 0;              ///< of the device, for these
  std::int64_t chunk_lookups = 0;       ///< calls of register_chunk
  std::int64_t chunk_hits = 0;          ///< of them: the chunk was known, with K and V or without
  std::int64_t chunk_hit_tokens = 0;    ///< of those chunks: with K and V
  std::int64_t chunk_reads = 0;         ///< pieces of compositions that were chunks
  std::int64_t chunk_read_hits = 0;     ///< of them: K and V of all their tokens were there
  std::int64_t chunk_fills = 0;         ///< chunks computed, again ones included
  double chunk_fill_seconds = 0;        ///< that this took, waiting for others included
  std::int64_t chunk_evictions = 0;     ///< chunks nobody held that lost K and V to make room
  std::int64_t chunks_forgotten = 0;    ///< to stay below EngineOptions::chunk_tokens
  std::int64_t events = 0;              ///< that anybody listened to
  double step_seconds = 0;              ///< spent in steps
  /// Spent computing: in steps, and between them in draws, texts and bookkeeping while there was a
  /// call. tokens_generated / busy_seconds are tokens a second, of any span of time.
  double busy_seconds = 0;
  /// That steps had to read: the weights once, and K and V that their rows attend to, once for all
  /// rows that share them. bytes_read / step_seconds is to be compared with the memory's bandwidth.
  std::int64_t bytes_read = 0;
  // Of calls that are over, see EventKind::kCall; divided, they are means:
  std::int64_t calls = 0;
  double call_seconds = 0;         ///< since they began
  double queued_seconds = 0;       ///< of these: before their first row
  std::int64_t first_tokens = 0;   ///< calls that generated a token
  double first_token_seconds = 0;  ///< until then, since they began
  std::int64_t passes = 0;         ///< over the model
  /// On a GPU: of them, not replayed as CUDA graphs (large ones never are), and with attention on
  /// ordinary cores. See EngineInfo::attention.
  std::int64_t passes_without_graph = 0;
  std::int64_t passes_without_tensor_cores = 0;

  // --- as it is now
  std::int64_t segments = 0;
  std::int64_t pool_pages = 0;
  std::int64_t pages_used = 0;
  std::int64_t pages_free = 0;
  /// Slots that hold K and V which somebody may read, of page_tokens in each page in use.
  std::int64_t slots_used = 0;
  double pool_utilisation = 0;       ///< slots_used of the slots of pages in use; 0 without any
  double pool_utilisation_peak = 0;  ///< when the most pages were in use, to a twentieth
  std::int64_t page_tokens = 0;
  std::int64_t page_bytes = 0;
  std::int64_t states_used = 0;        ///< of EngineInfo::states
  std::int64_t state_tokens_used = 0;  ///< of EngineInfo::state_tokens
  std::int64_t prefix_entries = 0;     ///< prompts remembered
  std::int64_t prefix_tokens = 0;      ///< of them, shared prefixes once
  std::int64_t composed_entries = 0;   ///< compositions remembered
  std::int64_t chunk_entries = 0;      ///< chunks registered
  std::int64_t chunk_warm = 0;         ///< of them: with all K and V
  std::int64_t chunk_tokens = 0;       ///< of all that are registered, without left contexts
  std::int64_t chunk_pages = 0;        ///< that they hold, left contexts included; each once
  std::int64_t largest_batch_rows = 0;
  std::int64_t unique_bytes = 0;  ///< KV at the last step, see Event::unique_bytes
  std::int64_t naive_bytes = 0;   ///< KV at the last step, see Event::naive_bytes
  double copy_on_write_rate = 0;  ///< page copies a fork
  double move_bandwidth = 0;      ///< bytes a second that moves read and wrote
  // Over the last 256 turns that made a step, idle time not counted:
  double tokens_per_second = 0;  ///< tokens generated by their busy seconds
  double read_bandwidth = 0;     ///< bytes read by their step seconds
  /// What is found between a composition and one with twice the repair is taken times this for its
  /// error: 9 of 10 of the last 64 audits found no more; 50 before the first 16.
  double estimate_factor = 0;

  KlHistogram estimates;  ///< of compositions with a target_kl
  KlHistogram audits;     ///< what Session::audit found

  /// All sessions together; a step of several sessions once.
  SpeculationStats speculation;
};

/// One JSON object with the fields above, in their order.
std::string to_json(const EngineStats& stats);
/// The fields above as an object, "accept_depth" among them.
std::string to_json(const SpeculationStats& stats);
/// "bounds", "counts" and "sum".
std::string to_json(const KlHistogram& histogram);
/// The Prometheus text exposition format 0.0.4: dendrite_NAME, counters with _total.
std::string to_prometheus(const EngineStats& stats);

}  // namespace dendrite
