#include "step/stepper.h"

#include <algorithm>

#include "step/room.h"

namespace dendrite {

Stepper::Stepper(const Parts& parts)
    : parts_(parts),
      plan_(parts.stores.kv.shape().page_tokens),
      readout_(parts.backend, parts.vocab, parts.tree_mutex) {
  plan_.tell_places(parts.drafter != nullptr && parts.drafter->wants_places());
}

StepReport Stepper::step(std::span<const StepRequest> requests, std::span<StepOutcome> outcomes,
                         const StepLimits& limits) {
  report_ = {};
  std::ranges::fill(outcomes, StepOutcome{});
  Flight flight = adopt(std::exchange(begun_, {}), requests, outcomes);
  if (!flight) {
    try {
      plan(requests, outcomes, limits);  // who runs; room; the batch
      if (plan_.runs.empty() && plan_.moves.empty()) return report_;
      if (!plan_.moves.empty()) move();
      if (!plan_.runs.empty()) flight = launch();  // forward
    } catch (...) {
      forget_states();
      throw;
    }
  }
  if (flight && !flight.draws_begun) begin_draws(flight, requests, outcomes);
  Readout::Rows rows;
  if (flight && !has_sampler()) rows = readout_.read_rows(plan_, flight.logits);
  Flight next;
  {
    const TreeLock lock(parts_.tree_mutex);
    if (!flight.early) commit();
    if (!flight) return report_;
    Readout::give_rows(plan_, rows);
    if (has_sampler()) next = plan_next(flight, requests, outcomes, limits);
  }
  report_.bytes_read = flight.bytes_read;
  if (next) begun_ = begin(std::move(next));
  collect(flight, outcomes);
  return report_;
}

void Stepper::plan(std::span<const StepRequest> requests, std::span<StepOutcome> outcomes,
                   const StepLimits& limits) {
  const TreeLock lock(parts_.tree_mutex);
  const std::int64_t acquired = parts_.tree.pool().acquired();
  Room room(parts_.tree, parts_.memories, parts_.host, requests, outcomes);
  const bool all_optional = std::ranges::all_of(requests, &StepRequest::optional);
  const auto widest = [&](std::int64_t rows) DENDRITE_REQUIRES(kTreeLock) -> std::int64_t {
    if (all_optional) return limits.rows;
    // (Without rows, what is required needs no pass, and optional rows would be one.)
    return rows == 0 ? 0 : times->widest(rows, limits.slack, limits.rows);
  };
  const auto make_room = [&](std::int64_t pages, std::size_t request, bool alone) DENDRITE_REQUIRES(
                             kTreeLock) { room.make_room(pages, request, alone); };
  plan_.build(parts_.tree, requests, outcomes,
              {limits.rows, parts_.model.max_logit_rows(), parts_.moves_a_step, limits.groups,
               parts_.model.windows(), widest},
              make_room);
  report_.pages_acquired = parts_.tree.pool().acquired() - acquired;
  count_runs(outcomes);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].optional && outcomes[i].ran && outcomes[i].rows == 0) ++report_.kept;
  }
  parts_.host.on_planned(requests, outcomes);
  if (parts_.debug != nullptr) [[unlikely]]
    check_writes();
}

/// What was planned to be kept was not written.
void Stepper::forget_states() {
  const TreeLock lock(parts_.tree_mutex);
  if (PathStates* states = parts_.tree.states()) states->clear();
}

void Stepper::count_runs(std::span<StepOutcome> outcomes) {
  for (const StepPlan::Run& run : plan_.runs) {
    StepOutcome& outcome = outcomes[run.request];
    const std::int64_t again = std::min(run.end, run.segment->evicted_end) - run.begin;
    if (run.store) {
      outcome.regenerated_rows += std::max<std::int64_t>(0, again);
      outcome.new_rows += run.end - run.begin - std::max<std::int64_t>(0, again);
    }
    outcome.redundant_rows += run.store
                                  ? parts_.tree.held_elsewhere(*run.segment, run.begin, run.end)
                                  : run.end - run.begin;
    outcome.redundant_rows += run.begin - run.rows_begin;
    report_.rows += run.rows_end - run.rows_begin;
  }
  for (const StepPlan::Move& move : plan_.moves) report_.moved += move.end - move.begin;
}

