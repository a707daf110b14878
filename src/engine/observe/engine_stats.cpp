// The statistics of an engine: gathered in one place, and written by one table of their names.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <variant>

#include "dendrite/stats.h"
#include "engine/branches/session_core.h"
#include "engine/branches/tell.h"

namespace dendrite {
namespace {

enum class MetricKind : std::uint8_t { kCounter, kGauge };

template <typename T>
struct Metric {
  const char* name;
  const char* help;
  MetricKind kind;
  std::variant<std::int64_t T::*, double T::*> value;
};

constexpr auto kCounter = MetricKind::kCounter;
constexpr auto kGauge = MetricKind::kGauge;

// In the order of the struct.
constexpr Metric<EngineStats> kMetrics[] = {
    {"sessions", "Sessions alive.", kGauge, &EngineStats::sessions},
    {"branches_live", "Branches alive, of all sessions.", kGauge, &EngineStats::branches_live},
    {"steps", "Steps of the engine.", kCounter, &EngineStats::steps},
    {"steps_early", "Steps begun before the tokens of the one before were read.", kCounter,
     &EngineStats::steps_early},
    {"rows", "Rows that went through the model.", kCounter, &EngineStats::rows},
    {"rows_redundant", "Rows whose K and V a branch or the prefix index held already.", kCounter,
     &EngineStats::rows_redundant},
    {"rows_discarded", "Rows begun before it was known that their branch had ended.", kCounter,
     &EngineStats::rows_discarded},
    {"rows_independent", "Rows that the same calls would have taken without sharing.", kCounter,
     &EngineStats::rows_independent},
    {"tokens_generated", "Tokens drawn or chosen.", kCounter, &EngineStats::tokens_generated},
    {"tokens_drafted", "Rows of tokens that speculation proposed.", kCounter,
     &EngineStats::tokens_drafted},
    {"tokens_accepted", "Drafted tokens that were drawn.", kCounter, &EngineStats::tokens_accepted},
    {"tokens_reused", "Prompt tokens found in the prefix index.", kCounter,
     &EngineStats::tokens_reused},
    {"tokens_regenerated", "Tokens computed again after an eviction.", kCounter,
     &EngineStats::tokens_regenerated},
    {"forks", "Branches forked.", kCounter, &EngineStats::forks},
    {"prunes", "Branches dropped.", kCounter, &EngineStats::prunes},
    {"copies_on_write", "Copies of shared pages before their first write.", kCounter,
     &EngineStats::copies_on_write},
    {"copied_tokens", "Slots that copies on write moved.", kCounter, &EngineStats::copied_tokens},
    {"pages_acquired", "Pages taken from the free list.", kCounter, &EngineStats::pages_acquired},
    {"evictions", "Segments that lost K and V to make room.", kCounter, &EngineStats::evictions},
    {"preemptions", "Running branches that made room for others.", kCounter,
     &EngineStats::preemptions},
    {"segment_splits", "Rewinds into the middle of a segment.", kCounter,
     &EngineStats::segment_splits},
    {"segments_absorbed", "Segments merged into their only child.", kCounter,
     &EngineStats::segments_absorbed},
    {"prefix_lookups", "Prompts looked up in the prefix index.", kCounter,
     &EngineStats::prefix_lookups},
    {"prefix_hits", "Look-ups that matched at least one token.", kCounter,
     &EngineStats::prefix_hits},
    {"prefix_looked_up_tokens", "Tokens of prompts looked up.", kCounter,
     &EngineStats::prefix_looked_up_tokens},
    {"prefix_hit_tokens", "Tokens that look-ups matched.", kCounter,
     &EngineStats::prefix_hit_tokens},
    {"prefix_evictions", "Prompts forgotten to make room.", kCounter,
     &EngineStats::prefix_evictions},
    {"compositions", "Branches composed: compose, edit, compact, join.", kCounter,
     &EngineStats::compositions},
    {"tokens_moved", "Tokens whose K and V compositions took from elsewhere.", kCounter,
     &EngineStats::tokens_moved},
    {"tokens_repaired", "Tokens that compositions computed again.", kCounter,
     &EngineStats::tokens_repaired},
    {"composed_hits", "Compositions whose K and V were held already.", kCounter,
     &EngineStats::composed_hits},
    {"composed_evictions", "Compositions forgotten to make room.", kCounter,
     &EngineStats::composed_evictions},
    {"bytes_moved", "Bytes of K and V that moves wrote.", kCounter, &EngineStats::bytes_moved},
    {"move_seconds", "Time of the device for moves.", kCounter, &EngineStats::move_seconds},
    {"chunk_lookups", "Registrations of chunks.", kCounter, &EngineStats::chunk_lookups},
    {"chunk_hits", "Registrations of chunks that were known.", kCounter, &EngineStats::chunk_hits},
    {"chunk_hit_tokens", "Tokens of known chunks whose K and V were there.", kCounter,
     &EngineStats::chunk_hit_tokens},
    {"chunk_reads", "Pieces of compositions that were chunks.", kCounter,
     &EngineStats::chunk_reads},
    {"chunk_read_hits", "Pieces of compositions that were chunks with all K and V.", kCounter,
     &EngineStats::chunk_read_hits},
    {"chunk_fills", "Chunks computed.", kCounter, &EngineStats::chunk_fills},
    {"chunk_fill_seconds", "Time for computing chunks.", kCounter,
     &EngineStats::chunk_fill_seconds},
    {"chunk_evictions", "Chunks nobody held that lost K and V to make room.", kCounter,
     &EngineStats::chunk_evictions},
    {"chunks_forgotten", "Chunks forgotten to stay below the limit.", kCounter,
     &EngineStats::chunks_forgotten},
    {"events", "Events that anybody listened to.", kCounter, &EngineStats::events},
    {"step_seconds", "Time spent in steps.", kCounter, &EngineStats::step_seconds},
    {"busy_seconds", "Time spent computing: steps, draws, texts.", kCounter,
     &EngineStats::busy_seconds},
    {"bytes_read", "Bytes of weights, K and V that steps had to read.", kCounter,
     &EngineStats::bytes_read},
    {"calls", "Calls that are over.", kCounter, &EngineStats::calls},
    {"call_seconds", "Time of calls, since each began.", kCounter, &EngineStats::call_seconds},
    {"queued_seconds", "Time of calls before their first row.", kCounter,
     &EngineStats::queued_seconds},
    {"first_tokens", "Calls that generated a token.", kCounter, &EngineStats::first_tokens},
    {"first_token_seconds", "Time of calls until their first token.", kCounter,
     &EngineStats::first_token_seconds},
    {"passes", "Passes over the model.", kCounter, &EngineStats::passes},
    {"passes_without_graph", "Passes on a GPU that were not replayed as CUDA graphs.", kCounter,
     &EngineStats::passes_without_graph},
    {"passes_without_tensor_cores", "Passes on a GPU with attention on ordinary cores.", kCounter,
     &EngineStats::passes_without_tensor_cores},
    {"segments", "Segments of the token tree.", kGauge, &EngineStats::segments},
    {"pool_pages", "Pages of the pool.", kGauge, &EngineStats::pool_pages},
    {"pages_used", "Pages in use.", kGauge, &EngineStats::pages_used},
    {"pages_free", "Pages free.", kGauge, &EngineStats::pages_free},
    {"slots_used", "Slots of pages that hold K and V.", kGauge, &EngineStats::slots_used},
    {"pool_utilisation", "Slots that hold K and V, of those of pages in use.", kGauge,
     &EngineStats::pool_utilisation},
    {"pool_utilisation_peak", "The same when the most pages were in use.", kGauge,
     &EngineStats::pool_utilisation_peak},
    {"page_tokens", "Tokens a page.", kGauge, &EngineStats::page_tokens},
    {"page_bytes", "Bytes of K and V a page.", kGauge, &EngineStats::page_bytes},
    {"states_used", "States of recurrent layers that are kept.", kGauge, &EngineStats::states_used},
    {"state_tokens_used", "Tokens behind them whose part is kept.", kGauge,
     &EngineStats::state_tokens_used},
    {"prefix_entries", "Prompts remembered.", kGauge, &EngineStats::prefix_entries},
    {"prefix_tokens", "Tokens of remembered prompts, shared prefixes once.", kGauge,
     &EngineStats::prefix_tokens},
    {"composed_entries", "Compositions remembered.", kGauge, &EngineStats::composed_entries},
    {"chunk_entries", "Chunks registered.", kGauge, &EngineStats::chunk_entries},
    {"chunk_warm", "Chunks with all K and V.", kGauge, &EngineStats::chunk_warm},
    {"chunk_tokens", "Tokens of registered chunks.", kGauge, &EngineStats::chunk_tokens},
    {"chunk_pages", "Pages that chunks hold, each once.", kGauge, &EngineStats::chunk_pages},
    {"largest_batch_rows", "Rows of the largest step.", kGauge, &EngineStats::largest_batch_rows},
    {"unique_bytes", "Bytes of all pages in use at the last step, each once.", kGauge,
     &EngineStats::unique_bytes},
    {"naive_bytes", "Bytes at the last step, had every branch pages of its own.", kGauge,
     &EngineStats::naive_bytes},
    {"copy_on_write_rate", "Page copies a fork.", kGauge, &EngineStats::copy_on_write_rate},
    {"move_bandwidth", "Bytes a second that moves read and wrote.", kGauge,
     &EngineStats::move_bandwidth},
    {"tokens_per_second", "Tokens generated a busy second, of the last turns.", kGauge,
     &EngineStats::tokens_per_second},
    {"read_bandwidth", "Bytes a second that steps had to read, of the last turns.", kGauge,
     &EngineStats::read_bandwidth},
    {"estimate_factor", "What step estimates of errors are multiplied by.", kGauge,
     &EngineStats::estimate_factor},
};

constexpr Metric<SpeculationStats> kSpeculation[] = {
    {"drafts", "Drafts of a branch that a step computed.", kCounter, &SpeculationStats::drafts},
    {"tokens_budget", "Tokens that drafts could have had.", kCounter,
     &SpeculationStats::tokens_budget},
    {"tokens_proposed", "Tokens proposed, with a row or without.", kCounter,
     &SpeculationStats::tokens_proposed},
    {"tokens_wasted", "Rows of drafts that were not accepted.", kCounter,
     &SpeculationStats::tokens_wasted},
    {"tokens_shared", "Accepted tokens on rows that another branch took as well.", kCounter,
     &SpeculationStats::tokens_shared},
    {"siblings_taken", "Accepted tokens that were not the first choice.", kCounter,
     &SpeculationStats::siblings_taken},
    {"tokens_accepted_as_chain", "Accepted tokens that first choices alone had given.", kCounter,
     &SpeculationStats::tokens_accepted_as_chain},
    {"fallbacks", "Times that a branch wanted a draft and there could be none.", kCounter,
     &SpeculationStats::fallbacks},
    {"steps_drafted", "Steps with drafts.", kCounter, &SpeculationStats::steps_drafted},
    {"steps_plain", "Steps that had none, though they were wanted.", kCounter,
     &SpeculationStats::steps_plain},
    {"steps_drafted_seconds", "Time of steps with drafts.", kCounter,
     &SpeculationStats::steps_drafted_seconds},
    {"steps_plain_seconds", "Time of steps that had none.", kCounter,
     &SpeculationStats::steps_plain_seconds},
    {"draft_seconds", "Time for proposing drafts and growing their trees.", kCounter,
     &SpeculationStats::draft_seconds},
};

std::string number(double value) {
  // Not printf's %f, which follows the locale.
  const auto micro = static_cast<long long>(value * 1e6 + 0.5);
  char text[48];
  std::snprintf(text, sizeof text, "%lld.%06lld", micro / 1000000, micro % 1000000);
  return text;
}

template <typename T>
std::string value_of(const T& stats, const Metric<T>& metric) {
  if (const auto* count = std::get_if<std::int64_t T::*>(&metric.value)) {
    return std::to_string(stats.**count);
  }
  return number(stats.*std::get<double T::*>(metric.value));
}

/// `"name":value,` of each.
template <typename T>
std::string json_fields(const T& stats, std::span<const Metric<T>> metrics) {
  std::string out;
  for (const Metric<T>& metric : metrics) {
    out.append("\"").append(metric.name).append("\":").append(value_of(stats, metric)).append(",");
  }
  return out;
}

/// Prometheus' lines before a family's samples.
std::string head_of(const std::string& name, const char* help, MetricKind kind) {
  std::string out = "# HELP ";
  out.append(name).append(" ").append(help).append("\n# TYPE ").append(name);
  return out.append(kind == MetricKind::kCounter ? " counter\n" : " gauge\n");
}

template <typename T>
std::string families_of(const T& stats, const std::string& prefix,
                        std::span<const Metric<T>> metrics) {
  std::string out;
  for (const Metric<T>& metric : metrics) {
    std::string name = prefix + metric.name;
    if (metric.kind == MetricKind::kCounter) name += "_total";
    out.append(head_of(name, metric.help, metric.kind));
    out.append(name).append(" ").append(value_of(stats, metric)).append("\n");
  }
  return out;
}

/// A histogram as Prometheus has it: counts up to each bound.
std::string samples_of(const std::string& name, const char* help, const KlHistogram& histogram) {
  std::string out = "# HELP " + name + " " + help + "\n# TYPE " + name + " histogram\n";
  std::int64_t count = 0;
  for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
    count += histogram.counts[i];
    const bool last = i == KlHistogram::kBounds.size();
    out.append(name).append("_bucket{le=\"");
    out.append(last ? "+Inf" : number(KlHistogram::kBounds[i])).append("\"} ");
    out.append(std::to_string(count)).append("\n");
  }
  out.append(name).append("_sum ").append(number(histogram.sum)).append("\n");
  return out.append(name).append("_count ").append(std::to_string(count)).append("\n");
}

double part_of(std::int64_t some, std::int64_t all) {
  return all == 0 ? 0 : static_cast<double>(some) / static_cast<double>(all);
}

}  // namespace

