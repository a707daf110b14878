#include "engine/step_plan.h"

#include <algorithm>
#include <optional>

#include "backend/pass.h"

namespace dendrite {

void StepPlan::build(KvTree& tree, std::span<StepRequest> requests, const Capacity& capacity,
                     const MakeRoom& make_room) {
  for (StepRequest& request : requests) request.account = {};
  choose_runs(tree, requests, capacity, make_room);
  choose_optional(tree, requests, capacity, make_room);
  order_runs(tree);
  fill_rows(tree, capacity);
  assign_draws(tree, requests);
  for (const Run& run : runs) run.segment->plan_mark = -1;
}

void StepPlan::choose_runs(KvTree& tree, std::span<StepRequest> requests, const Capacity& capacity,
                           const MakeRoom& make_room) {
  runs.clear();
  rows_ = 0;
  logit_rows_ = 0;
  waiting_.clear();
  bool any_ready = false;
  std::optional<int> awaited;  // the highest priority of those that wait
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (rows_ == capacity.rows || logit_rows_ == capacity.logit_rows) return;
    StepRequest& request = requests[i];
    if (request.state != StepRequest::State::kOpen || request.optional) continue;
    const std::size_t before = runs.size();
    // What a higher priority waits for is given to no other: it would be taken back at the next
    // step, and one that needs several steps to compute its tokens would begin again for ever.
    if (awaited && request.priority < *awaited) {
      if (const std::int64_t needed = tree.pages_needed(*request.tip); needed > 0) {
        request.account.waited = true;
        request.account.pages_missing = needed;
        waiting_.push_back(i);
        continue;
      }
    }
    if (!serve(tree, request, capacity)) {
      make_room(tree.pages_needed(*request.tip), i, false);
      if (!serve(tree, request, capacity)) {
        waiting_.push_back(i);
        awaited = std::max(awaited.value_or(request.priority), request.priority);
        continue;
      }
    }
    any_ready = any_ready || runs.size() == before;
  }
  if (!runs.empty() || any_ready) return;
  // Everyone waits for pages that others hold: the foremost takes them, and the others come back
  // when it has finished. One that can't run even so never will.
  std::stable_sort(waiting_.begin(), waiting_.end(), [&](std::size_t a, std::size_t b) {
    return requests[a].priority > requests[b].priority;
  });
  for (const std::size_t i : waiting_) {
    make_room(tree.pages_needed(*requests[i].tip), i, true);
    if (serve(tree, requests[i], capacity)) return;
    requests[i].state = StepRequest::State::kNoRoom;
  }
}

void StepPlan::choose_optional(KvTree& tree, std::span<StepRequest> requests,
                               const Capacity& capacity, const MakeRoom& make_room) {
  const auto wants = [](const StepRequest& request) {
    return request.optional && request.state == StepRequest::State::kOpen;
  };
  if (!capacity.widest || std::ranges::none_of(requests, wants)) return;
  Capacity wider = capacity;
  wider.rows = capacity.widest(rows_);
  std::int64_t kept = 0;  // distributions that are only drawn from: that takes time, too
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (rows_ + kept >= wider.rows || logit_rows_ == wider.logit_rows) return;
    if (!wants(requests[i])) continue;
    const std::int64_t before = rows_;
    if (!serve(tree, requests[i], wider)) {
      make_room(tree.pages_needed(*requests[i].tip), i, false);
      serve(tree, requests[i], wider);
    }
    if (requests[i].account.ran && rows_ == before) ++kept;
  }
}

bool StepPlan::serve(KvTree& tree, StepRequest& request, const Capacity& capacity) {
  const KvTreeStats before = tree.stats();
  const std::int64_t rows_before = rows_;
  StepRequest::Account& account = request.account;
  account.ran = add_request(tree, request, capacity);
  account.waited = !account.ran;
  account.rows = rows_ - rows_before;
  account.copies = tree.stats().copies_on_write - before.copies_on_write;
  account.copied_tokens = tree.stats().copied_tokens - before.copied_tokens;
  if (account.waited) account.pages_missing = tree.pages_needed(*request.tip);
  return account.ran;
}