void Stepper::check_writes() {
  parts_.host.on_changed();
  for (const std::int64_t slot : plan_.batch.slots) parts_.debug->check_write(parts_.tree, slot);
  for (const ExtraStore& extra : plan_.batch.extra_stores) {
    parts_.debug->check_write(parts_.tree, extra.slot);
  }
  for (const KvMove& move : plan_.slot_moves) parts_.debug->check_write(parts_.tree, move.to_slot);
}

/// Before the pass, whose rows see what was moved.
void Stepper::move() {
  parts_.stores.kv.flush_copies();
  parts_.model.move(plan_.slot_moves, parts_.stores.kv);
}

Flight Stepper::launch() {
  Flight flight;
  flight.under_way = true;
  flight.bytes_read = bytes_to_read();
  flight.logits = forward();
  return flight;
}

/// (Of an embedding that is not the output matrix as well, it reads a row a token.)
std::int64_t Stepper::bytes_to_read() const {
  const Model& model = parts_.model;
  const KvShape& shape = parts_.stores.kv.shape();
  std::int64_t bytes = model.weight_bytes();
  if (&model.embedding() != &model.output_matrix()) bytes -= model.embedding().size_bytes();
  for (std::size_t i = 0; i < plan_.batch.plans.size(); ++i) {
    std::int64_t positions = 0;
    for (const AttentionItem& item : plan_.batch.plans[i].items) positions += item.end - item.begin;
    bytes += positions * model.layers_of_window(i) * (shape.token_bytes() / shape.layers);
  }
  return bytes;
}

Tensor Stepper::forward() {
  parts_.stores.flush_copies();
  const Tensor logits = parts_.model.forward(plan_.batch, parts_.stores);
  if (parts_.drafter != nullptr) parts_.drafter->add_context(plan_.batch, *parts_.stores.drafter);
  return logits;
}

void Stepper::begin_draws(Flight& flight, std::span<const StepRequest> requests,
                          std::span<const StepOutcome> outcomes) {
  if (!has_sampler()) return;
  parts_.host.before_draws();
  if (flight.early) {
    flight.complete_draws(requests, outcomes);
    parts_.backend.sampler()->begin_draw(flight.logits, flight.draws);
  } else {
    readout_.begin_draws(requests, outcomes, plan_, flight);
  }
  flight.draws_begun = true;
}

void Stepper::commit() {
  // Ancestors before descendants: an ancestor's missing positions come first.
  struct Done {
    Segment* segment;
    std::int64_t begin;
    std::int64_t end;
  };
  std::vector<Done> all;
  for (const StepPlan::Run& run : plan_.runs) {
    if (run.store) all.push_back({run.segment, run.begin, run.end});
  }
  for (const StepPlan::Move& move : plan_.moves)
    all.push_back({move.segment, move.begin, move.end});
  std::ranges::sort(all, {}, &Done::begin);
  std::vector<Segment*> parts;
  for (const Done& done : all) {
    // Another thread may have split the segment meanwhile: its upper part is an ancestor now.
    parts.clear();
    for (Segment* segment = done.segment; segment != nullptr && segment->end() > done.begin;
         segment = segment->parent) {
      parts.push_back(segment);
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      const std::int64_t end = std::min(done.end, (*part)->end());
      parts_.tree.set_computed(**part, std::max((*part)->computed, end));
    }
  }
  parts_.host.on_changed();
}

void Stepper::collect(Flight& flight, std::span<StepOutcome> outcomes) {
  report_.awaited = !has_sampler() || !flight.draws.empty() || !plan_.batch.logit_rows.empty() ||
                    Readout::wants_hidden(plan_);
  if (has_sampler()) readout_.finish_draws(flight, outcomes);
  for (StepPlan::NextRow& row : begun_.rows) {
    row.token = flight.draws[static_cast<std::size_t>(row.drawn)].token;
  }
  if (flight.early) return;
  if (has_sampler()) readout_.take_rows(plan_, flight.logits);
  if (Readout::wants_hidden(plan_)) readout_.take_hidden(plan_, parts_.model.hidden());
}

}  // namespace dendrite
