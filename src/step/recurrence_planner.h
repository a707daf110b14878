#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/recurrence_plan.h"
#include "kv/kv_tree.h"

namespace dendrite {

/// What recurrent layers read and keep in a step, run by run: from where each goes on, and in which
/// slots its journals and anchors go. A run that begins where another of the step ends, or where it
/// passes, goes on from what that one writes.
class RecurrencePlanner {
 public:
  /// Positions of a path from its start at which a prompt's anchors are kept.
  static constexpr std::int64_t kAnchorDistance = 1024;

  /// A step begins. Without states nothing is asked afterwards.
  void begin(KvTree& tree);

  /// The first position that a run from `begin` on needs a row of: `begin`, or one before it.
  std::int64_t start(KvTree& tree, const Tip& owner, std::int64_t begin);
  /// Whether that run may come, with rows of positions [the first, end), of which some are before
  /// `begin`: it has a seat (PathStates) or there is a free one, and room for what it comes to.
  bool may_come_back(KvTree& tree, const Tip& owner, std::int64_t end) const;
  /// The run that was asked about last comes, with rows of positions [the first, end); those from
  /// `begin` on are new if they are stored. Returns its number.
  std::int32_t add(KvTree& tree, const Tip& owner, std::int64_t begin, std::int64_t end,
                   bool store);
  /// A run of the token after the tip's last, which is not in the tree yet; after begin(). None
  /// (false), if its state is not kept or can't be.
  bool add_next(KvTree& tree, const Tip& tip, const NextSlot& slot);
  /// Where the rows of a run are in the batch.
  void place(std::int32_t run, std::int64_t first_row) {
    runs_[static_cast<std::size_t>(run)].row = first_row;
  }
  void build(std::int64_t rows, RecurrencePlan& plan) const;

 private:
  struct Run {
    StateStart start;
    std::int64_t row = 0;                  // of its first position, in the batch
    std::vector<std::int32_t> journals{};  // of its rows
    std::vector<std::int32_t> anchors{};   // behind the chunks that it ends
  };

  /// The page of the last position of which all is known; nothing: there is none.
  static std::optional<PageId> known_page(const KvTree& tree, const Tip& owner,
                                          const StateStart& start);
  /// What a run goes on from is not let go in this step, nor before others where it forked.
  static void use(KvTree& tree, const Tip& owner, const StateStart& start);
  static bool goes_on(const Run& run, const RecurrencePlan& plan);

  std::vector<Run> runs_;
  StateStart start_;
};

}  // namespace dendrite
