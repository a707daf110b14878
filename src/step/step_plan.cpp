#include "step/step_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace dendrite {

void StepPlan::build(KvTree& tree, std::span<const StepRequest> requests,
                     std::span<StepOutcome> outcomes, const Capacity& capacity,
                     const MakeRoom& make_room) {
  const Turn turn{tree, requests, outcomes, capacity, make_room};
  for (const StepRequest& request : requests) tree.open_sources(*request.tip);
  choose_runs(turn);
  choose_optional(turn);
  order_runs(tree);
  fill_rows(tree, capacity);
  assign_draws(turn);
  find_slots(tree);
  for (const Run& run : runs) run.segment->plan_mark = -1;
  for (const Move& move : moves) {
    move.segment->plan_mark = -1;
    tree.add_reader(*move.segment, move.begin, move.end, -1);
  }
}

void StepPlan::choose_runs(const Turn& turn) {
  runs.clear();
  moves.clear();
  rows_ = 0;
  logit_rows_ = 0;
  moved_ = 0;
  waiting_.clear();
  taken_.assign(turn.capacity.groups.size(), 0);
  any_ready_ = false;
  held_back_ = false;
  comes_back_anyhow_ = false;
  recurrence_.begin(turn.tree);
  choose_shared(turn);
  choose_left_over(turn);
  if (runs.empty() && moves.empty() && held_back_) {  // those with seats do not run
    comes_back_anyhow_ = true;
    choose_shared(turn);
  }
  if (runs.empty() && moves.empty() && !any_ready_) choose_alone(turn);
}

/// In the order of the requests, each group up to its share.
void StepPlan::choose_shared(const Turn& turn) {
  std::optional<int> awaited;  // the highest priority of those that wait
  for (std::size_t i = 0; i < turn.requests.size(); ++i) {
    if (is_full(turn)) return;
    const StepRequest& request = turn.requests[i];
    const StepGroup& group = turn.capacity.groups[static_cast<std::size_t>(request.group)];
    const Limit limit = limit_of(turn, request, std::min(group.share, group.budget));
    if (request.optional || limit.rows <= rows_) continue;
    // What one that waits needs is given to none of a lower priority: it would be taken back at the
    // next step, and one that needs several steps to compute its tokens would begin again for ever.
    // Nor to one that has only come since: there may always be another.
    if (awaited &&
        (request.priority < *awaited || (request.fresh && request.priority == *awaited))) {
      if (const std::int64_t needed = turn.tree.pages_needed(*request.tip); needed > 0) {
        turn.outcomes[i].waited = true;
        turn.outcomes[i].pages_missing = needed;
        waiting_.push_back(i);
        continue;
      }
    }
    if (!serve_with_room(turn, i, limit)) {
      awaited = std::max(awaited.value_or(request.priority), request.priority);
    }
  }
}

/// Rows that their groups leave: several requests may need one and the same row.
void StepPlan::choose_left_over(const Turn& turn) {
  for (std::size_t i = 0; i < turn.requests.size(); ++i) {
    if (is_full(turn)) return;
    const StepRequest& request = turn.requests[i];
    if (request.optional || turn.outcomes[i].ran || turn.outcomes[i].waited) continue;
    const StepGroup& group = turn.capacity.groups[static_cast<std::size_t>(request.group)];
    const Limit limit = limit_of(turn, request, group.budget);
    if (limit.rows > rows_) serve_with_room(turn, i, limit);
  }
}

/// Everyone waits for pages that others hold: the foremost takes them, and the others come back
/// when it has finished. One that can't run even so never will.
void StepPlan::choose_alone(const Turn& turn) {
  std::stable_sort(waiting_.begin(), waiting_.end(), [&](std::size_t a, std::size_t b) {
    return turn.requests[a].priority > turn.requests[b].priority;
  });
  comes_back_anyhow_ = true;
  for (const std::size_t i : waiting_) {
    const StepRequest& request = turn.requests[i];
    const StepGroup& group = turn.capacity.groups[static_cast<std::size_t>(request.group)];
    turn.make_room(turn.tree.pages_needed(*request.tip), i, true);
    if (serve(turn, i, limit_of(turn, request, group.budget))) return;
    turn.outcomes[i].no_room = true;
  }
}

