#include "stats_since.h"

namespace dendrite::bench {
namespace {

SpeculationStats since(const SpeculationStats& before, SpeculationStats after) {
  after.drafts -= before.drafts;
  after.tokens_budget -= before.tokens_budget;
  after.tokens_proposed -= before.tokens_proposed;
  after.tokens_wasted -= before.tokens_wasted;
  after.siblings_taken -= before.siblings_taken;
  after.tokens_accepted_as_chain -= before.tokens_accepted_as_chain;
  after.fallbacks -= before.fallbacks;
  for (std::size_t i = 0; i < kDraftDepth; ++i) {
    after.accept_depth_by_position[i] -= before.accept_depth_by_position[i];
  }
  after.steps_drafted -= before.steps_drafted;
  after.steps_plain -= before.steps_plain;
  after.steps_drafted_seconds -= before.steps_drafted_seconds;
  after.steps_plain_seconds -= before.steps_plain_seconds;
  after.draft_seconds -= before.draft_seconds;
  return after;
}

}  // namespace

Stats stats_since(const Stats& before, const Stats& after) {
  Stats out;
  out.tokens_computed = after.tokens_computed - before.tokens_computed;
  out.tokens_generated = after.tokens_generated - before.tokens_generated;
  out.tokens_drafted = after.tokens_drafted - before.tokens_drafted;
  out.tokens_accepted = after.tokens_accepted - before.tokens_accepted;
  out.steps = after.steps - before.steps;
  out.speculation = since(before.speculation, after.speculation);
  return out;
}

}  // namespace dendrite::bench
