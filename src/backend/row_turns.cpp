#include "backend/row_turns.h"

namespace dendrite {
namespace {

/// Rows of a matrix whose bytes the format alone knows the places of: words of several rows, scales
/// of blocks.
class TurnFormat final : public Format {
 public:
  TurnFormat(const StoredMatrix& whole, std::int64_t run, std::int64_t kind)
      : Format(whole.format->name(), whole.format->stored_type(), whole.format->block(),
               whole.format->block_bytes()),
        whole_(whole),
        run_(run),
        kind_(kind) {}

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
    return (2 * (row / run_) + kind_) * run_ + row % run_;
  }

  StoredMatrix whole_;
  std::int64_t run_;
  std::int64_t kind_;
};

}  // namespace

RowTurns::RowTurns(const StoredMatrix& whole, std::int64_t run) {
  for (std::int64_t kind = 0; kind < 2; ++kind) {
    std::vector<StoredMatrix>& views = kind == 0 ? first_ : second_;
    StoredMatrix view = whole;
    if (!whole.format->number()) {
      formats_.push_back(std::make_unique<TurnFormat>(whole, run, kind));
      view.format = formats_.back().get();
      view.rows = whole.rows / 2;
      views.push_back(view);
      continue;
    }
    view.rows = run;  // plain rows are where they are
    for (std::int64_t row = kind * run; row < whole.rows; row += 2 * run) {
      view.data = whole.row(row);
      views.push_back(view);
    }
  }
}

RowTurns::~RowTurns() = default;

}  // namespace dendrite
