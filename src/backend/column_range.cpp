#include "backend/column_range.h"

#include <optional>
#include <string>

#include "dendrite/error.h"

namespace dendrite {
namespace {

class RangeFormat final : public Format {
 public:
  RangeFormat(const StoredMatrix& whole, std::int64_t first)
      : Format(whole.format->name(), whole.format->stored_type(), whole.format->block(),
               whole.format->block_bytes()),
        whole_(whole),
        first_(first) {}

  void widen(const StoredMatrix&, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    whole_.format->widen(whole_, row, first_ + begin, out);
  }
  std::optional<Groups> groups(const StoredMatrix&) const override {
    return whole_.format->groups(whole_);
  }
  void read_groups(const StoredMatrix&, std::int64_t row, std::int64_t begin, std::int64_t count,
                   GroupedValues& out) const override {
    whole_.format->read_groups(whole_, row, first_ + begin, count, out);
  }

 private:
  StoredMatrix whole_;
  std::int64_t first_;
};

}  // namespace

ColumnRange::ColumnRange(const StoredMatrix& whole, std::int64_t first, std::int64_t count)
    : view_(whole) {
  view_.cols = count;
  if (whole.format->number()) {
    view_.data += first / whole.format->block() * whole.format->block_bytes();
    return;
  }
  const std::string tensor = std::string(whole.file) + ": tensor \"" + std::string(whole.name);
  if (first % Format::kMostBlock != 0 || count % Format::kMostBlock != 0) {
    throw Error(tensor + "\" in " + std::string(whole.format->name()) + " is cut into " +
                std::to_string(count) + " columns from " + std::to_string(first) +
                " on; expected multiples of " + std::to_string(Format::kMostBlock));
  }
  if (whole.groups != nullptr) {
    throw Error(tensor +
                "\" has the groups of its columns in an order of their own; expected one "
                "device for it");
  }
  format_ = std::make_unique<RangeFormat>(whole, first);
  view_.format = format_.get();
}

ColumnRange::~ColumnRange() = default;
ColumnRange::ColumnRange(ColumnRange&&) noexcept = default;
ColumnRange& ColumnRange::operator=(ColumnRange&&) noexcept = default;

}  // namespace dendrite
