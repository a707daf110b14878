#include "backend/cpu/state_store.h"

#include <algorithm>

#include "backend/checks.h"

namespace dendrite::cpu {
namespace {

const StateShape& checked(const StateShape& shape) {
  check_state_shape(shape);
  return shape;
}

}  // namespace

CpuStateStore::CpuStateStore(const StateShape& shape)
    : shape_(checked(shape)),
      anchors_(shape.anchors * shape.anchor_bytes()),
      journals_(shape.journals * shape.journal_bytes()) {}

void CpuStateStore::read_anchor(std::int32_t slot, std::span<float> out) const {
  check_anchor("read_anchor", shape_, slot, out.size());
  std::copy_n(anchors(0) + slot * shape_.layers * shape_.anchor_values, out.size(), out.begin());
}

void CpuStateStore::write_anchor(std::int32_t slot, std::span<const float> in) {
  check_anchor("write_anchor", shape_, slot, in.size());
  std::copy(in.begin(), in.end(), anchors(0) + slot * shape_.layers * shape_.anchor_values);
}

void CpuStateStore::read_journal(std::int32_t slot, std::span<float> out) const {
  check_journal("read_journal", shape_, slot, out.size());
  std::copy_n(journals(0) + slot * shape_.layers * shape_.journal_values, out.size(), out.begin());
}

void CpuStateStore::write_journal(std::int32_t slot, std::span<const float> in) {
  check_journal("write_journal", shape_, slot, in.size());
  std::copy(in.begin(), in.end(), journals(0) + slot * shape_.layers * shape_.journal_values);
}

}  // namespace dendrite::cpu
