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
  journals_.clear();
  anchors_.clear();
  if (tree.states() != nullptr) tree.states()->begin_step();
}

std::int64_t RecurrencePlanner::start(KvTree& tree, const Tip& owner, std::int64_t begin) {
  start_ = tree.state_start(owner, begin);
  return start_.position;
}

void RecurrencePlanner::find_pages(const KvTree& tree, const Tip& owner, const StateStart& start,
                                   std::int64_t end) {
  pages_begin_ = std::max<std::int64_t>(0, start.known_begin() - 1);
  tree.own_pages(owner, pages_begin_, end, pages_);
}

void RecurrencePlanner::use(KvTree& tree, const Tip& owner, const StateStart& start) const {
  PathStates& states = *tree.states();
  const std::int64_t begin = start.known_begin();
  for (std::int64_t p = begin; p < start.position; ++p) states.use(page(p));
  if (start.anchor == PathStates::kNone) return;
  const PageId before = page(begin - 1);
  states.use(before);
  if (begin <= tree.segment(owner)->begin) states.keep(before);
}

std::optional<PageId> RecurrencePlanner::known_page(const StateStart& start) const {
  if (start.position == 0) return std::nullopt;
  return page(start.position - 1);
}

bool RecurrencePlanner::may_come_back(KvTree& tree, const Tip& owner, std::int64_t end) {
  const PathStates& states = *tree.states();
  find_pages(tree, owner, start_, start_.position);
  const bool has_seat = states.has_seat(known_page(start_));
  if (!has_seat && !states.has_free_seat()) return false;
  const std::int64_t chunk = chunk_begin(end);
  std::int64_t anchors = chunk > start_.known_begin() ? 1 : 0;
  std::int64_t journals = end - std::max(chunk, start_.position);
  if (!has_seat) {  // what it goes on from stays, too
    anchors += start_.anchor == PathStates::kNone ? 0 : 1;
    journals += start_.known_count;
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
  run.start = start_;
  run.journals.begin = journals_.size();
  run.anchors.begin = anchors_.size();
  const std::int64_t first = run.start.position;
  const bool is_short = end - begin <= kChunkTokens;
  find_pages(tree, owner, run.start, end);
  use(tree, owner, run.start);
  const std::optional<PageId> from = known_page(run.start);
  for (std::int64_t p = first; p < end; ++p) {
    const std::int64_t offset = p % kChunkTokens;
    const bool is_new = store && p >= begin;
    if (is_new) states.rewrite(page(p), offset);
    const bool wanted = p >= chunk_begin(end) || (p < begin ? p >= chunk_begin(begin) : is_short);
    const bool take = wanted && states.journal(page(p), offset) == PathStates::kNone;
    journals_.push_back(take ? states.take_journal(page(p), offset) : PathStates::kNone);
  }
  std::optional<PageId> before;  // the last anchor
  if (run.start.anchor != PathStates::kNone) before = page(run.start.known_begin() - 1);
  for (std::int64_t border = run.start.known_begin() + kChunkTokens; border <= end;
       border += kChunkTokens) {
    const PageId last_page = page(border - 1);
    const bool comes_back = border <= begin && border == chunk_begin(begin);
    const bool at_distance = border % kAnchorDistance == 0;
    const bool last = border == chunk_begin(end);
    const bool take =
        (comes_back || at_distance || last) && states.anchor(last_page) == PathStates::kNone;
    const bool lasts = comes_back || at_distance || end - begin > 1;
    anchors_.push_back(take ? states.take_anchor(last_page, lasts) : PathStates::kNone);
    if (states.anchor(last_page) != PathStates::kNone) before = last_page;
  }
  run.journals.count = journals_.size() - run.journals.begin;
  run.anchors.count = anchors_.size() - run.anchors.begin;
  const std::int64_t back = std::min(end, begin) - first;
  states.sit(from, page(end - 1), before, back, end - first - back);
  return static_cast<std::int32_t>(runs_.size() - 1);
}

bool RecurrencePlanner::add_next(KvTree& tree, const Tip& tip, const NextSlot& slot) {
  PathStates& states = *tree.states();
  const std::int64_t position = tree.length(tip);
  const StateStart start = tree.state_start(tip, position);
  if (start.position < position) return false;
  find_pages(tree, tip, start, position);
  use(tree, tip, start);
  const std::int64_t offset = position % kChunkTokens;
  states.rewrite(slot.page, offset);
  Run& run = runs_.emplace_back();
  run.start = start;
  run.journals = {journals_.size(), 1};
  run.anchors.begin = anchors_.size();
  journals_.push_back(states.take_journal(slot.page, offset));
  if (offset == kChunkTokens - 1) {
    const bool at_distance = (position + 1) % kAnchorDistance == 0;
    anchors_.push_back(states.take_anchor(slot.page, at_distance));
    run.anchors.count = 1;
  }
  return journals_.back() != PathStates::kNone;
}

/// Whether a run goes on from the last row of the one before it, in its chunk: a draft behind the
/// token that it was drafted for.
bool RecurrencePlanner::goes_on(const Run& run, const RecurrencePlan& plan) {
  if (plan.runs.empty() || run.start.known_count == 0) return false;
  const RecurrencePlan::Run& before = plan.runs.back();
  return before.row_begin < before.row_end && before.row_end == run.row &&
         run.start.known_count < kChunkTokens &&
         plan.journals[static_cast<std::size_t>(run.row - 1)] == run.start.known().back();
}

void RecurrencePlanner::build(std::int64_t rows, RecurrencePlan& plan) const {
  plan.clear();
  plan.journals.assign(static_cast<std::size_t>(rows), PathStates::kNone);
  for (const Run& run : runs_) {
    if (!goes_on(run, plan)) {
      const std::span<const std::int32_t> known = run.start.known();
      RecurrencePlan::Run& out = plan.runs.emplace_back();
      out.row_begin = static_cast<std::int32_t>(run.row);
      out.first_position = run.start.position;
      out.anchor = run.start.anchor;
      out.known = static_cast<std::int32_t>(known.size());
      out.known_begin = static_cast<std::int32_t>(plan.known.size());
      out.anchors_begin = static_cast<std::int32_t>(plan.anchors.size());
      plan.known.insert(plan.known.end(), known.begin(), known.end());
    }
    const std::span<const std::int32_t> journals = part(journals_, run.journals);
    const std::span<const std::int32_t> anchors = part(anchors_, run.anchors);
    plan.runs.back().row_end = static_cast<std::int32_t>(run.row + std::ssize(journals));
    std::ranges::copy(journals, plan.journals.begin() + run.row);
    plan.anchors.insert(plan.anchors.end(), anchors.begin(), anchors.end());
  }
}

}  // namespace dendrite