EngineStats Engine::stats() const {
  const EngineCore& core = *core_;
  const TreeLock lock(core_->tree_mutex);
  Stats sum = core.counts.ended_sessions;
  for (const SessionCore* session : core.sessions) add(sum, session->stats);

  EngineStats stats;
  stats.sessions = std::ssize(core.sessions);
  stats.branches_live = sum.branches_live;
  stats.steps = core.counts.steps;
  stats.steps_early = core.counts.steps_early;
  stats.rows = sum.tokens_computed;
  stats.rows_redundant = sum.tokens_redundant;
  stats.rows_discarded = sum.tokens_discarded;
  stats.rows_independent = sum.tokens_independent;
  stats.tokens_generated = sum.tokens_generated;
  stats.tokens_drafted = sum.tokens_drafted;
  stats.tokens_accepted = sum.tokens_accepted;
  stats.tokens_reused = sum.tokens_reused;
  stats.tokens_regenerated = sum.tokens_regenerated;
  stats.evictions = sum.evictions;
  stats.preemptions = sum.preemptions;
  stats.compositions = sum.compositions;
  stats.tokens_moved = sum.tokens_moved;
  stats.tokens_repaired = sum.tokens_repaired;
  stats.composed_hits = core.counts.composed_hits;
  stats.bytes_moved = core.counts.moves.bytes;
  stats.move_seconds = core.counts.moves.seconds;
  if (core.counts.moves.seconds > 0) {
    stats.move_bandwidth =
        2 * static_cast<double>(core.counts.moves.bytes) / core.counts.moves.seconds;
  }
  stats.estimate_factor = core.counts.kl_record.factor();
  stats.estimates = core.counts.kl_record.estimates();
  stats.audits = core.counts.kl_record.audits();
  stats.forks = sum.forks;
  stats.prunes = sum.prunes;
  stats.largest_batch_rows = sum.largest_batch_rows;
  stats.events = static_cast<std::int64_t>(core.events.emitted());
  stats.step_seconds = core.counts.step_ms / 1e3;
  stats.busy_seconds = core.counts.busy_ms / 1e3;
  stats.bytes_read = core.counts.bytes_read;
  stats.tokens_per_second = core.counts.rates.tokens_per_second();
  stats.read_bandwidth = core.counts.rates.bytes_per_second();
  stats.calls = core.counts.calls.calls;
  stats.call_seconds = core.counts.calls.ms / 1e3;
  stats.queued_seconds = core.counts.calls.queued_ms / 1e3;
  stats.first_tokens = core.counts.calls.first_tokens;
  stats.first_token_seconds = core.counts.calls.first_token_ms / 1e3;
  stats.passes = core.counts.passes.passes;
  stats.passes_without_graph = core.counts.passes.without_graph;
  stats.passes_without_tensor_cores = core.counts.passes.without_tensor_cores;
  stats.speculation = core.counts.speculation;
  stats.unique_bytes = core.counts.unique_bytes;
  stats.naive_bytes = core.counts.naive_bytes;
  if (core.tree != nullptr) {
    const KvTreeStats tree = core.tree->stats();
    stats.copies_on_write = tree.copies_on_write;
    stats.copied_tokens = tree.copied_tokens;
    stats.segment_splits = tree.splits;
    stats.segments_absorbed = tree.absorbed;
    stats.segments = tree.segments;
    stats.pages_acquired = core.tree->pool().acquired();
    stats.pool_pages = core.tree->pool().size();
    stats.pages_used = core.tree->pool().used_pages();
    stats.pages_free = core.tree->pool().free_pages();
    stats.page_tokens = core.tree->page_tokens();
    stats.page_bytes = core.store->shape().token_bytes() * stats.page_tokens;
    if (const PathStates* states = core.tree->states()) {
      stats.states_used = states->anchors_used();
      stats.state_tokens_used = states->journals_used();
    }
    stats.slots_used = core.tree->slots_used();
    stats.pool_utilisation = part_of(stats.slots_used, stats.pages_used * stats.page_tokens);
    stats.pool_utilisation_peak =
        part_of(core.counts.peak_slots, core.counts.peak_pages * stats.page_tokens);
  }
  if (core.prefix_index != nullptr) {
    const PrefixIndexStats& prefix = core.prefix_index->stats();
    stats.prefix_lookups = prefix.lookups;
    stats.prefix_hits = prefix.hits;
    stats.prefix_looked_up_tokens = prefix.looked_up_tokens;
    stats.prefix_hit_tokens = prefix.hit_tokens;
    stats.prefix_evictions = prefix.evictions;
    stats.prefix_entries = prefix.entries;
    stats.prefix_tokens = prefix.tokens;
  }
  if (core.compositions != nullptr) {
    const ComposedIndexStats composed = core.compositions->stats();
    stats.composed_entries = composed.entries;
    stats.composed_evictions = composed.evictions;
  }
  if (core.chunks != nullptr) {
    const ChunkIndexStats chunks = core.chunks->stats();
    stats.chunk_entries = chunks.entries;
    stats.chunk_warm = chunks.warm;
    stats.chunk_tokens = chunks.tokens;
    stats.chunk_pages = chunks.pages;
    stats.chunk_lookups = chunks.lookups;
    stats.chunk_hits = chunks.hits;
    stats.chunk_hit_tokens = chunks.hit_tokens;
    stats.chunk_reads = chunks.reads;
    stats.chunk_read_hits = chunks.read_hits;
    stats.chunk_fills = chunks.fills;
    stats.chunk_fill_seconds = chunks.fill_ms / 1e3;
    stats.chunk_evictions = chunks.evictions;
    stats.chunks_forgotten = chunks.forgotten;
  }
  if (stats.forks > 0) {
    stats.copy_on_write_rate =
        static_cast<double>(stats.copies_on_write) / static_cast<double>(stats.forks);
  }
  return stats;
}

