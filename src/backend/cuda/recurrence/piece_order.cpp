#include "backend/cuda/recurrence/piece_order.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace dendrite::cuda {
namespace {

std::int32_t rows_of(const RecurrencePlan::Run& run) {
  return run.row_end - run.row_begin;
}

/// Rows of one chunk at most, of which some are in the chunk that the anchor is before.
bool is_short(const RecurrencePlan::Run& run) {
  return rows_of(run) > 0 && rows_of(run) <= kChunkTokens && run.known < kChunkTokens;
}

/// Up to where the chunk ends.
std::int32_t rows_of_chunk(const RecurrencePlan::Run& run) {
  return std::min(rows_of(run), static_cast<std::int32_t>(kChunkTokens) - run.known);
}

std::int32_t journal_of(const RecurrencePlan& plan, std::int32_t row) {
  return plan.journals[static_cast<std::size_t>(row)];
}

/// Where the state behind the run's first chunk goes, if it ends.
std::int32_t first_anchor(const RecurrencePlan& plan, const RecurrencePlan::Run& run) {
  return plan.anchors[static_cast<std::size_t>(run.anchors_begin)];
}

template <typename T>
void fill_to_power_of_two(std::vector<T>& values, const T& value) {
  if (!values.empty()) values.resize(std::bit_ceil(values.size()), value);
}

}  // namespace

/// Each array is somewhere, also where it is empty.
PieceOrder::PieceOrder() {
  runs_.reserve(1);
  known_.reserve(1);
  pieces_.reserve(1);
  families_.reserve(1);
  family_rows_.reserve(1);
}

void PieceOrder::clear() {
  runs_.clear();
  family_runs_.clear();
  known_.clear();
  pieces_.clear();
  families_.clear();
  family_rows_.clear();
  row_slots_.clear();
  levels_.clear();
  alone_ = 0;
  growing_.clear();
  sharing_.clear();
  anchored_.clear();
  writers_.clear();
}

void PieceOrder::build(const RecurrencePlan& plan, bool families) {
  clear();
  for (const Run& run : plan.runs) {
    if (families && is_short(run)) ++sharing_[run.anchor];
  }
  for (const Run& run : plan.runs) {
    const std::span known = std::span(plan.known)
                                .subspan(static_cast<std::size_t>(run.known_begin),
                                         static_cast<std::size_t>(run.known));
    if (!may_join(plan, run)) {
      add_alone(plan, taken(run, known));
      continue;
    }
    Run first = run;
    first.row_end = run.row_begin + rows_of_chunk(run);
    add_to_family(plan, taken(first, known));
    const bool ends_chunk = run.known + rows_of_chunk(run) == kChunkTokens;
    if (!ends_chunk || (first.row_end == run.row_end && first_anchor(plan, run) < 0)) continue;
    std::vector<std::int32_t> chunk(known.begin(), known.end());
    for (std::int32_t row = first.row_begin; row < first.row_end; ++row) {
      chunk.push_back(journal_of(plan, row));
    }
    Run rest = run;
    rest.row_begin = first.row_end;
    rest.first_position = run.first_position + rows_of(first);
    add_alone(plan, taken(rest, chunk));
  }
  if (!growing_.empty()) row_slots_.assign(plan.journals.size(), -1);
  for (const Growing& growing : growing_) finish(growing);
  fill_to_power_of_two(families_, {});
  fill_to_power_of_two(runs_, {});
  alone_ = static_cast<std::int32_t>(runs_.size());
  runs_.insert(runs_.end(), family_runs_.begin(), family_runs_.end());
  for (PieceRun& run : runs_) cut(plan, run);
  fill_to_power_of_two(pieces_, {});
}

void PieceOrder::in_level(std::int32_t level, std::uint8_t kind) {
  const auto at = static_cast<std::size_t>(level);
  levels_.resize(std::max(levels_.size(), at + 1));
  levels_[at] |= kind;
}

