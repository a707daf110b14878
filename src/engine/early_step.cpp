#include "engine/early_step.h"

#include <algorithm>
#include <utility>

#include "dendrite/error.h"
#include "engine/engine_core.h"

namespace dendrite {

void EarlyStep::begin(std::span<const StepRequest> requests, std::int64_t most_rows) {
  {
    const TreeLock lock(engine_.tree_mutex);
    const bool found = find_places(requests);
    if (!found || std::ssize(rows_) > std::min(most_rows, engine_.model->max_logit_rows())) {
      give_places_back();
    }
    if (rows_.empty()) return;
    next_draws_.clear();
    engine_.plan->build_next(*engine_.tree, rows_, engine_.model->windows());
  }
  for (const StepPlan::NextRow& row : rows_) {
    next_draws_.push_back(*row.draw);
    next_draws_.back().row = static_cast<std::int32_t>(next_draws_.size() - 1);
  }
  try {
    const Tensor logits = engine_.forward();
    engine_.backend->sampler()->begin_draw(logits, next_draws_);
  } catch (const Error&) {
    const TreeLock lock(engine_.tree_mutex);
    give_places_back();
  }
}

/// A row for every request that goes on; false if one can't have it.
bool EarlyStep::find_places(std::span<const StepRequest> requests) {
  KvTree& tree = *engine_.tree;
  const std::int32_t kept = engine_.backend->sampler()->kept_draws();
  const auto place = [&](const StepRequest& request) {
    if (request.state != StepRequest::State::kOpen) return true;
    if (request.optional || request.drawn < 0 || request.drawn >= kept) return false;
    if (request.next == nullptr) return true;
    Segment* segment = tree.segment(*request.tip);
    if (segment->plan_mark >= 0) return false;  // a branch that was given twice
    const std::optional<NextSlot> slot = tree.take_next(*request.tip);
    if (!slot) return false;
    segment->plan_mark = 0;
    rows_.push_back({request.tip, request.next, request.drawn, *slot});
    return true;
  };
  const bool all = std::ranges::all_of(requests, place);
  for (const StepPlan::NextRow& row : rows_) tree.segment(*row.tip)->plan_mark = -1;
  return all;
}

void EarlyStep::give_places_back() {
  for (const StepPlan::NextRow& row : rows_) engine_.tree->give_back_next(row.slot);
  rows_.clear();
}

bool EarlyStep::take(std::span<StepRequest> requests, StepReport& report) {
  const TreeLock lock(engine_.tree_mutex);
  draws_.swap(next_draws_);
  report.discarded_rows = std::ssize(rows_);
  std::size_t row = 0;  // usually requests come in the order they had
  for (StepRequest& request : requests) {
    request.account = {};
    request.drawn = -1;
    if (request.draw != nullptr) request.draw->row = -1;
    if (request.state != StepRequest::State::kOpen) continue;
    std::size_t tried = 0;
    while (tried < rows_.size() && rows_[row].tip != request.tip) {
      row = (row + 1) % rows_.size();
      ++tried;
    }
    if (tried == rows_.size()) continue;
    if (settle(rows_[row], draws_[row], request)) {
      request.draw->row = request.drawn = static_cast<std::int32_t>(row);
      const Segment* segment = engine_.tree->segment(*request.tip);
      report.redundant_rows +=
          engine_.tree->held_elsewhere(*segment, segment->computed, segment->end());
      report.pages_acquired += rows_[row].slot.spare ? 1 : 0;
      ++report.rows;
      --report.discarded_rows;
    } else {
      report.stale = true;
    }
    rows_[row].tip = nullptr;
  }
  // Only now: what these rows hold was held by nobody when the step began.
  for (const StepRequest& request : requests) {
    if (!request.account.ran) continue;
    Segment& segment = *engine_.tree->segment(*request.tip);
    engine_.tree->set_computed(segment, segment.end());
  }
  std::erase_if(rows_, [](const StepPlan::NextRow& done) { return done.tip == nullptr; });
  give_places_back();
  engine_.debug_check();
  if (report.rows == 0) engine_.backend->sampler()->forget_draws();
  return report.rows > 0;
}

/// Whether the row counts for the request. If not, its slot is given back.
bool EarlyStep::settle(const StepPlan::NextRow& row, const Draw& draw, StepRequest& request) {
  KvTree& tree = *engine_.tree;
  if (request.draw == nullptr || request.draw->uniform != draw.uniform) {
    tree.give_back_next(row.slot);
    return false;
  }
  if (!tree.settle_next(*request.tip, row.slot)) return false;
  request.account.ran = true;
  request.account.rows = 1;
  return true;
}

std::int64_t EarlyStep::drop() {
  const std::int64_t rows = std::ssize(rows_);
  if (engine_.backend->sampler() != nullptr) engine_.backend->sampler()->forget_draws();
  if (rows > 0) {
    const TreeLock lock(engine_.tree_mutex);
    give_places_back();
  }
  return rows;
}

}  // namespace dendrite