std::int64_t SpeculationStats::tokens_accepted() const {
  return std::reduce(accept_depth_by_position.begin(), accept_depth_by_position.end());
}

double SpeculationStats::accept_depth() const {
  return drafts == 0 ? 0 : static_cast<double>(tokens_accepted()) / static_cast<double>(drafts);
}

void SpeculationStats::add(const SpeculationStats& other) {
  for (const Metric<SpeculationStats>& metric : kSpeculation) {
    std::visit([&](auto field) { this->*field += other.*field; }, metric.value);
  }
  for (std::size_t i = 0; i < kDraftDepth; ++i) {
    accept_depth_by_position[i] += other.accept_depth_by_position[i];
  }
}

std::string to_json(const SpeculationStats& stats) {
  std::string out = "{";
  out.append(json_fields<SpeculationStats>(stats, kSpeculation))
      .append("\"accept_depth\":")
      .append(number(stats.accept_depth()));
  out.append(",\"accept_depth_by_position\":[");
  for (std::size_t i = 0; i < kDraftDepth; ++i) {
    out.append(i == 0 ? "" : ",").append(std::to_string(stats.accept_depth_by_position[i]));
  }
  return out.append("]}");
}

/// {"bounds":[...],"counts":[...],"sum":...}
std::string to_json(const KlHistogram& histogram) {
  std::string bounds;
  std::string counts;
  for (const double bound : KlHistogram::kBounds) {
    bounds.append(bounds.empty() ? "" : ",").append(number(bound));
  }
  for (const std::int64_t count : histogram.counts) {
    counts.append(counts.empty() ? "" : ",").append(std::to_string(count));
  }
  return "{\"bounds\":[" + bounds + "],\"counts\":[" + counts +
         "],\"sum\":" + number(histogram.sum) + "}";
}

