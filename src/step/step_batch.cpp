// The batch of what was chosen: its order, its rows, its attention plans.
#include <algorithm>
#include <utility>

#include "backend/pass.h"
#include "step/step_plan.h"

namespace dendrite {

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
    sequences_.push_back(
        {table, run.rows_begin, static_cast<std::int32_t>(run.rows_end - run.rows_begin)});
    if (tree.segment(*run.owner) == run.segment) add_mark(*run.owner);
  }
  order_sequences();
  ordered_runs_.clear();
  for (const std::int32_t i : order_) ordered_runs_.push_back(runs[static_cast<std::size_t>(i)]);
  std::swap(runs, ordered_runs_);
  std::int32_t row = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].segment->plan_mark = static_cast<std::int32_t>(i);
    if (runs[i].states >= 0) recurrence_.place(runs[i].states, row);
    runs[i].first_row = row + static_cast<std::int32_t>(runs[i].begin - runs[i].rows_begin);
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
  ordered_.clear();
  for (std::size_t i = 0; i < order_.size(); ++i) {
    ordered_.push_back(sequences_[static_cast<std::size_t>(order_[i])]);
    ordered_.back().common = planner_.common()[i];
  }
  std::swap(sequences_, ordered_);
}

void StepPlan::plan_attention(std::span<const AttentionWindow> windows) {
  if (tells_places_) add_places();
  batch.plans.resize(windows.size());
  for (std::size_t i = 0; i < windows.size(); ++i) {
    planner_.build(sequences_, windows[i], batch.plans[i]);
  }
}

void StepPlan::add_places() {
  for (const PlanSequence& sequence : sequences_) {
    for (std::int64_t p = sequence.first_position; p < sequence.first_position + sequence.rows;
         ++p) {
      batch.places.push_back(slot_at(sequence.table, p, page_tokens_));
      batch.before.push_back(p == 0 ? -1 : slot_at(sequence.table, p - 1, page_tokens_));
    }
  }
}

void StepPlan::build_next(KvTree& tree, std::vector<NextRow>& rows,
                          std::span<const AttentionWindow> windows) {
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
    if (tree.states() != nullptr) recurrence_.place(order_[i], static_cast<std::int64_t>(i));
  }
  rows = std::move(ordered);
  plan_attention(windows);
  if (tree.states() != nullptr) recurrence_.build(batch.rows(), batch.recurrence);
}

/// Those that recurrent layers go through again.
void StepPlan::add_rows_before(const KvTree& tree, const Run& run) {
  const std::int64_t end = std::min(run.begin, run.rows_end);
  const std::size_t first = batch.tokens.size();
  batch.tokens.resize(first + static_cast<std::size_t>(end - run.rows_begin));
  tree.copy_tokens(*run.owner, run.rows_begin, end, batch.tokens.data() + first);
  for (std::int64_t p = run.rows_begin; p < end; ++p) batch.positions.push_back(p);
  batch.slots.resize(batch.tokens.size(), -1);
}

void StepPlan::fill_rows(const KvTree& tree, const Capacity& capacity) {
  batch.clear();
  logit_targets.clear();
  draw_rows.clear();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Run& run = runs[i];
    if (run.rows_begin < run.begin) add_rows_before(tree, run);
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
  for (const Move& move : moves) add_extra_stores(tree, *move.segment);
  std::sort(batch.extra_stores.begin(), batch.extra_stores.end(),
            [](const ExtraStore& a, const ExtraStore& b) {
              return a.row != b.row ? a.row < b.row : a.slot < b.slot;
            });
  plan_attention(capacity.windows);
  if (tree.states() != nullptr) recurrence_.build(batch.rows(), batch.recurrence);
}

/// A segment's first page may hold slots of ancestors. Those whose tokens are computed in this very
/// batch could not be copied when the page was reserved: their rows store there, too.
void StepPlan::add_extra_stores(const KvTree& tree, const Segment& segment) {
  extra_slots_.clear();
  tree.extra_stores(segment, extra_slots_);
  for (const ExtraSlot& extra : extra_slots_) {
    if (extra.owner->plan_mark < 0 || extra.owner->moved()) continue;
    const Run& source = runs[static_cast<std::size_t>(extra.owner->plan_mark)];
    if (extra.position < source.begin || extra.position >= source.end) continue;
    batch.extra_stores.push_back(
        {static_cast<std::int32_t>(source.first_row + (extra.position - source.begin)),
         extra.slot});
  }
}

/// Where what is moved comes from and goes to: a segment's own slots, and those in first pages of
/// segments below it that this step writes.
void StepPlan::find_slots(KvTree& tree) {
  slot_moves.clear();
  if (moves.empty()) return;
  for (const Move& move : moves) add_slot_moves(tree, move);
  const auto add_heads = [&](const Segment& segment) {
    extra_slots_.clear();
    tree.extra_stores(segment, extra_slots_);
    std::ranges::reverse(extra_slots_);  // ascending
    for (const ExtraSlot& extra : extra_slots_) {
      if (extra.owner->plan_mark < kMoveMark) continue;
      const Move& move = moves[static_cast<std::size_t>(extra.owner->plan_mark - kMoveMark)];
      if (extra.position >= move.end) continue;
      add_slots(tree.table(move.segment->source->tip), move.segment->shift, extra.position,
                extra.slot);
    }
  };
  for (const Run& run : runs) {
    if (run.store) add_heads(*run.segment);
  }
  for (const Move& move : moves) add_heads(*move.segment);
}

void StepPlan::add_slot_moves(KvTree& tree, const Move& move) {
  const Segment& segment = *move.segment;
  const std::span<const std::int32_t> table = tree.table(segment.source->tip);
  for (std::int64_t p = move.begin; p < move.end; ++p) {
    add_slots(table, segment.shift, p, tree.slot(segment, p));
  }
}

/// One more position, of a source with this page table; after the last one's if that can be.
void StepPlan::add_slots(std::span<const std::int32_t> table, std::int64_t shift,
                         std::int64_t position, std::int64_t to) {
  const std::int64_t there = position + shift;
  const std::int64_t page = table[static_cast<std::size_t>(there / page_tokens_)];
  const std::int64_t from = page * page_tokens_ + there % page_tokens_;
  if (!slot_moves.empty() && from % page_tokens_ != 0 && to % page_tokens_ != 0) {
    KvMove& last = slot_moves.back();
    if (from == last.from_slot + last.count && to == last.to_slot + last.count &&
        position == last.new_position + last.count && there == last.old_position + last.count) {
      ++last.count;
      return;
    }
  }
  slot_moves.push_back({from, to, 1, there, position});
}

void StepPlan::assign_draws(const Turn& turn) {
  std::int32_t drawn = 0;
  for (std::size_t i = 0; i < turn.requests.size(); ++i) {
    const StepRequest& request = turn.requests[i];
    // A draft holds what it begins at, and never asks for that distribution.
    const bool is_draft = !request.chain_draws.empty();
    if (request.draw == nullptr && !is_draft) continue;
    const Segment* segment = turn.tree.segment(*request.tip);
    if (is_draft) segment = segment->parent;
    if (segment == nullptr || segment->plan_mark < 0 || segment->plan_mark >= kMoveMark) continue;
    Run& run = runs[static_cast<std::size_t>(segment->plan_mark)];
    if (!run.keep_logits) continue;
    ++run.served;
    if (is_draft) continue;
    turn.outcomes[i].drawn = drawn++;
    draw_rows.push_back(run.last_logit_row);
  }
}

}  // namespace dendrite
