#include "backend/column_range.h"

#include <string>
#include <vector>

#include "backend/view_format.h"
#include "dendrite/error.h"

namespace dendrite {

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
  format_ = std::make_unique<ViewFormat>(whole, std::vector<std::int64_t>(), first);
  view_.format = format_.get();
}

ColumnRange::~ColumnRange() = default;
ColumnRange::ColumnRange(ColumnRange&&) noexcept = default;
ColumnRange& ColumnRange::operator=(ColumnRange&&) noexcept = default;

}  // namespace dendrite