std::string to_json(const EngineStats& stats) {
  std::string out = "{";
  out.append(json_fields<EngineStats>(stats, kMetrics));
  out.append("\"estimates\":").append(to_json(stats.estimates));
  out.append(",\"audits\":").append(to_json(stats.audits)).append(",");
  return out.append("\"speculation\":").append(to_json(stats.speculation)).append("}");
}

std::string to_prometheus(const EngineStats& stats) {
  const std::string prefix = "dendrite_speculation_";
  std::string out = families_of<EngineStats>(stats, "dendrite_", kMetrics) +
                    families_of<SpeculationStats>(stats.speculation, prefix, kSpeculation);
  const std::string name = prefix + "accept_depth_by_position_total";
  out += head_of(name, "Drafts of which at least so many tokens were accepted.", kCounter);
  for (std::size_t i = 0; i < kDraftDepth; ++i) {
    out.append(name).append("{position=\"").append(std::to_string(i + 1)).append("\"} ");
    out.append(std::to_string(stats.speculation.accept_depth_by_position[i])).append("\n");
  }
  return out +
         samples_of("dendrite_estimate_kl", "Errors of compositions as estimated, in nats.",
                    stats.estimates) +
         samples_of("dendrite_audit_kl", "Errors of compositions as audits found, in nats.",
                    stats.audits);
}

}  // namespace dendrite