void StepPlan::choose_optional(const Turn& turn) {
  if (!turn.capacity.widest || std::ranges::none_of(turn.requests, &StepRequest::optional)) return;
  const std::int64_t widest = turn.capacity.widest(rows_);
  comes_back_anyhow_ = false;
  held_back_ = false;
  serve_optional(turn, widest);
  if (runs.empty() && moves.empty() && held_back_) {  // those with seats do not run
    comes_back_anyhow_ = true;
    serve_optional(turn, widest);
  }
}

void StepPlan::serve_optional(const Turn& turn, std::int64_t widest) {
  std::int64_t kept = 0;  // distributions that are only drawn from: that takes time, too
  for (std::size_t i = 0; i < turn.requests.size(); ++i) {
    if (rows_ + kept >= widest || logit_rows_ == turn.capacity.logit_rows) return;
    if (!turn.requests[i].optional) continue;
    const std::int64_t before = rows_;
    serve_with_room(turn, i, {widest, turn.capacity.logit_rows});
    if (turn.outcomes[i].ran && rows_ == before) ++kept;
  }
}

bool StepPlan::is_full(const Turn& turn) const {
  return rows_ == turn.capacity.rows || logit_rows_ == turn.capacity.logit_rows;
}

StepPlan::Limit StepPlan::limit_of(const Turn& turn, const StepRequest& request,
                                   std::int64_t most) const {
  const std::int64_t left = most - taken_[static_cast<std::size_t>(request.group)];
  const std::int64_t rows = std::clamp<std::int64_t>(left, 0, turn.capacity.rows - rows_);
  return {rows_ + rows, turn.capacity.logit_rows};
}

bool StepPlan::serve_with_room(const Turn& turn, std::size_t i, Limit limit) {
  if (serve(turn, i, limit)) return true;
  turn.make_room(turn.tree.pages_needed(*turn.requests[i].tip), i, false);
  if (serve(turn, i, limit)) return true;
  if (!turn.requests[i].optional) waiting_.push_back(i);
  return false;
}

bool StepPlan::serve(const Turn& turn, std::size_t i, Limit limit) {
  const StepRequest& request = turn.requests[i];
  StepOutcome& outcome = turn.outcomes[i];
  const KvTreeStats before = turn.tree.stats();
  const std::int64_t rows_before = rows_;
  const std::int64_t moved_before = moved_;
  const std::int64_t acquired_before = turn.tree.pool().acquired();
  const bool others_held_back = std::exchange(held_back_, false);
  const bool has_pages = add_request(turn, i, limit);
  outcome.rows = rows_ - rows_before;
  outcome.ran = has_pages && (outcome.rows > 0 || !held_back_);
  outcome.waited = !has_pages;
  held_back_ = held_back_ || others_held_back;
  outcome.moved = moved_ - moved_before;
  const KvTreeStats after = turn.tree.stats();
  outcome.copies = after.copies_on_write - before.copies_on_write;
  outcome.copied_tokens = after.copied_tokens - before.copied_tokens;
  outcome.pages = turn.tree.pool().acquired() - acquired_before;
  if (outcome.waited) outcome.pages_missing = turn.tree.pages_needed(*request.tip);
  if (!request.optional) {
    taken_[static_cast<std::size_t>(request.group)] += outcome.rows;
    any_ready_ = any_ready_ || (outcome.ran && outcome.rows == 0);
  }
  return has_pages;
}

bool StepPlan::add_request(const Turn& turn, std::size_t i, Limit limit) {
  KvTree& tree = turn.tree;
  const StepRequest& request = turn.requests[i];
  if (tree.computed(*request.tip) == tree.length(*request.tip)) {
    Segment* tip = tree.segment(*request.tip);
    if (!request.keep_logits || tip->logits != nullptr || tip->plan_mark >= 0) return true;
    add_run(tree,
            {.segment = tip,
             .owner = request.tip,
             .request = i,
             .begin = tip->end() - 1,
             .end = tip->end(),
             .store = false,
             .keep_logits = true},
            limit);
    return true;
  }
  if (!tree.reserve(*request.tip)) return false;
  add_chain(turn, *request.tip, i, limit, false);
  return true;
}

