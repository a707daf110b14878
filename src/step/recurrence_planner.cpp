#include "step/recurrence_planner.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace dendrite {
namespace {

constexpr std::int64_t chunk_begin(std::int64_t position) {
  return position / kChunkTokens * kChunkTokens;
}

}  // namespace

void RecurrencePlanner::begin(KvTree& tree) {
  runs_.clear();
  if (tree.states() != nullptr) tree.states()->begin_step();
}

std::int64_t RecurrencePlanner::start(KvTree& tree, const Tip& owner, std::int64_t begin) {
  start_ = tree.state_start(owner, begin);
  return start_.position;
}

void RecurrencePlanner::use(KvTree& tree, const Tip& owner, const StateStart& start) {
  PathStates& states = *tree.states();
  const std::int64_t begin = start.known_begin();
  for (std::int64_t p = begin; p < start.position; ++p) states.use(tree.own_page(owner, p));
  if (start.anchor == PathStates::kNone) return;
  const PageId before = tree.own_page(owner, begin - 1);
  states.use(before);
  if (begin <= tree.segment(owner)->begin) states.keep(before);
}

std::optional<PageId> RecurrencePlanner::known_page(const KvTree& tree, const Tip& owner,
                                                    const StateStart& start) {
  if (start.position == 0) return std::nullopt;
  return tree.own_page(owner, start.position - 1);
}

bool RecurrencePlanner::may_come_back(KvTree& tree, const Tip& owner, std::int64_t end) const {
  const PathStates& states = *tree.states();
  const bool has_seat = states.has_seat(known_page(tree, owner, start_));
  if (!has_seat && !states.has_free_seat()) return false;
  const std::int64_t chunk = chunk_begin(end);
  std::int64_t anchors = chunk > start_.known_begin() ? 1 : 0;
  std::int64_t journals = end - std::max(chunk, start_.position);
  if (!has_seat) {  // what it goes on from stays, too
    anchors += start_.anchor == PathStates::kNone ? 0 : 1;
    journals += std::ssize(start_.known);
  }
  return states.has_room(anchors, journals);
}

/// Journals are kept of the last chunk, which somebody will go on in, of the one that `begin` is
/// in, which somebody came back to, and of short runs: drafts, of which not all may stay. Likewise
/// anchors; and those at fixed distances.
std::int32_t RecurrencePlanner::add(KvTree& tree, const Tip& owner, std::int64_t begin,
                                    std::int64_t end, bool store) {
  PathStates& states = *tree.states();
  Run& run = runs_.emplace_back();
  run.start = std::move(start_);
  const std::int64_t first = run.start.position;
  const bool is_short = end - begin <= kChunkTokens;
  use(tree, owner, run.start);
  const std::optional<PageId> from = known_page(tree, owner, run.start);
  for (std::int64_t p = first; p < end; ++p) {
    const PageId page = tree.own_page(owner, p);
    const std::int64_t offset = p % kChunkTokens;
    const bool is_new = store && p >= begin;
    if (is_new) states.rewrite(page, offset);
    const bool wanted = p >= chunk_begin(end) || (p < begin ? p >= chunk_begin(begin) : is_short);
    const bool take = wanted && states.journal(page, offset) == PathStates::kNone;
    run.journals.push_back(take ? states.take_journal(page, offset) : PathStates::kNone);
  }
  std::optional<PageId> before;  // the last anchor
  if (run.start.anchor != PathStates::kNone) {
    before = tree.own_page(owner, run.start.known_begin() - 1);
  }
  for (std::int64_t border = run.start.known_begin() + kChunkTokens; border <= end;
       border += kChunkTokens) {
    const PageId page = tree.own_page(owner, border - 1);
    const bool comes_back = border <= begin && border == chunk_begin(begin);
    const bool at_distance = border % kAnchorDistance == 0;
    const bool last = border == chunk_begin(end);
    const bool take =
        (comes_back || at_distance || last) && states.anchor(page) == PathStates::kNone;
    const bool lasts = comes_back || at_distance || end - begin > 1;
    run.anchors.push_back(take ? states.take_anchor(page, lasts) : PathStates::kNone);
    if (states.anchor(page) != PathStates::kNone) before = page;
  }
  const std::int64_t back = std::min(end, begin) - first;
  states.sit(from, tree.own_page(owner, end - 1), before, back, end - first - back);
  return static_cast<std::int32_t>(runs_.size() - 1);
}

bool RecurrencePlanner::add_next(KvTree& tree, const Tip& tip, const NextSlot& slot) {
  PathStates& states = *tree.states();
  const std::int64_t position = tree.length(tip);
  StateStart start = tree.state_start(tip, position);
  if (start.position < position) return false;
  use(tree, tip, start);
  const std::int64_t offset = position % kChunkTokens;
  states.rewrite(slot.page, offset);
  Run run;
  run.journals.push_back(states.take_journal(slot.page, offset));
  if (offset == kChunkTokens - 1) {
    const bool at_distance = (position + 1) % kAnchorDistance == 0;
    run.anchors.push_back(states.take_anchor(slot.page, at_distance));
  }
  run.start = std::move(start);
  runs_.push_back(std::move(run));
  return runs_.back().journals.front() != PathStates::kNone;
}

/// Whether a run goes on from the last row of the one before it, in its chunk: a draft behind the
/// token that it was drafted for.
bool RecurrencePlanner::goes_on(const Run& run, const RecurrencePlan& plan) {
  if (plan.runs.empty() || run.start.known.empty()) return false;
  const RecurrencePlan::Run& before = plan.runs.back();
  return before.row_begin < before.row_end && before.row_end == run.row &&
         std::ssize(run.start.known) < kChunkTokens &&
         plan.journals[static_cast<std::size_t>(run.row - 1)] == run.start.known.back();
}

void RecurrencePlanner::build(std::int64_t rows, RecurrencePlan& plan) const {
  plan.clear();
  plan.journals.assign(static_cast<std::size_t>(rows), PathStates::kNone);
  for (const Run& run : runs_) {
    if (!goes_on(run, plan)) {
      RecurrencePlan::Run& out = plan.runs.emplace_back();
      out.row_begin = static_cast<std::int32_t>(run.row);
      out.first_position = run.start.position;
      out.anchor = run.start.anchor;
      out.known = static_cast<std::int32_t>(run.start.known.size());
      out.known_begin = static_cast<std::int32_t>(plan.known.size());
      out.anchors_begin = static_cast<std::int32_t>(plan.anchors.size());
      plan.known.insert(plan.known.end(), run.start.known.begin(), run.start.known.end());
    }
    plan.runs.back().row_end = static_cast<std::int32_t>(run.row + std::ssize(run.journals));
    std::ranges::copy(run.journals, plan.journals.begin() + run.row);
    plan.anchors.insert(plan.anchors.end(), run.anchors.begin(), run.anchors.end());
  }
}

}  // namespace dendrite
