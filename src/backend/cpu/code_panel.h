#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/kernels.h"
#include "quant/format.h"

namespace dendrite::cpu {

/// One row of a stored matrix; null: past the end of the weight.
struct StoredRow {
  const StoredMatrix* matrix = nullptr;
  std::int64_t row = 0;
};

/// Packs up to 64 rows of E4M3 with scales into a panel of zeros (CodesInfo). Returns false where a
/// panel cannot have their values to the bit: one that is not finite or not normal in bf16, rows
/// that do not share what `groups` says.
bool pack_codes(std::byte* panel, const Groups& groups, std::span<const StoredRow> rows,
                std::int64_t cols);

/// Row `lane` of a panel, the bf16 that it means.
void read_codes(const std::byte* panel, const Groups& groups, std::int64_t lane, std::int64_t cols,
                float* out);

}  // namespace dendrite::cpu
