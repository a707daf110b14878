#include "backend/cpu/weight.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/host_matrix.h"
#include "core/rng.h"
#include "dendrite/error.h"

namespace dendrite::cpu {
namespace {

using Words = std::uint32_t __attribute__((vector_size(16)));
using Halves = std::uint16_t __attribute__((vector_size(16)));

/// Rows of a panel that are transposed together, and 32-bit words of each of them: 64 bytes, so
/// that a line of the source is read once and whole.
constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileWords = 16;
constexpr std::int64_t kTilesOfPanel = kPanel / kTileRows;

Words load(const void* p) {
  Words x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
void store(void* p, Words x) {
  std::memcpy(p, &x, sizeof x);
}

/// 4 x 4 words, in place.
void transpose4(Words& a, Words& b, Words& c, Words& d) {
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/// All ones somewhere if a value is not finite: its exponent bits are all set.
template <DType kType>
Words not_finite(Words x) {
  if constexpr (kType == DType::kF32) {
    return reinterpret_cast<Words>((x & 0x7f800000u) == 0x7f800000u);
  } else {
    constexpr std::uint16_t kExponent = kType == DType::kBF16 ? 0x7f80 : 0x7c00;
    const auto halves = reinterpret_cast<Halves>(x);
    return reinterpret_cast<Words>((halves & kExponent) == kExponent);
  }
}

/// 16 rows x 16 words to 16 steps; `out` is the first step's place for these rows and `step_bytes`
/// leads to the next. f16 words are split into two steps each. Returns whether all was finite.
template <DType kType>
bool transpose_tile(const std::byte* const (&rows)[kTileRows], std::int64_t offset, std::byte* out,
                    std::int64_t step_bytes) {
  Words bad = {};
  alignas(64) std::uint32_t tile[kTileWords][kTileRows];
  for (std::int64_t r = 0; r < kTileRows; r += 4) {
    for (std::int64_t w = 0; w < kTileWords; w += 4) {
      Words a = load(rows[r] + offset + w * 4);
      Words b = load(rows[r + 1] + offset + w * 4);
      Words c = load(rows[r + 2] + offset + w * 4);
      Words d = load(rows[r + 3] + offset + w * 4);
      bad |=
          not_finite<kType>(a) | not_finite<kType>(b) | not_finite<kType>(c) | not_finite<kType>(d);
      transpose4(a, b, c, d);
      store(&tile[w][r], a);
      store(&tile[w + 1][r], b);
      store(&tile[w + 2][r], c);
      store(&tile[w + 3][r], d);
    }
  }
  for (std::int64_t w = 0; w < kTileWords; ++w) {
    if constexpr (kType != DType::kF16) {
      std::memcpy(out + w * step_bytes, tile[w], sizeof tile[w]);
    } else {
      std::uint16_t even[kTileRows];
      std::uint16_t odd[kTileRows];
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        even[r] = static_cast<std::uint16_t>(tile[w][r]);
        odd[r] = static_cast<std::uint16_t>(tile[w][r] >> 16);
      }
      std::memcpy(out + 2 * w * step_bytes, even, sizeof even);
      std::memcpy(out + (2 * w + 1) * step_bytes, odd, sizeof odd);
    }
  }
  return ((bad[0] | bad[1]) | (bad[2] | bad[3])) == 0;
}

struct Row {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
};

/// Packs rows [16 * group, + 16) of one panel. Returns whether all values were finite.
template <DType kType>
bool pack_group(const PackedWeight& weight, std::int64_t panel, std::int64_t group,
                const Row (&rows)[kTileRows]) {
  constexpr std::int64_t kSize = size_of(kType);
  constexpr std::int64_t kTileValues = kTileWords * 4 / kSize;
  constexpr std::int64_t kStepValues = kType == DType::kBF16 ? 2 : 1;
  const std::int64_t lane = group * kTileRows;

  const std::byte* direct[kTileRows];
  bool as_stored = true;
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    direct[r] = rows[r].data;
    as_stored = as_stored && rows[r].data != nullptr && rows[r].dtype == kType;
  }
  bool finite = true;
  std::int64_t k = 0;
  if (as_stored) {
    for (; k + kTileValues <= weight.cols(); k += kTileValues) {
      finite &= transpose_tile<kType>(direct, k * kSize, weight.at(panel, k / kStepValues, lane),
                                      weight.step_stride());
    }
  }
  // Rows of another dtype, rows past the end of the matrix, and the last columns: through a buffer.
  alignas(64) std::byte buffer[kTileRows][kTileWords * 4];
  const std::byte* buffered[kTileRows];
  for (std::int64_t r = 0; r < kTileRows; ++r) buffered[r] = buffer[r];
  alignas(64) std::byte staged[kTileWords * 2 * 64];
  for (; k < weight.cols(); k += kTileValues) {
    const std::int64_t count = std::min(kTileValues, weight.cols() - k);
    std::memset(buffer, 0, sizeof buffer);
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      if (rows[r].data != nullptr) convert(buffer[r], kType, rows[r].data, rows[r].dtype, k, count);
    }
    const std::int64_t steps = (count + kStepValues - 1) / kStepValues;
    const std::int64_t group_bytes = weight.step_bytes() / kTilesOfPanel;
    finite &= transpose_tile<kType>(buffered, 0, staged, group_bytes);
    for (std::int64_t s = 0; s < steps; ++s) {
      std::memcpy(weight.at(panel, k / kStepValues + s, lane), staged + s * group_bytes,
                  static_cast<std::size_t>(group_bytes));
    }
  }
  return finite;
}

}  // namespace

