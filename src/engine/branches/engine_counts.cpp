#include "engine/branches/engine_counts.h"

#include <algorithm>

namespace dendrite {

void CallTotals::add(const CallRecord& call) {
  ++calls;
  ms += call.ms;
  queued_ms += call.queued_ms;
  if (call.tokens == 0) return;
  ++first_tokens;
  first_token_ms += call.first_token_ms;
}

void add(Stats& sum, const Stats& part) {
  sum.tokens_computed += part.tokens_computed;
  sum.tokens_independent += part.tokens_independent;
  sum.tokens_generated += part.tokens_generated;
  sum.tokens_drafted += part.tokens_drafted;
  sum.tokens_accepted += part.tokens_accepted;
  sum.tokens_reused += part.tokens_reused;
  sum.tokens_redundant += part.tokens_redundant;
  sum.tokens_moved += part.tokens_moved;
  sum.tokens_repaired += part.tokens_repaired;
  sum.compositions += part.compositions;
  sum.tokens_discarded += part.tokens_discarded;
  sum.steps += part.steps;
  sum.forks += part.forks;
  sum.prunes += part.prunes;
  sum.copies_on_write += part.copies_on_write;
  sum.branches_live += part.branches_live;
  sum.evictions += part.evictions;
  sum.preemptions += part.preemptions;
  sum.tokens_regenerated += part.tokens_regenerated;
  sum.largest_batch_rows = std::max(sum.largest_batch_rows, part.largest_batch_rows);
}

}  // namespace dendrite