bool StepPlan::add_request(KvTree& tree, const StepRequest& request, const Capacity& capacity) {
  if (tree.computed(*request.tip) == tree.length(*request.tip)) {
    Segment* tip = tree.segment(*request.tip);
    if (!request.keep_logits || tip->logits != nullptr || tip->plan_mark >= 0) return true;
    add_run({.segment = tip,
             .owner = request.tip,
             .begin = tip->end() - 1,
             .end = tip->end(),
             .store = false,
             .keep_logits = true},
            capacity);
    return true;
  }
  if (!tree.reserve(*request.tip)) return false;
  chain_.clear();
  tree.missing_chain(*request.tip, chain_);
  const Segment* tip = tree.segment(*request.tip);
  for (Segment* segment : chain_) {
    const bool keep = segment == tip && request.keep_logits;
    if (segment->plan_mark >= 0) {
      Run& run = runs[static_cast<std::size_t>(segment->plan_mark)];
      if (run.end < segment->end()) break;  // cut by what limits requests that are not optional
      if (keep && logit_rows_ < capacity.logit_rows) keep_logits(run);
      continue;
    }
    if (!add_run({.segment = segment,
                  .owner = request.tip,
                  .begin = segment->computed,
                  .end = segment->end(),
                  .keep_logits = keep,
                  .logits_from = request.logits_from},
                 capacity)) {
      break;
    }
  }
  return true;
}

/// Adds as much of the run as there is capacity for; false if that is less than all of it.
bool StepPlan::add_run(const Run& wanted, const Capacity& capacity) {
  Run run = wanted;
  run.end = std::min(run.end, run.begin + capacity.rows - rows_);
  if (run.logits_from < run.end) {
    const std::int64_t first = std::max(run.begin, run.logits_from);
    run.end = std::min(run.end, first + capacity.logit_rows - logit_rows_);
    logit_rows_ += std::max<std::int64_t>(0, run.end - first);
  }
  if (run.begin == run.end) return false;
  const bool whole = run.end == wanted.end;
  run.keep_logits = false;
  run.segment->plan_mark = static_cast<std::int32_t>(runs.size());
  rows_ += run.end - run.begin;
  runs.push_back(run);
  if (wanted.keep_logits && whole && logit_rows_ < capacity.logit_rows) keep_logits(runs.back());
  return whole;
}

void StepPlan::keep_logits(Run& run) {
  if (run.keep_logits || run.end < run.segment->end()) return;
  run.keep_logits = true;
  if (run.logits_from >= run.end) ++logit_rows_;  // else its row is wanted anyway
}

/// Depth-first order, so that rows that see the same pages are neighbours.
void StepPlan::order_runs(KvTree& tree) {
  sequences_.clear();
  tables_.resize(std::max(tables_.size(), runs.size()));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    std::span<const std::int32_t> table = tree.table(*run.owner);
    if (tree.segment(*run.owner) != run.segment) {
      // The owner sees an ancestor's last, partly filled page through its own copy of it.
      const auto first = static_cast<std::ptrdiff_t>(run.segment->begin / page_tokens_);
      std::vector<std::int32_t>& own = tables_[i];
      own.assign(table.begin(), table.begin() + first);
      for (std::int64_t p = 0; p < run.segment->page_count; ++p) {
        own.push_back(index_of(run.segment->page(p)));
      }
      table = own;
    }
    sequences_.push_back({table, run.begin, static_cast<std::int32_t>(run.end - run.begin)});
    if (tree.segment(*run.owner) == run.segment) add_mark(*run.owner);
  }
  order_sequences();
  std::vector<Run> ordered;
  ordered.reserve(runs.size());
  for (const std::int32_t i : order_) ordered.push_back(runs[static_cast<std::size_t>(i)]);
  runs = std::move(ordered);
  std::int32_t row = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].segment->plan_mark = static_cast<std::int32_t>(i);
    runs[i].first_row = row;
    row += sequences_[i].rows;
  }
}

/// The last sequence's table is the tip's, as far as its entries are settled.
void StepPlan::add_mark(const Tip& tip) {
  const KvTree::TableMark mark = KvTree::table_mark(tip);
  sequences_.back().stamp = mark.stamp;
  sequences_.back().settled = mark.settled;
}

