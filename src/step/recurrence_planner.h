#pragma once

#include <cstdint>
#include <optional>
#include <span>
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
  bool may_come_back(KvTree& tree, const Tip& owner, std::int64_t end);
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
  /// A part of journals_ or anchors_.
  struct Part {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  struct Run {
    StateStart start;
    std::int64_t row = 0;  // of its first position, in the batch
    Part journals{};       // of its rows
    Part anchors{};        // behind the chunks that it ends
  };

  /// Of a path's positions from what is known of it up to `end`; for page().
  void find_pages(const KvTree& tree, const Tip& owner, const StateStart& start, std::int64_t end);
  PageId page(std::int64_t position) const {
    return pages_[static_cast<std::size_t>(position - pages_begin_)];
  }
  /// The page of the last position of which all is known; nothing: there is none.
  std::optional<PageId> known_page(const StateStart& start) const;
  /// What a run goes on from is not let go in this step, nor before others where it forked. The two
  /// after find_pages().
  void use(KvTree& tree, const Tip& owner, const StateStart& start) const;
  static std::span<const std::int32_t> part(const std::vector<std::int32_t>& of, Part part) {
    return std::span(of).subspan(part.begin, part.count);
  }
  static bool goes_on(const Run& run, const RecurrencePlan& plan);

  std::vector<Run> runs_;
  std::vector<std::int32_t> journals_;  // of all runs
  std::vector<std::int32_t> anchors_;
  StateStart start_;
  std::vector<PageId> pages_;
  std::int64_t pages_begin_ = 0;  // the position of the first
};

}  // namespace dendrite