/// What is cut off behind the chunk goes on from journals.
bool PieceOrder::may_join(const RecurrencePlan& plan, const Run& run) const {
  if (!is_short(run)) return false;
  const auto sharing = sharing_.find(run.anchor);
  if (sharing == sharing_.end() || sharing->second < 2) return false;
  const std::int32_t rows = rows_of_chunk(run);
  if (run.known + rows < kChunkTokens) return true;
  if (rows == rows_of(run) && first_anchor(plan, run) < 0) return true;
  const auto begin = plan.journals.begin() + run.row_begin;
  return std::all_of(begin, begin + rows, [](std::int32_t slot) { return slot >= 0; });
}

PieceOrder::Run PieceOrder::taken(Run run, std::span<const std::int32_t> known) {
  run.known_begin = static_cast<std::int32_t>(known_.size());
  run.known = static_cast<std::int32_t>(known.size());
  known_.insert(known_.end(), known.begin(), known.end());
  return run;
}

std::int32_t PieceOrder::level_behind_anchor(const Run& run) const {
  const auto found = anchored_.find(run.anchor);
  return found == anchored_.end() ? 0 : found->second + 1;
}

void PieceOrder::add_alone(const RecurrencePlan& plan, const Run& run) {
  std::int32_t level = level_behind_anchor(run);
  for (const std::int32_t slot : known_of(run)) {
    const Writer* const writer = writer_of(slot);
    if (writer != nullptr) level = std::max(level, writer->level + 1);
  }
  for (std::int32_t row = run.row_begin; row < run.row_end; ++row) {
    const std::int32_t slot = journal_of(plan, row);
    if (slot >= 0) writers_[slot] = {.level = level, .family = -1, .member = 0};
  }
  for (std::int64_t i = 0; i < RecurrencePlan::chunks_ended(run); ++i) {
    const std::int32_t slot = plan.anchors[static_cast<std::size_t>(run.anchors_begin + i)];
    if (slot >= 0) anchored_[slot] = level;
  }
  PieceRun& out = runs_.emplace_back();
  out.run = run;
  out.level = level;
  out.anchor_is_new = anchored_.contains(run.anchor);
  in_level(level, kAlone);
}

const PieceOrder::Writer* PieceOrder::writer_of(std::int32_t slot) const {
  const auto found = writers_.find(slot);
  return found == writers_.end() ? nullptr : &found->second;
}

bool PieceOrder::has_room(std::size_t family, const Run& run) const {
  const Growing& growing = growing_[family];
  std::int64_t known = std::ssize(growing.known);
  for (const std::int32_t slot : known_of(run)) {
    const Writer* const writer = writer_of(slot);
    const bool is_row = writer != nullptr && writer->family == static_cast<std::int32_t>(family);
    if (!is_row && std::ranges::find(growing.known, slot) == growing.known.end()) ++known;
  }
  return std::ssize(growing.rows) + rows_of(run) <= kMostFamilyRows && known <= kMostFamilyKnown;
}

/// That of the rows which it goes on from, or another one of its anchor; with room for it.
std::size_t PieceOrder::family_for(const Run& run) {
  std::int32_t level = level_behind_anchor(run);
  std::int32_t family = -1;  // which all those of the level are in
  for (const std::int32_t slot : known_of(run)) {
    const Writer* const writer = writer_of(slot);
    if (writer == nullptr || writer->level < level) continue;
    const bool joins =
        writer->family >= 0 && has_room(static_cast<std::size_t>(writer->family), run);
    level = joins ? writer->level : writer->level + 1;
    family = joins ? writer->family : -1;
  }
  if (family >= 0) return static_cast<std::size_t>(family);
  for (std::size_t i = 0; i < growing_.size(); ++i) {
    const Growing& other = growing_[i];
    if (other.anchor == run.anchor && other.level == level && has_room(i, run)) return i;
  }
  growing_.push_back({.level = level, .anchor = run.anchor, .known = {}, .rows = {}});
  return growing_.size() - 1;
}