void StepPlan::add_chain(const Turn& turn, Tip& owner, std::size_t i, Limit limit, bool is_source) {
  KvTree& tree = turn.tree;
  const StepRequest& request = turn.requests[i];
  std::vector<Segment*> chain = std::exchange(chain_, {});  // (that of a source is another one)
  tree.missing_chain(owner, chain);
  const Segment* tip = is_source ? nullptr : tree.segment(owner);
  bool all_before = true;  // of the chain is computed by this step
  for (Segment* segment : chain) {
    if (segment->moved()) {
      // (Behind what is computed by a later step, sources may be computed by this one.)
      const bool opened = !segment->source->tip.empty();
      if (opened && !tree.can_move(*segment)) add_chain(turn, segment->source->tip, i, limit, true);
      all_before = all_before && opened && add_move(turn, *segment, i);
      continue;
    }
    if (!all_before) continue;
    const bool keep = segment == tip && request.keep_logits;
    if (segment->plan_mark >= 0) {
      Run& run = runs[static_cast<std::size_t>(segment->plan_mark)];
      all_before = run.end == segment->end();  // else cut by another request's limit
      if (all_before && keep && logit_rows_ < limit.logit_rows) keep_logits(run);
      continue;
    }
    Run run{.segment = segment,
            .owner = &owner,
            .request = i,
            .begin = segment->computed,
            .end = segment->end(),
            .keep_logits = keep};
    if (!is_source) {
      run.logits_from = request.logits_from;
      run.sink = request.sink;
      run.hidden = request.hidden;
      run.chain_lanes = request.chain_lanes;
    }
    if (segment == tip) {
      run.chain_draws = request.chain_draws;
      run.chain_rows = request.chain_rows;
    }
    all_before = add_run(tree, run, limit);
  }
  chain_ = std::move(chain);
}

/// False: not all of it comes with this step.
bool StepPlan::add_move(const Turn& turn, Segment& segment, std::size_t i) {
  if (segment.plan_mark >= kMoveMark) {
    return moves[static_cast<std::size_t>(segment.plan_mark - kMoveMark)].end == segment.end();
  }
  if (!turn.tree.can_move(segment)) return false;
  const std::int64_t begin = segment.computed;
  const std::int64_t end = std::min(segment.end(), begin + turn.capacity.moves - moved_);
  if (begin == end) return false;
  segment.plan_mark = kMoveMark + static_cast<std::int32_t>(moves.size());
  moves.push_back({&segment, i, begin, end});
  turn.tree.add_reader(segment, begin, end, 1);
  moved_ += end - begin;
  return end == segment.end();
}

/// Adds as much of the run as there is room for; false if that is less than all of it.
bool StepPlan::add_run(KvTree& tree, const Run& wanted, Limit limit) {
  Run run = wanted;
  const bool recurs = tree.states() != nullptr;
  run.rows_begin = recurs ? recurrence_.start(tree, *run.owner, run.begin) : run.begin;
  const std::int64_t rows_end = std::min(run.end, run.rows_begin + limit.rows - rows_);
  run.end = std::max(run.begin, rows_end);
  std::int64_t logit_rows = 0;
  if (run.logits_from < run.end) {
    const std::int64_t first = std::max(run.begin, run.logits_from);
    run.end = std::min(run.end, first + limit.logit_rows - logit_rows_);
    logit_rows = std::max<std::int64_t>(0, run.end - first);
  }
  run.rows_end = run.end > run.begin ? run.end : std::min(rows_end, run.begin);
  if (run.rows_begin == run.rows_end) return false;
  if (run.rows_begin < run.begin && !comes_back_anyhow_ &&
      !recurrence_.may_come_back(tree, *run.owner, run.rows_end)) {
    held_back_ = true;
    return false;
  }
  comes_back_anyhow_ = false;
  logit_rows_ += logit_rows;
  const bool whole = run.end == wanted.end;
  run.keep_logits = false;
  run.segment->plan_mark = static_cast<std::int32_t>(runs.size());
  rows_ += run.rows_end - run.rows_begin;
  if (recurs) run.states = recurrence_.add(tree, *run.owner, run.begin, run.rows_end, run.store);
  runs.push_back(run);
  if (wanted.keep_logits && whole && logit_rows_ < limit.logit_rows) keep_logits(runs.back());
  return whole;
}

void StepPlan::keep_logits(Run& run) {
  if (run.keep_logits || run.end < run.segment->end()) return;
  run.keep_logits = true;
  if (run.logits_from >= run.end) ++logit_rows_;  // else its row is wanted anyway
}

}  // namespace dendrite
