#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/recurrence_plan.h"

namespace dendrite::cuda {

/// What a thread block has room for.
inline constexpr int kMostFamilyRows = 80;
inline constexpr int kMostFamilyKnown = 32;

/// RecurrencePlan::Run for kernels that go by pieces; `known_begin` counts in PieceOrder::known().
struct PieceRun {
  RecurrencePlan::Run run;
  std::int32_t level = -1;       // behind all runs of lower ones; -1: none at all
  std::int32_t first_piece = 0;  // pieces are numbered through all runs
  bool in_family = false;        // or alone
  bool anchor_is_new = false;    // a run of the pass writes it
  /// The last of `known` are rows of the pass and not journals, since its family computes them.
  std::int32_t known_rows = 0;
};

/// Rows of a run in one chunk, and all slots that they lead to: in short passes a read that waits
/// for another one takes longer than all else.
struct RunPiece {
  RecurrencePlan::Run run;
  std::int32_t level = -1;  // -1: none at all
  std::int32_t first = 0;   // row of the run
  std::int32_t place = 0;   // of that in the chunk
  std::int32_t count = 0;
  std::int32_t known_rows = 0;               // PieceRun's
  std::int32_t in_family = 0;                // or 1
  std::int32_t new_anchor = -1;              // where the state behind it goes
  std::int32_t known[kChunkTokens] = {};     // of the run, by place
  std::int32_t journals[kChunkTokens] = {};  // of its rows
  std::int32_t slots[kChunkTokens] = {};     // of its rows in PieceOrder::family_rows()
};

/// Rows that meet the state of one anchor as one. They lie by their places in the chunk, so that
/// each comes behind those that it goes on from.
struct RowFamily {
  std::int32_t level = -1;
  std::int32_t anchor = -1;
  std::int32_t known = 0;       // how many rows computed before
  std::int32_t first_slot = 0;  // where its rows begin among those of all families
  std::int32_t rows = 0;
  std::int16_t places[kChunkTokens + 1] = {};    // where the rows of each place begin
  std::int32_t journals[kMostFamilyKnown] = {};  // of those known
};

struct alignas(16) FamilyRow {
  std::int32_t row = -1;  // of the pass; -1: none
  std::int32_t journal = -1;
  std::int32_t place = 0;
  /// The rows of its chunk before it, in order: of the family's known ones, or, from
  /// kMostFamilyKnown on, of its rows.
  alignas(16) std::uint8_t before[kChunkTokens] = {};
};

/// A pass's runs as kernels that go by pieces take them. Short runs behind one anchor are a family,
/// which meets its state as one, also where they go on from each other: branches, drafts of a tree.
/// Each other run goes over states alone. Runs of families are cut where the chunk ends: what comes
/// behind is a run that knows all of it.
class PieceOrder {
 public:
  PieceOrder();

  /// families: or every run alone.
  void build(const RecurrencePlan& plan, bool families);
  void clear();

  /// Of each level: which of these are in it.
  static constexpr std::uint8_t kAlone = 1;
  static constexpr std::uint8_t kFamilies = 2;
  std::span<const std::uint8_t> levels() const { return levels_; }
  /// Those alone, then such of no level up to a power of two, then those of families.
  std::span<const PieceRun> runs() const { return runs_; }
  std::int32_t alone() const { return alone_; }
  std::span<const std::int32_t> known() const { return known_; }
  /// Then such of no level up to a power of two.
  std::span<const RunPiece> pieces() const { return pieces_; }
  /// Then such of no level up to a power of two.
  std::span<const RowFamily> families() const { return families_; }
  /// Those of a family begin at a multiple of kChunkTokens.
  std::span<const FamilyRow> family_rows() const { return family_rows_; }

 private:
  using Run = RecurrencePlan::Run;
  struct Writer {
    std::int32_t level = 0;
    std::int32_t family = -1;  // that it is in,
    std::size_t member = 0;    // and which of its rows
  };
  struct Growing {
    std::int32_t level = 0;
    std::int32_t anchor = -1;
    std::vector<std::int32_t> known;  // slots
    std::vector<FamilyRow> rows;      // as they come
  };

  void in_level(std::int32_t level, std::uint8_t kind);
  bool may_join(const RecurrencePlan& plan, const Run& run) const;
  /// A run with these journals known comes.
  Run taken(Run run, std::span<const std::int32_t> known);
  void add_alone(const RecurrencePlan& plan, const Run& run);
  void add_to_family(const RecurrencePlan& plan, const Run& run);
  std::size_t family_for(const Run& run);
  bool has_room(std::size_t family, const Run& run) const;
  /// Who writes a journal in this pass, or null.
  const Writer* writer_of(std::int32_t slot) const;
  std::int32_t level_behind_anchor(const Run& run) const;
  std::span<const std::int32_t> known_of(const Run& run) const {
    return std::span(known_).subspan(static_cast<std::size_t>(run.known_begin),
                                     static_cast<std::size_t>(run.known));
  }
  void finish(const Growing& growing);
  void cut(const RecurrencePlan& plan, PieceRun& run);

  std::vector<PieceRun> runs_;
  std::vector<PieceRun> family_runs_;
  std::vector<std::int32_t> known_;
  std::vector<RunPiece> pieces_;
  std::vector<RowFamily> families_;
  std::vector<FamilyRow> family_rows_;
  std::vector<std::uint8_t> levels_;
  std::int32_t alone_ = 0;
  // While it is built:
  std::vector<std::int32_t> row_slots_;  // where a row of the pass is in family_rows_
  std::vector<Growing> growing_;
  std::unordered_map<std::int32_t, std::int32_t> sharing_;   // short runs behind an anchor
  std::unordered_map<std::int32_t, std::int32_t> anchored_;  // the level that writes an anchor
  std::unordered_map<std::int32_t, Writer> writers_;         // of journals
};

}  // namespace dendrite::cuda
