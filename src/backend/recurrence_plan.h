#pragma once

#include <cstdint>
#include <vector>

namespace dendrite {

/// Recurrences are cut at absolute positions, whoever runs and wherever the tree forked: a chunk is
/// the positions between two multiples of this. A state exists behind whole chunks alone (an
/// anchor); within a chunk a row goes by the anchor before it and by what the rows between left (a
/// journal each).
inline constexpr std::int64_t kChunkTokens = 16;

/// The rows of a pass as recurrent layers see them, the same for all of them. Slots are those of a
/// StateStore; -1: nothing is kept there.
struct RecurrencePlan {
  /// Rows [row_begin, row_end) are consecutive positions of one path. Without rows: what is known
  /// of a chunk becomes the anchor behind it.
  struct Run {
    std::int32_t row_begin = 0;
    std::int32_t row_end = 0;
    std::int64_t first_position = 0;  // of its first row, or would be
    /// State before `known`, that is behind the chunks before it; -1: there is no chunk before it.
    std::int32_t anchor = -1;
    /// Rows computed before: journals [known_begin, known_begin + known) of `known`, which are
    /// those of the positions [first_position - known, first_position). first_position - known is a
    /// multiple of kChunkTokens, and known <= kChunkTokens.
    std::int32_t known = 0;
    std::int32_t known_begin = 0;
    /// Where the states behind the chunks go that end at or before the last row (or, without rows,
    /// at first_position), in order: `anchors` from here on.
    std::int32_t anchors_begin = 0;
  };
  std::vector<Run> runs;               // a path's part before those that go on from it
  std::vector<std::int32_t> journals;  // [rows] where each row's goes
  std::vector<std::int32_t> known;
  std::vector<std::int32_t> anchors;

  void clear() {
    runs.clear();
    journals.clear();
    known.clear();
    anchors.clear();
  }
  /// Chunks that end within a run.
  static std::int64_t chunks_ended(const Run& run) {
    const std::int64_t begin = run.first_position - run.known;
    const std::int64_t end = run.first_position + run.row_end - run.row_begin;
    return end / kChunkTokens - begin / kChunkTokens;
  }
};

}  // namespace dendrite