/// Puts `sequences_` in the planner's order; `order_` says where each of them was.
void StepPlan::order_sequences() {
  planner_.order(sequences_, order_);
  std::vector<PlanSequence> ordered;
  ordered.reserve(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    ordered.push_back(sequences_[static_cast<std::size_t>(order_[i])]);
    ordered.back().common = planner_.common()[i];
  }
  sequences_ = std::move(ordered);
}

void StepPlan::plan_attention(std::span<const std::int64_t> windows) {
  batch.plans.resize(windows.size());
  for (std::size_t i = 0; i < windows.size(); ++i) {
    planner_.build(sequences_, windows[i], batch.plans[i]);
  }
}

void StepPlan::build_next(KvTree& tree, std::vector<NextRow>& rows,
                          std::span<const std::int64_t> windows) {
  runs.clear();
  logit_targets.clear();
  batch.clear();
  sequences_.clear();
  tables_.resize(std::max(tables_.size(), rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::span<const std::int32_t> table = tree.table(*rows[i].tip);
    if (rows[i].slot.spare) {  // not in the tree yet
      tables_[i].assign(table.begin(), table.end());
      tables_[i].push_back(index_of(rows[i].slot.page));
      table = tables_[i];
    }
    sequences_.push_back({table, tree.length(*rows[i].tip), 1});
    add_mark(*rows[i].tip);
  }
  order_sequences();
  std::vector<NextRow> ordered;
  ordered.reserve(rows.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const NextRow& row = ordered.emplace_back(rows[static_cast<std::size_t>(order_[i])]);
    batch.tokens.push_back(PassInputs::token_of_draw(row.drawn));
    batch.positions.push_back(sequences_[i].first_position);
    batch.slots.push_back(row.slot.slot);
    batch.logit_rows.push_back(static_cast<std::int32_t>(i));
  }
  rows = std::move(ordered);
  plan_attention(windows);
}

void StepPlan::fill_rows(const KvTree& tree, const Capacity& capacity) {
  batch.clear();
  logit_targets.clear();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Run& run = runs[i];
    for (std::int64_t p = run.begin; p < run.end; ++p) {
      const auto row = static_cast<std::int32_t>(batch.tokens.size());
      batch.tokens.push_back(run.segment->token(p));
      batch.positions.push_back(p);
      batch.slots.push_back(run.store ? tree.slot(*run.segment, p) : -1);
      if (p >= run.logits_from || (run.keep_logits && p == run.end - 1)) {
        run.last_logit_row = static_cast<std::int32_t>(batch.logit_rows.size());
        batch.logit_rows.push_back(row);
        logit_targets.push_back({static_cast<std::int32_t>(i), p});
      }
    }
    if (run.store) add_extra_stores(tree, *run.segment);
  }
  std::sort(batch.extra_stores.begin(), batch.extra_stores.end(),
            [](const ExtraStore& a, const ExtraStore& b) {
              return a.row != b.row ? a.row < b.row : a.slot < b.slot;
            });
  plan_attention(capacity.windows);
}

/// A segment's first page may hold slots of ancestors. Those whose tokens are computed in this very
/// batch could not be copied when the page was reserved: their rows store there, too.
void StepPlan::add_extra_stores(const KvTree& tree, const Segment& segment) {
  extra_slots_.clear();
  tree.extra_stores(segment, extra_slots_);
  for (const ExtraSlot& extra : extra_slots_) {
    if (extra.owner->plan_mark < 0) continue;
    const Run& source = runs[static_cast<std::size_t>(extra.owner->plan_mark)];
    if (extra.position < source.begin || extra.position >= source.end) continue;
    batch.extra_stores.push_back(
        {static_cast<std::int32_t>(source.first_row + (extra.position - source.begin)),
         extra.slot});
  }
}

void StepPlan::assign_draws(const KvTree& tree, std::span<StepRequest> requests) {
  std::int32_t drawn = 0;
  for (StepRequest& request : requests) {
    if (request.draw == nullptr) continue;
    request.draw->row = -1;
    request.drawn = -1;
    const Segment* tip = tree.segment(*request.tip);
    if (tip->plan_mark < 0) continue;
    Run& run = runs[static_cast<std::size_t>(tip->plan_mark)];
    if (!run.keep_logits) continue;
    request.draw->row = run.last_logit_row;
    request.drawn = drawn++;
    ++run.draws;
  }
}

}  // namespace dendrite