void PieceOrder::add_to_family(const RecurrencePlan& plan, const Run& run) {
  const std::size_t number = family_for(run);
  Growing& family = growing_[number];
  PieceRun& out = family_runs_.emplace_back();
  FamilyRow next;
  next.place = run.known;
  for (std::int32_t place = 0; place < run.known; ++place) {
    std::int32_t& slot = known_[static_cast<std::size_t>(run.known_begin + place)];
    std::uint8_t& before = next.before[place];
    const Writer* const writer = writer_of(slot);
    if (writer != nullptr && writer->family == static_cast<std::int32_t>(number)) {
      before = static_cast<std::uint8_t>(kMostFamilyKnown + writer->member);
      slot = family.rows[writer->member].row;
      ++out.known_rows;
      continue;
    }
    const auto known = std::ranges::find(family.known, slot);
    before = static_cast<std::uint8_t>(known - family.known.begin());
    if (known == family.known.end()) family.known.push_back(slot);
  }
  for (std::int32_t row = run.row_begin; row < run.row_end; ++row) {
    next.row = row;
    next.journal = journal_of(plan, row);
    const std::size_t member = family.rows.size();
    if (next.journal >= 0) {
      writers_[next.journal] = {family.level, static_cast<std::int32_t>(number), member};
    }
    family.rows.push_back(next);
    if (row + 1 == run.row_end) break;
    next.before[next.place++] = static_cast<std::uint8_t>(kMostFamilyKnown + member);
  }
  out.run = run;
  out.level = family.level;
  out.in_family = true;
  in_level(family.level, kFamilies);
}

void PieceOrder::finish(const Growing& growing) {
  std::vector<std::size_t> order(growing.rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return growing.rows[i].place; });
  std::vector<std::uint8_t> at(order.size());  // of each member
  for (std::size_t i = 0; i < order.size(); ++i) at[order[i]] = static_cast<std::uint8_t>(i);

  RowFamily& family = families_.emplace_back();
  family.level = growing.level;
  family.anchor = growing.anchor;
  family.known = static_cast<std::int32_t>(growing.known.size());
  family.first_slot = static_cast<std::int32_t>(family_rows_.size());
  family.rows = static_cast<std::int32_t>(growing.rows.size());
  std::ranges::copy(growing.known, family.journals);
  for (const std::size_t member : order) {
    FamilyRow row = growing.rows[member];
    for (std::int32_t i = 0; i < row.place; ++i) {
      std::uint8_t& before = row.before[i];
      if (before < kMostFamilyKnown) continue;
      before = static_cast<std::uint8_t>(kMostFamilyKnown +
                                         at[static_cast<std::size_t>(before) - kMostFamilyKnown]);
    }
    row_slots_[static_cast<std::size_t>(row.row)] = static_cast<std::int32_t>(family_rows_.size());
    for (std::int64_t place = row.place + 1; place <= kChunkTokens; ++place) {
      ++family.places[place];
    }
    family_rows_.push_back(row);
  }
  constexpr auto kBatch = static_cast<std::size_t>(kChunkTokens);
  family_rows_.resize((family_rows_.size() + kBatch - 1) / kBatch * kBatch);
}

void PieceOrder::cut(const RecurrencePlan& plan, PieceRun& of) {
  of.first_piece = static_cast<std::int32_t>(pieces_.size());
  if (of.level < 0) return;
  const Run& run = of.run;
  constexpr auto kRows = static_cast<std::int32_t>(kChunkTokens);
  std::int32_t next_anchor = run.anchors_begin;
  for (std::int32_t begin = 0; begin < run.known + rows_of(run); begin += kRows) {
    RunPiece& piece = pieces_.emplace_back();
    piece.run = run;
    piece.level = of.level;
    piece.place = begin == 0 ? run.known : 0;
    piece.first = begin + piece.place - run.known;
    piece.count = std::min(kRows - piece.place, rows_of(run) - piece.first);
    piece.known_rows = of.known_rows;
    piece.in_family = of.in_family ? 1 : 0;
    std::ranges::copy(known_of(run), piece.known);
    for (std::int32_t i = 0; i < piece.count; ++i) {
      const std::int32_t row = run.row_begin + piece.first + i;
      piece.journals[i] = journal_of(plan, row);
      if (of.in_family) piece.slots[i] = row_slots_[static_cast<std::size_t>(row)];
    }
    if (of.in_family || piece.place + piece.count < kRows) continue;
    piece.new_anchor = plan.anchors[static_cast<std::size_t>(next_anchor++)];
  }
}

}  // namespace dendrite::cuda
