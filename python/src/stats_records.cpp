// Counters: plain records, whose fields go by C++'s names.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "record.h"

namespace dendrite::python {
namespace {

void bind_branch_stats(nb::module_& module) {
  Record<BranchStats> stats(module, "BranchStats", "One branch, since it was made.");
  stats.field("tokens_generated", &BranchStats::tokens_generated, "By decode.")
      .field("tokens_computed", &BranchStats::tokens_computed, "Rows that it asked for first.")
      .field("tokens_regenerated", &BranchStats::tokens_regenerated,
             "Of those: of tokens whose K and V had been evicted.")
      .field("prompt_shared", &BranchStats::prompt_shared,
             "Of the prompt_length tokens of its prompt: those that prefill found, or had from "
             "others who brought them at the same time. All other ones it computed.")
      .field("steps", &BranchStats::steps, "That it took part in.")
      .field("milliseconds", &BranchStats::milliseconds, "That those steps took.")
      .field("pages", &BranchStats::pages, "That it can read.")
      .field("own_pages", &BranchStats::own_pages, "Of them: those that dropping it would free.")
      .field("shared_pages", &BranchStats::shared_pages, "Of them: held by others as well.")
      .finish();
}

void bind_speculation_stats(nb::module_& module) {
  Record<SpeculationStats> stats(module, "SpeculationStats",
                                 "What speculation did, beside tokens_drafted and tokens_accepted. "
                                 "A draft: the tokens proposed for a branch whose rows one step "
                                 "computed.");
  stats.field("drafts", &SpeculationStats::drafts, "Of a branch and step.")
      .field("tokens_budget", &SpeculationStats::tokens_budget, "That they could have had.")
      .field("tokens_proposed", &SpeculationStats::tokens_proposed, "With a row or without.")
      .field("tokens_wasted", &SpeculationStats::tokens_wasted, "Of tokens_drafted: not accepted.")
      .field("tokens_shared", &SpeculationStats::tokens_shared,
             "Of tokens_accepted: on rows that another branch took as well.")
      .field("siblings_taken", &SpeculationStats::siblings_taken,
             "Of tokens_accepted: not the first choice after the text before them.")
      .field("tokens_accepted_as_chain", &SpeculationStats::tokens_accepted_as_chain,
             "Of tokens_accepted: what first choices alone had given.")
      .field("fallbacks", &SpeculationStats::fallbacks,
             "Times that a branch wanted a draft and there could be none.")
      .property("accept_depth", &SpeculationStats::accept_depth, "Tokens accepted a draft.")
      .field("accept_depth_by_position", &SpeculationStats::accept_depth_by_position,
             "Drafts of which more tokens were accepted than 0, 1, 2, ...")
      .field("steps_drafted", &SpeculationStats::steps_drafted, "Steps with drafts.")
      .field("steps_plain", &SpeculationStats::steps_plain,
             "Steps that had none, though they were wanted.")
      .field("steps_drafted_seconds", &SpeculationStats::steps_drafted_seconds, "Their time.")
      .field("steps_plain_seconds", &SpeculationStats::steps_plain_seconds, "Their time.")
      .field("draft_seconds", &SpeculationStats::draft_seconds,
             "For proposing drafts and growing their trees.")
      .finish();
}

void bind_session_stats(nb::module_& module) {
  Record<Stats> stats(module, "Stats",
                      "Counters of a session since it began; pages_total and pages_used are the "
                      "whole engine's.");
  stats.field("tokens_computed", &Stats::tokens_computed, "Rows that went through the model.")
      .field("tokens_independent", &Stats::tokens_independent,
             "Rows that requests without sharing would have taken.")
      .field("tokens_generated", &Stats::tokens_generated, "By decode.")
      .field("tokens_ahead", &Stats::tokens_ahead, "Drawn ahead of the calls that want them.")
      .field("tokens_taken", &Stats::tokens_taken, "Of those: taken over by a call.")
      .field("tokens_drafted", &Stats::tokens_drafted, "Rows of tokens that speculation proposed.")
      .field("tokens_accepted", &Stats::tokens_accepted, "Of those: drawn.")
      .field("tokens_reused", &Stats::tokens_reused, "Prompt tokens that were known already.")
      .field("tokens_moved", &Stats::tokens_moved, "That compositions took from elsewhere.")
      .field("tokens_repaired", &Stats::tokens_repaired, "That they computed again.")
      .field("compositions", &Stats::compositions, "compose, edit, compact, join.")
      .field("tokens_discarded", &Stats::tokens_discarded, "Rows begun early and for nothing.")
      .field("tokens_redundant", &Stats::tokens_redundant, "Rows whose K and V were held.")
      .field("steps", &Stats::steps, "Steps of the engine.")
      .field("forks", &Stats::forks, "Branches forked.")
      .field("prunes", &Stats::prunes, "Branches dropped.")
      .field("copies_on_write", &Stats::copies_on_write, "Pages copied.")
      .field("evictions", &Stats::evictions, "Runs of tokens that lost K and V.")
      .field("preemptions", &Stats::preemptions, "Times that a decoding branch lost them.")
      .field("tokens_regenerated", &Stats::tokens_regenerated, "Rows computed again for that.")
      .field("branches_live", &Stats::branches_live, "Branches now.")
      .field("largest_batch_rows", &Stats::largest_batch_rows, "Rows of the widest step.")
      .field("kv_bytes_unique", &Stats::kv_bytes_unique, "KV at the widest step, pages once.")
      .field("kv_bytes_naive", &Stats::kv_bytes_naive, "The same without sharing.")
      .field("pages_total", &Stats::pages_total, "Of the engine's pool.")
      .field("pages_used", &Stats::pages_used, "Of the engine's pool.")
      .field("fork_ns", &Stats::fork_ns, "Median time of a fork, of the most recent ones.")
      .field("speculation", &Stats::speculation, "What speculation did.")
      .finish();
}

void bind_kl_histogram(nb::module_& module) {
  Record<KlHistogram> histogram(module, "KlHistogram",
                                "How large the errors of compositions were (Estimate.kl_mean).");
  histogram
      .property(
          "bounds", [](const KlHistogram&) { return KlHistogram::kBounds; }, "In nats.")
      .field("counts", &KlHistogram::counts, "Up to each bound; the last: above all.")
      .field("sum", &KlHistogram::sum, "Of all.")
      .finish();
}

void bind_engine_stats(nb::module_& module) {
  Record<EngineStats> stats(module, "EngineStats",
                            "An engine, all of its sessions together, since it was loaded.");
  stats.field("sessions", &EngineStats::sessions, "Alive.")
      .field("branches_live", &EngineStats::branches_live, "Of all sessions.")
      .field("steps", &EngineStats::steps, "Steps made.")
      .field("steps_early", &EngineStats::steps_early,
             "Of them: begun before the last one's tokens were read.")
      .field("rows", &EngineStats::rows, "That went through the model.")
      .field("rows_redundant", &EngineStats::rows_redundant, "Of them: K and V were held.")
      .field("rows_discarded", &EngineStats::rows_discarded, "Beside rows: for nothing.")
      .field("rows_independent", &EngineStats::rows_independent, "Without sharing.")
      .field("tokens_generated", &EngineStats::tokens_generated, "By decode.")
      .field("tokens_drafted", &EngineStats::tokens_drafted, "Rows of drafts.")
      .field("tokens_accepted", &EngineStats::tokens_accepted, "Of those: drawn.")
      .field("tokens_reused", &EngineStats::tokens_reused, "Prompt tokens known already.")
      .field("tokens_regenerated", &EngineStats::tokens_regenerated, "Computed again.")
      .field("forks", &EngineStats::forks, "Branches forked.")
      .field("prunes", &EngineStats::prunes, "Branches dropped.")
      .field("copies_on_write", &EngineStats::copies_on_write, "Pages copied.")
      .field("copied_tokens", &EngineStats::copied_tokens, "Slots that those copies moved.")
      .field("pages_acquired", &EngineStats::pages_acquired, "Taken from the free list.")
      .field("evictions", &EngineStats::evictions, "Runs of tokens that lost K and V.")
      .field("preemptions", &EngineStats::preemptions, "Of branches that were decoding.")
      .field("segment_splits", &EngineStats::segment_splits, "Rewinds into a segment.")
      .field("segments_absorbed", &EngineStats::segments_absorbed, "Merged into a child.")
      .field("prefix_lookups", &EngineStats::prefix_lookups, "Of prompts.")
      .field("prefix_hits", &EngineStats::prefix_hits, "That matched a token at least.")
      .field("prefix_looked_up_tokens", &EngineStats::prefix_looked_up_tokens, "Of the prompts.")
      .field("prefix_hit_tokens", &EngineStats::prefix_hit_tokens, "Of them, known.")
      .field("prefix_evictions", &EngineStats::prefix_evictions, "Prompts forgotten.")
      .field("compositions", &EngineStats::compositions, "compose, edit, compact, join.")
      .field("tokens_moved", &EngineStats::tokens_moved, "That they took from elsewhere.")
      .field("tokens_repaired", &EngineStats::tokens_repaired, "That they computed again.")
      .field("composed_hits", &EngineStats::composed_hits, "Compositions that were held already.")
      .field("composed_evictions", &EngineStats::composed_evictions, "Compositions forgotten.")
      .field("bytes_moved", &EngineStats::bytes_moved, "K and V that they wrote.")
      .field("move_seconds", &EngineStats::move_seconds, "Of the device, for these.")
      .field("chunk_lookups", &EngineStats::chunk_lookups, "Calls of register_chunk.")
      .field("chunk_hits", &EngineStats::chunk_hits, "Of them: the chunk was known.")
      .field("chunk_hit_tokens", &EngineStats::chunk_hit_tokens, "Of those, with K and V.")
      .field("chunk_reads", &EngineStats::chunk_reads, "Pieces of compositions that were chunks.")
      .field("chunk_read_hits", &EngineStats::chunk_read_hits, "Of them: with all K and V.")
      .field("chunk_fills", &EngineStats::chunk_fills, "Chunks computed, again ones included.")
      .field("chunk_fill_seconds", &EngineStats::chunk_fill_seconds, "That this took.")
      .field("chunk_evictions", &EngineStats::chunk_evictions, "Idle ones that lost K and V.")
      .field("chunks_forgotten", &EngineStats::chunks_forgotten, "To stay below chunk_tokens.")
      .field("events", &EngineStats::events, "That anybody listened to.")
      .field("step_seconds", &EngineStats::step_seconds, "Spent in steps.")
      .field("busy_seconds", &EngineStats::busy_seconds, "Spent in steps, draws and texts.")
      .field("bytes_read", &EngineStats::bytes_read, "That steps had to read: weights, K and V.")
      .field("calls", &EngineStats::calls, "That are over.")
      .field("call_seconds", &EngineStats::call_seconds, "Of these, since each began.")
      .field("queued_seconds", &EngineStats::queued_seconds, "Of these, before the first row.")
      .field("first_tokens", &EngineStats::first_tokens, "Calls that generated a token.")
      .field("first_token_seconds", &EngineStats::first_token_seconds, "Until then, of these.")
      .field("passes", &EngineStats::passes, "Over the model.")
      .field("passes_without_graph", &EngineStats::passes_without_graph, "Of them, on a GPU.")
      .field("passes_without_tensor_cores", &EngineStats::passes_without_tensor_cores,
             "Of them, on a GPU.")
      .field("segments", &EngineStats::segments, "Of the tree, now.")
      .field("pool_pages", &EngineStats::pool_pages, "All pages.")
      .field("pages_used", &EngineStats::pages_used, "Of them, held.")
      .field("pages_free", &EngineStats::pages_free, "Of them, free.")
      .field("slots_used", &EngineStats::slots_used, "Slots of pages that hold K and V.")
      .field("pool_utilisation", &EngineStats::pool_utilisation,
             "Slots that hold K and V, of those of pages in use.")
      .field("pool_utilisation_peak", &EngineStats::pool_utilisation_peak,
             "The same when the most pages were in use.")
      .field("page_tokens", &EngineStats::page_tokens, "Tokens of a page.")
      .field("page_bytes", &EngineStats::page_bytes, "Bytes of a page.")
      .field("states_used", &EngineStats::states_used, "Of EngineInfo.states.")
      .field("state_tokens_used", &EngineStats::state_tokens_used, "Of EngineInfo.state_tokens.")
      .field("prefix_entries", &EngineStats::prefix_entries, "Prompts remembered.")
      .field("prefix_tokens", &EngineStats::prefix_tokens, "Of them, shared prefixes once.")
      .field("composed_entries", &EngineStats::composed_entries, "Compositions remembered.")
      .field("chunk_entries", &EngineStats::chunk_entries, "Chunks registered.")
      .field("chunk_warm", &EngineStats::chunk_warm, "Of them: with all K and V.")
      .field("chunk_tokens", &EngineStats::chunk_tokens, "Of all registered chunks.")
      .field("chunk_pages", &EngineStats::chunk_pages, "That chunks hold, each once.")
      .field("largest_batch_rows", &EngineStats::largest_batch_rows, "Of the widest step.")
      .field("unique_bytes", &EngineStats::unique_bytes, "KV at the last step, pages once.")
      .field("naive_bytes", &EngineStats::naive_bytes, "KV at the last step, without sharing.")
      .field("copy_on_write_rate", &EngineStats::copy_on_write_rate, "Page copies a fork.")
      .field("move_bandwidth", &EngineStats::move_bandwidth, "Bytes a second, read and written.")
      .field("tokens_per_second", &EngineStats::tokens_per_second,
             "Generated a busy second, of the last 256 turns.")
      .field("read_bandwidth", &EngineStats::read_bandwidth,
             "Bytes a second that steps had to read, of the last 256 turns.")
      .field("estimate_factor", &EngineStats::estimate_factor, "Of step estimates, by audits.")
      .field("estimates", &EngineStats::estimates, "Of errors of compositions.")
      .field("audits", &EngineStats::audits, "Errors that audits found.")
      .field("speculation", &EngineStats::speculation, "What speculation did.");
  stats.type().def(
      "prometheus", [](const EngineStats& self) { return to_prometheus(self); },
      "The Prometheus text format 0.0.4.");
  stats.finish();
}

}  // namespace

void bind_stats(nb::module_& module) {
  bind_branch_stats(module);
  bind_speculation_stats(module);
  bind_session_stats(module);
  bind_kl_histogram(module);
  bind_engine_stats(module);
}

}  // namespace dendrite::python
