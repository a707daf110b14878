#include "backend/row_turns.h"

#include <numeric>

namespace dendrite {
namespace {

/// Rows of a matrix whose bytes the format alone knows the places of: words of several rows, scales
/// of blocks.
class TurnFormat final : public Format {
 public:
  /// Runs of `run` rows, the first of which is row `first` of a turn of `turn` rows.
  TurnFormat(const StoredMatrix& whole, std::int64_t run, std::int64_t first, std::int64_t turn)
      : Format(whole.format->name(), whole.format->stored_type(), whole.format->block(),
               whole.format->block_bytes()),
        whole_(whole),
        run_(run),
        first_(first),
        turn_(turn) {}

  void widen(const StoredMatrix&, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    whole_.format->widen(whole_, row_of_whole(row), begin, out);
  }
  std::optional<Groups> groups(const StoredMatrix&) const override {
    return whole_.format->groups(whole_);
  }
  void read_groups(const StoredMatrix&, std::int64_t row, std::int64_t begin, std::int64_t count,
                   GroupedValues& out) const override {
    whole_.format->read_groups(whole_, row_of_whole(row), begin, count, out);
  }

 private:
  std::int64_t row_of_whole(std::int64_t row) const {
    return row / run_ * turn_ + first_ + row % run_;
  }

  StoredMatrix whole_;
  std::int64_t run_;
  std::int64_t first_;
  std::int64_t turn_;
};

}  // namespace

RowTurns::RowTurns(const StoredMatrix& whole, std::span<const std::int64_t> runs) {
  const std::int64_t turn = std::accumulate(runs.begin(), runs.end(), std::int64_t{0});
  std::int64_t first = 0;
  for (const std::int64_t run : runs) {
    std::vector<StoredMatrix>& views = kinds_.emplace_back();
    StoredMatrix view = whole;
    if (!whole.format->number()) {
      formats_.push_back(std::make_unique<TurnFormat>(whole, run, first, turn));
      view.format = formats_.back().get();
      view.rows = whole.rows / turn * run;
      views.push_back(view);
    } else {
      view.rows = run;  // plain rows are where they are
      for (std::int64_t row = first; row < whole.rows; row += turn) {
        view.data = whole.row(row);
        views.push_back(view);
      }
    }
    first += run;
  }
}

RowTurns::~RowTurns() = default;

}  // namespace dendrite
