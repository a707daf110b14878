// Steps that begin before the tokens of the step before them are read, on a device that samples, so
// that it never waits for the host. What is refused here is refused again, and told, by a step that
// is planned in its turn.
#include <algorithm>

#include "dendrite/error.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

bool draws_the_same(const Draw& a, const Draw& b) {
  return a.uniform == b.uniform && a.temperature == b.temperature && a.top_k == b.top_k &&
         a.top_p == b.top_p && a.min_p == b.min_p && a.wants_row == b.wants_row;
}

}  // namespace

Flight Stepper::plan_next(const Flight& flight, std::span<const StepRequest> requests,
                          std::span<const StepOutcome> outcomes, const StepLimits& limits) {
  // (Who comes back to a state counts the rows of whole steps.)
  if (parts_.tree.states() != nullptr && parts_.tree.states()->has_seats()) return {};
  // (The next pass would overwrite rows that are still to be read.)
  if (!flight.early && Readout::has_rows(plan_)) return {};
  Flight next;
  plan_.begin_next(parts_.tree);
  if (!find_places(requests, outcomes, limits, next.rows)) {
    give_places_back(next.rows);
    return {};
  }
  if (next.rows.empty()) return {};
  plan_.build_next(parts_.tree, next.rows, parts_.model.windows());
  next.under_way = next.early = true;
  return next;
}

Flight Stepper::begin(Flight next) {
  for (const StepPlan::NextRow& row : next.rows) {
    next.draws.push_back(*row.draw);
    next.draws.back().row = static_cast<std::int32_t>(next.draws.size() - 1);
  }
  next.bytes_read = bytes_to_read();
  try {
    next.logits = forward();
    // (Masks and edits depend on the token that is still to be read: their draws are begun by the
    // next turn, while the device works on this pass.)
    next.draws_begun = std::ranges::none_of(next.rows, &StepPlan::NextRow::waits);
    if (next.draws_begun) parts_.backend.sampler()->begin_draw(next.logits, next.draws);
  } catch (const Error&) {
    const TreeLock lock(parts_.tree_mutex);
    give_places_back(next.rows);
    return {};
  }
  return next;
}

/// A row for every request that goes on; false if one can't have it.
bool Stepper::find_places(std::span<const StepRequest> requests,
                          std::span<const StepOutcome> outcomes, const StepLimits& limits,
                          std::vector<StepPlan::NextRow>& rows) {
  KvTree& tree = parts_.tree;
  std::vector<std::int64_t> taken(limits.groups.size(), 0);  // rows, by each group, of both steps
  for (std::size_t i = 0; i < requests.size(); ++i) {
    taken[static_cast<std::size_t>(requests[i].group)] += outcomes[i].rows;
  }
  const std::int32_t kept = parts_.backend.sampler()->kept_draws();
  const auto place = [&](std::size_t i) DENDRITE_REQUIRES(kComputeLock, kTreeLock) {
    const StepRequest& request = requests[i];
    const StepOutcome& outcome = outcomes[i];
    if (outcome.no_room) return true;
    if (request.optional || outcome.drawn < 0 || outcome.drawn >= kept) return false;
    if (!request.goes_on) return true;
    Segment* segment = tree.segment(*request.tip);
    if (request.next == nullptr || segment->plan_mark >= 0) return false;  // (given twice)
    const auto group = static_cast<std::size_t>(request.group);
    if (++taken[group] > limits.groups[group].budget) return false;
    const std::optional<NextSlot> slot = tree.take_next(*request.tip);
    if (!slot) return false;
    if (!plan_.add_next(tree, *request.tip, *slot)) {
      tree.give_back_next(*slot);
      return false;
    }
    segment->plan_mark = 0;
    rows.push_back({request.tip, request.next, request.draw_waits, outcome.drawn, *slot,
                    limits.groups[group].owner});
    return true;
  };
  bool all = true;
  for (std::size_t i = 0; all && i < requests.size(); ++i) all = place(i);
  for (const StepPlan::NextRow& row : rows) tree.segment(*row.tip)->plan_mark = -1;
  return all && std::ssize(rows) <= std::min(limits.rows, parts_.model.max_logit_rows());
}

void Stepper::give_places_back(const std::vector<StepPlan::NextRow>& rows) {
  for (const StepPlan::NextRow& row : rows) parts_.tree.give_back_next(row.slot);
}

Flight Stepper::adopt(Flight begun, std::span<const StepRequest> requests,
                      std::span<StepOutcome> outcomes) {
  if (!begun) return {};
  const TreeLock lock(parts_.tree_mutex);
  std::vector<StepPlan::NextRow>& rows = begun.rows;
  std::size_t row = 0;  // usually requests come in the order they had
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::size_t tried = 0;
    while (tried < rows.size() && rows[row].tip != requests[i].tip) {
      row = (row + 1) % rows.size();
      ++tried;
    }
    if (tried == rows.size()) continue;
    StepOutcome& outcome = outcomes[i];
    if (settle(rows[row], begun.draws[row], requests[i])) {
      const Segment& segment = *parts_.tree.segment(*requests[i].tip);
      outcome.ran = true;
      outcome.rows = outcome.new_rows = 1;
      outcome.drawn = static_cast<std::int32_t>(row);
      outcome.redundant_rows = parts_.tree.held_elsewhere(segment, segment.computed, segment.end());
      outcome.pages = rows[row].slot.spare ? 1 : 0;
      report_.pages_acquired += outcome.pages;
      ++report_.rows;
    } else {
      outcome.stale = true;
      report_.discarded.push_back(rows[row].owner);
    }
    rows[row].tip = nullptr;
  }
  // Only now: what these rows hold was held by nobody when the step began.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!outcomes[i].ran) continue;
    Segment& segment = *parts_.tree.segment(*requests[i].tip);
    parts_.tree.set_computed(segment, segment.end());
  }
  for (const StepPlan::NextRow& left : rows) {
    if (left.tip == nullptr) continue;
    report_.discarded.push_back(left.owner);
    parts_.tree.give_back_next(left.slot);
  }
  parts_.host.on_changed();
  report_.early = report_.rows > 0;
  if (report_.early) {
    parts_.host.on_planned(requests, outcomes);
    return begun;
  }
  parts_.backend.sampler()->forget_draws();
  return {};
}

/// Whether the row counts for the request: it is of the branch's last token, and what it draws is
/// what is asked for now. If not, its slot is given back.
bool Stepper::settle(const StepPlan::NextRow& row, const Draw& draw, const StepRequest& request) {
  KvTree& tree = parts_.tree;
  const bool wanted = request.draw != nullptr && request.draw_waits == row.waits &&
                      draws_the_same(*request.draw, draw);
  if (!wanted || tree.token(*request.tip, tree.length(*request.tip) - 1) != row.token) {
    tree.give_back_next(row.slot);
    return false;
  }
  return tree.settle_next(*request.tip, row.slot);
}

std::vector<std::uint64_t> Stepper::drop_begun() {
  if (has_sampler()) parts_.backend.sampler()->forget_draws();
  const Flight begun = std::exchange(begun_, {});
  const TreeLock lock(parts_.tree_mutex);
  give_places_back(begun.rows);
  std::vector<std::uint64_t> owners;
  for (const StepPlan::NextRow& row : begun.rows) owners.push_back(row.owner);
  return owners;
}

}  // namespace dendrite
