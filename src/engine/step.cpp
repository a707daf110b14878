// One turn of the engine: everything else that computes is a loop around it. And debug mode's
// look at all that a turn, or a call between two, may have changed.
#include <algorithm>

#include "engine/engine_core.h"
#include "engine/evictor.h"
#include "engine/tell.h"

namespace dendrite {

StepReport EngineCore::step(std::span<StepRequest> requests, LogprobSink* sink,
                            const StepLimits& limits) {
  StepReport report;
  if (early_step.begun() && early_step.take(requests, report)) {
    report.early = true;
    early_step.begin(requests, limits.rows - report.rows);
    finish_draws(requests);
    return report;
  }
  plan_step(requests, limits, report);
  if (plan->runs.empty()) return report;
  const Tensor logits = forward();
  const auto commit = [&]() DENDRITE_REQUIRES(kComputeLock) {
    const TreeLock lock(tree_mutex);
    commit_computed(report);
    debug_check();
  };
  if (backend->sampler() == nullptr) {
    take_on_host(sink, logits);
    commit();
    return report;
  }
  begin_draws(requests, logits);
  if (sink == nullptr && !keeps_rows()) {
    commit();
    early_step.begin(requests, limits.rows - report.rows);
    finish_draws(requests);
    return report;
  }
  finish_draws(requests);
  if (sink != nullptr) take_log_probs(*sink, logits);
  keep_rows(logits);
  commit();
  return report;
}

void EngineCore::plan_step(std::span<StepRequest> requests, const StepLimits& limits,
                           StepReport& report) {
  const TreeLock lock(tree_mutex);
  const KvTreeStats before = tree->stats();
  const std::int64_t acquired = tree->pool().acquired();
  Evictor evictor(*this, requests);
  const bool all_optional = std::ranges::all_of(requests, &StepRequest::optional);
  const auto widest = [&](std::int64_t rows) DENDRITE_REQUIRES(kTreeLock) -> std::int64_t {
    if (all_optional) return step_rows;
    // (Without rows, what is required needs no pass, and optional rows would be one.)
    return rows == 0 ? 0 : step_times->widest(rows, limits.slack, step_rows);
  };
  const auto make_room = [&](std::int64_t pages, std::size_t request, bool alone) DENDRITE_REQUIRES(
                             kTreeLock) { evictor.make_room(pages, request, alone); };
  plan->build(*tree, requests, {limits.rows, model->max_logit_rows(), model->windows(), widest},
              make_room);
  report.copies_on_write = tree->stats().copies_on_write - before.copies_on_write;
  report.pages_acquired = tree->pool().acquired() - acquired;
  report.evictions = tree->stats().evicted_segments - before.evicted_segments;
  report.preemptions = evictor.preemptions();
  for (const StepPlan::Run& run : plan->runs) {
    const std::int64_t again = std::min(run.end, run.segment->evicted_end) - run.begin;
    if (run.store) report.regenerated_rows += std::max<std::int64_t>(0, again);
    report.redundant_rows +=
        run.store ? tree->held_elsewhere(*run.segment, run.begin, run.end) : run.end - run.begin;
  }
  tell_planned(*this, requests);
  if (kv_debug != nullptr) [[unlikely]] {
    check_all();
    for (const std::int64_t slot : plan->batch.slots) kv_debug->check_write(*tree, slot);
    for (const ExtraStore& extra : plan->batch.extra_stores) {
      kv_debug->check_write(*tree, extra.slot);
    }
  }
}

void EngineCore::commit_computed(StepReport& report) {
  // Ancestors before descendants: an ancestor's missing positions come first.
  std::sort(plan->runs.begin(), plan->runs.end(),
            [](const StepPlan::Run& a, const StepPlan::Run& b) { return a.begin < b.begin; });
  std::vector<Segment*> parts;
  for (const StepPlan::Run& run : plan->runs) {
    report.rows += run.end - run.begin;
    if (!run.store) continue;
    // Another thread may have split the segment meanwhile: its upper part is an ancestor now.
    parts.clear();
    for (Segment* segment = run.segment; segment != nullptr && segment->end() > run.begin;
         segment = segment->parent) {
      parts.push_back(segment);
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      tree->set_computed(**part, std::max((*part)->computed, std::min(run.end, (*part)->end())));
    }
  }
}

void EngineCore::check_all() {
  std::vector<const Tip*> tips;
  for (const SessionCore* session : sessions) {
    for (const BranchState& branch : session->slab) {
      if (!branch.tip.empty()) tips.push_back(&branch.tip);
    }
  }
  for (const auto* of_call : call_tips) {
    for (const std::unique_ptr<Tip>& tip : *of_call) tips.push_back(tip.get());
  }
  if (prefix_index != nullptr) prefix_index->collect_tips(tips);
  kv_debug->check(*tree, tips);
}

}  // namespace dendrite