PackedWeight::PackedWeight(std::int64_t rows, std::int64_t cols, DType dtype, WeightOrder order)
    : rows_(rows), cols_(cols), dtype_(dtype), order_(order) {
  // Kernels that go by tiles read up to a tile past the end.
  memory_ = Memory(size_bytes() + (order == WeightOrder::kTiles ? kPanelTileBytes : 0));
}

std::int64_t PackedWeight::steps() const {
  if (dtype_ != DType::kBF16) return cols_;
  const std::int64_t pairs = (cols_ + 1) / 2;
  if (order_ == WeightOrder::kSteps) return pairs;
  return (pairs + kTileSteps - 1) / kTileSteps * kTileSteps;
}

std::byte* PackedWeight::at(std::int64_t panel, std::int64_t step, std::int64_t lane) const {
  std::byte* first = data() + panel * panel_bytes();
  if (order_ == WeightOrder::kSteps)
    return first + step * step_bytes() + lane * step_bytes() / kPanel;
  return first + step / kTileSteps * kPanelTileBytes + lane / kTileRows * (kPanelTileBytes / 4) +
         step % kTileSteps * step_stride() + lane % kTileRows * 4;
}

void PackedWeight::read_row(std::int64_t row, float* out) const {
  const std::int64_t panel = row / kPanel;
  const std::int64_t lane = row % kPanel;
  for (std::int64_t k = 0; k < cols_; ++k) {
    const bool pairs = dtype_ == DType::kBF16;
    out[k] = stored_value(at(panel, pairs ? k / 2 : k, lane), dtype_, pairs ? k % 2 : 0);
  }
}

std::unique_ptr<PackedWeight> pack_weight(std::span<const HostMatrix> parts,
                                          const Numerics& numerics, WeightOrder order,
                                          const ThreadPool& pool) {
  const std::int64_t rows = stacked_rows(parts);
  const DType dtype = device_dtype(parts, numerics);
  auto weight = std::make_unique<PackedWeight>(rows, parts[0].cols, dtype, order);

  const auto row_at = [&](std::int64_t row) -> Row {
    for (const HostMatrix& part : parts) {
      if (row < part.rows) return {part.data + row * part.cols * size_of(part.dtype), part.dtype};
      row -= part.rows;
    }
    return {};
  };
  std::atomic<bool> finite{true};
  pool.parallel_for(weight->panels(), 1, [&](std::int64_t begin, std::int64_t end) {
    bool all_finite = true;
    for (std::int64_t panel = begin; panel < end; ++panel) {
      for (std::int64_t group = 0; group < kTilesOfPanel; ++group) {
        Row of_group[kTileRows];
        for (std::int64_t r = 0; r < kTileRows; ++r) {
          of_group[r] = row_at(panel * kPanel + group * kTileRows + r);
        }
        switch (dtype) {
          case DType::kF32:
            all_finite &= pack_group<DType::kF32>(*weight, panel, group, of_group);
            break;
          case DType::kF16:
            all_finite &= pack_group<DType::kF16>(*weight, panel, group, of_group);
            break;
          case DType::kBF16:
            all_finite &= pack_group<DType::kBF16>(*weight, panel, group, of_group);
            break;
        }
      }
    }
    if (!all_finite) finite = false;
  });
  if (!finite) throw_not_finite(parts, dtype);
  return weight;
}

std::unique_ptr<PackedWeight> make_random_weight(std::int64_t rows, std::int64_t cols, DType dtype,
                                                 WeightOrder order, std::uint64_t seed,
                                                 const ThreadPool& pool) {
  if (rows <= 0 || cols <= 0) {
    throw Error("random_weight: shape [" + std::to_string(rows) + ", " + std::to_string(cols) +
                "], expected positive sizes");
  }
  auto weight = std::make_unique<PackedWeight>(rows, cols, dtype, order);
  // Normal numbers by inverting the distribution on a table: 4096 values of equal probability are
  // plenty for speed tests, and cost one look-up.
  constexpr std::int64_t kTable = 4096;
  std::vector<std::uint32_t> table(kTable);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(cols));
  for (std::int64_t i = 0; i < kTable; ++i) {
    const double target = (static_cast<double>(i) + 0.5) / kTable;
    double low = -6;
    double high = 6;
    for (int step = 0; step < 50; ++step) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < target ? low : high) = middle;
    }
    const auto value = static_cast<float>(low * deviation);
    table[static_cast<std::size_t>(i)] = dtype == DType::kF32 ? std::bit_cast<std::uint32_t>(value)
                                         : dtype == DType::kF16
                                             ? static_cast<std::uint32_t>(to_f16(value))
                                             : static_cast<std::uint32_t>(to_bf16(value));
  }
  pool.parallel_for(weight->panels(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t lanes = std::min(kPanel, rows - panel * kPanel);
      const std::int64_t steps = dtype == DType::kBF16 ? (cols + 1) / 2 : cols;
      std::uint64_t state = philox_u64(seed, 0, static_cast<std::uint64_t>(panel)) | 1u;
      const auto next = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return table[state >> 52];
      };
      for (std::int64_t step = 0; step < steps; ++step) {
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          std::byte* out = weight->at(panel, step, lane);
          const std::uint32_t bits = next();
          if (dtype == DType::kF32) {
            std::memcpy(out, &bits, 4);
          } else if (dtype == DType::kF16) {
            const auto half = static_cast<std::uint16_t>(bits);
            std::memcpy(out, &half, 2);
          } else {
            const std::uint32_t pair = step * 2 + 1 < cols ? bits | next() << 16 : bits;
            std::memcpy(out, &pair, 4);
          }
        }
      }
    }
  });
  return weight;
}

}  // namespace dendrite::cpu
