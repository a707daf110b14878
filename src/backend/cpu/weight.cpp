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

#include "backend/cpu/code_panel.h"
#include "backend/packing.h"
#include "core/rng.h"
#include "dendrite/error.h"
#include "quant/column_order.h"
#include "quant/formats.h"

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

/// Packs rows [16 * group, + 16) of one panel. Returns whether all values were finite.
template <DType kType>
bool pack_group(const Panels& panels, std::int64_t panel, std::int64_t group,
                const StoredRow (&rows)[kTileRows]) {
  constexpr std::int64_t kSize = size_of(kType);
  constexpr std::int64_t kTileValues = kTileWords * 4 / kSize;
  constexpr std::int64_t kStepValues = kType == DType::kBF16 ? 2 : 1;
  const std::int64_t lane = group * kTileRows;

  const std::byte* direct[kTileRows];
  bool as_stored = true;
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    const StoredMatrix* const matrix = rows[r].matrix;
    as_stored = as_stored && matrix != nullptr && matrix->format->number() == kType;
    direct[r] = as_stored ? matrix->row(rows[r].row) : nullptr;
  }
  bool finite = true;
  std::int64_t k = 0;
  if (as_stored) {
    for (; k + kTileValues <= panels.cols(); k += kTileValues) {
      finite &= transpose_tile<kType>(direct, k * kSize, panels.at(panel, k / kStepValues, lane),
                                      panels.step_stride());
    }
  }
  // Rows of another format, rows past the end of the weight, and the last columns: through a
  // buffer, whole blocks at a time.
  alignas(64) std::byte buffer[kTileRows][Format::kMostBlock * kSize];
  const std::byte* buffered[kTileRows];
  for (std::int64_t r = 0; r < kTileRows; ++r) buffered[r] = buffer[r];
  alignas(64) std::byte staged[kTileWords * 2 * 64];
  const std::int64_t group_bytes = panels.step_bytes() / kTilesOfPanel;
  for (; k < panels.cols(); k += Format::kMostBlock) {
    const std::int64_t count = std::min(Format::kMostBlock, panels.cols() - k);
    std::memset(buffer, 0, sizeof buffer);
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      if (rows[r].matrix != nullptr)
        convert(buffer[r], kType, *rows[r].matrix, rows[r].row, k, count);
    }
    for (std::int64_t tile = 0; tile < count; tile += kTileValues) {
      finite &= transpose_tile<kType>(buffered, tile * kSize, staged, group_bytes);
      const std::int64_t first = (k + tile) / kStepValues;
      const std::int64_t values = std::min(kTileValues, count - tile);
      const std::int64_t steps = (values + kStepValues - 1) / kStepValues;
      for (std::int64_t s = 0; s < steps; ++s) {
        std::memcpy(panels.at(panel, first + s, lane), staged + s * group_bytes,
                    static_cast<std::size_t>(group_bytes));
      }
    }
  }
  return finite;
}

StoredRow row_at(std::span<const StoredMatrix> parts, std::int64_t row) {
  for (const StoredMatrix& part : parts) {
    if (row < part.rows) return {&part, row};
    row -= part.rows;
  }
  return {};
}

/// The numbers that a step multiplies.
DType number_of(StepFormat format) {
  switch (format) {
    case StepFormat::kF32:
    case StepFormat::kGroups:  // what codes and scales give
      return DType::kF32;
    case StepFormat::kF16:
      return DType::kF16;
    case StepFormat::kBF16:
    case StepFormat::kDotBF16:
      break;
  }
  return DType::kBF16;
}

/// A row's codes to the order that its panel has columns in.
void sort_codes(std::span<GroupedValues> chunks, std::span<const std::int32_t> order) {
  const auto code = [&](std::size_t k) -> std::int8_t& {
    return chunks[k / GroupedValues::kMost].codes[k % GroupedValues::kMost];
  };
  std::vector<std::int8_t> sorted(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    sorted[i] = code(static_cast<std::size_t>(order[i]));
  for (std::size_t i = 0; i < order.size(); ++i) code(i) = sorted[i];
}

/// Packs one row. Returns whether all its scales were finite.
bool pack_grouped_row(Panels& panels, std::int64_t row, const StoredRow& from) {
  bool finite = true;
  constexpr std::int64_t kMost = GroupedValues::kMost;
  std::vector<GroupedValues> chunks(static_cast<std::size_t>((panels.cols() + kMost - 1) / kMost));
  for (std::int64_t k = 0; k < panels.cols(); k += kMost) {
    GroupedValues& values = chunks[static_cast<std::size_t>(k / kMost)];
    const std::int64_t count = std::min(kMost, panels.cols() - k);
    from.matrix->format->read_groups(*from.matrix, from.row, k, count, values);
    finite &= std::isfinite(values.scale) && std::isfinite(values.minimum);
    for (const float scale : values.scales) finite &= std::isfinite(scale);
    for (const float minimum : values.minimums) finite &= std::isfinite(minimum);
  }
  sort_codes(chunks, panels.column_order());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    panels.put_groups(row, static_cast<std::int64_t>(i), chunks[i]);
  }
  return finite;
}

}  // namespace

Panels::Panels(std::int64_t rows, std::int64_t cols, const Kept& kept, WeightOrder order)
    : rows_(rows), cols_(cols), kept_(kept), order_(order) {
  // Kernels that go by tiles read up to a tile past the end.
  memory_ = Memory(size_bytes() + (order == WeightOrder::kTiles ? kPanelTileBytes : 0));
}

std::int64_t Panels::steps() const {
  if (kept_.format == StepFormat::kGroups) return cols_ / kUnit;
  const std::int64_t values = info_of(kept_.format).values;
  const std::int64_t steps = (cols_ + values - 1) / values;
  if (order_ == WeightOrder::kSteps) return steps;
  return (steps + kTileSteps - 1) / kTileSteps * kTileSteps;
}

std::int64_t Panels::panel_bytes() const {
  if (kept_.format == StepFormat::kGroups) return info_of(kept_.groups).panel_bytes(steps());
  if (kept_.coded()) return info_of_codes(kept_.groups).panel_bytes(cols_ / kUnit);
  return steps() * step_bytes();
}

std::byte* Panels::at(std::int64_t panel, std::int64_t step, std::int64_t lane) const {
  std::byte* first = data() + panel * panel_bytes();
  if (order_ == WeightOrder::kSteps)
    return first + step * step_bytes() + lane * step_bytes() / kPanel;
  return first + step / kTileSteps * kPanelTileBytes + lane / kTileRows * (kPanelTileBytes / 4) +
         step % kTileSteps * step_stride() + lane % kTileRows * 4;
}

GroupPlace Panels::place_of(std::int64_t row, std::int64_t chunk) const {
  const std::int64_t units = std::min(kChunkUnits, steps() - chunk * kChunkUnits);
  return {data() + row / kPanel * panel_bytes() +
              info_of(kept_.groups).panel_bytes(chunk * kChunkUnits),
          row % kPanel, units, kept_.groups};
}

void Panels::put_groups(std::int64_t row, std::int64_t chunk, const GroupedValues& values) {
  place_of(row, chunk).write(values);
}

void Panels::read_row(std::int64_t row, float* out) const {
  if (kept_.format == StepFormat::kGroups) {
    for (std::int64_t k = 0; k < cols_; k += GroupedValues::kMost) {
      const GroupedValues values = place_of(row, k / GroupedValues::kMost).read();
      const std::int64_t count = std::min(GroupedValues::kMost, cols_ - k);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(k + i);
        out[column_order_.empty() ? k + i : column_order_[at]] = values.value(kept_.groups, i);
      }
    }
    return;
  }
  const std::int64_t panel = row / kPanel;
  const std::int64_t lane = row % kPanel;
  if (kept_.coded()) {
    return read_codes(data() + panel * panel_bytes(), kept_.groups, lane, cols_, out);
  }
  const DType number = number_of(kept_.format);
  const std::int64_t values = info_of(kept_.format).values;
  for (std::int64_t k = 0; k < cols_; ++k) {
    out[k] = stored_value(at(panel, k / values, lane), number, k % values);
  }
}

std::int64_t CpuWeight::rows() const {
  std::int64_t rows = 0;
  for (const Panels& run : runs_) rows += run.rows();
  return rows;
}

std::int64_t CpuWeight::size_bytes() const {
  std::int64_t bytes = 0;
  for (const Panels& run : runs_) bytes += run.size_bytes();
  return bytes;
}

void CpuWeight::read_row(std::int64_t row, float* out) const {
  for (const Panels& run : runs_) {
    if (row < run.rows()) return run.read_row(row, out);
    row -= run.rows();
  }
}

StepFormat Packer::step_of(DType number) const {
  switch (number) {
    case DType::kF32:
      return StepFormat::kF32;
    case DType::kF16:
      return StepFormat::kF16;
    case DType::kBF16:
      break;
  }
  const bool dot = kernels_.dot_bf16 && numerics_.product == ComputeFormat::kBF16;
  return dot ? StepFormat::kDotBF16 : StepFormat::kBF16;
}

Kept Packer::kept_as(const StoredMatrix& stored) const {
  const auto groups = stored.format->groups(stored);
  if (groups && groups->codes == GroupCodes::kE4M3) {
    if (numerics_.weights == DType::kBF16) return {step_of(DType::kBF16), *groups};
  } else if (groups && numerics_.weights && !stored.as_plain) {
    // Where nothing may be rounded, neither may activations. Groups of different sizes are widened.
    if (stored.groups == nullptr || !column_order(stored).empty()) {
      return {StepFormat::kGroups, *groups};
    }
  }
  return {step_of(numerics_.weights.value_or(stored.format->number().value_or(DType::kF32)))};
}

Panels Packer::make_panels(std::int64_t rows, std::int64_t cols, const Kept& kept) const {
  const bool tiles = kept.format == StepFormat::kDotBF16 && kernels_.tile_rows > 1;
  return {rows, cols, kept, tiles ? WeightOrder::kTiles : WeightOrder::kSteps};
}

std::unique_ptr<CpuWeight> Packer::pack(std::span<const StoredMatrix> parts) const {
  stacked_rows(parts);
  std::vector<Panels> runs;
  while (!parts.empty()) {
    const auto run = first_run(parts);
    const Kept kept = kept_as(run.front());
    std::optional<Panels> panels;
    if (kept.coded()) panels = pack_coded(run, kept);
    if (!panels) panels = pack_run(run, kept.coded() ? Kept{kept.format} : kept);
    runs.push_back(std::move(*panels));
    parts = parts.subspan(run.size());
  }
  return std::make_unique<CpuWeight>(std::move(runs));
}

std::span<const StoredMatrix> Packer::first_run(std::span<const StoredMatrix> parts) const {
  const Kept kept = kept_as(parts.front());
  std::size_t count = 0;
  std::int64_t rows = 0;
  const std::vector<std::int32_t> order = column_order(parts.front());
  for (const StoredMatrix& part : parts) {
    if (kept.format == StepFormat::kGroups && column_order(part) != order) break;
    // Rows of a panel are of one square where the part begins with the panel.
    if (kept_as(part) != kept || (kept.groups.squares && rows % kPanel != 0)) break;
    rows += part.rows;
    ++count;
  }
  return parts.first(count);
}

std::optional<Panels> Packer::pack_coded(std::span<const StoredMatrix> parts,
                                         const Kept& kept) const {
  Panels panels = make_panels(stacked_rows(parts), parts.front().cols, kept);
  std::atomic<bool> exact{true};
  pool_.parallel_for(panels.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      StoredRow rows[kPanel];
      const std::int64_t count = std::min(kPanel, panels.rows() - panel * kPanel);
      for (std::int64_t r = 0; r < count; ++r) rows[r] = row_at(parts, panel * kPanel + r);
      const auto of_panel = std::span(rows).first(static_cast<std::size_t>(count));
      std::byte* const out = panels.data() + panel * panels.panel_bytes();
      if (!pack_codes(out, kept.groups, of_panel, panels.cols())) exact = false;
    }
  });
  if (!exact) return std::nullopt;
  return panels;
}

Panels Packer::pack_run(std::span<const StoredMatrix> parts, const Kept& kept) const {
  Panels panels = make_panels(stacked_rows(parts), parts.front().cols, kept);
  if (kept.format == StepFormat::kGroups) panels.set_column_order(column_order(parts.front()));
  std::atomic<bool> finite{true};
  pool_.parallel_for(panels.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    bool all_finite = true;
    for (std::int64_t panel = begin; panel < end; ++panel) {
      if (kept.format == StepFormat::kGroups) {
        const std::int64_t last = std::min((panel + 1) * kPanel, panels.rows());
        for (std::int64_t row = panel * kPanel; row < last; ++row) {
          all_finite &= pack_grouped_row(panels, row, row_at(parts, row));
        }
        continue;
      }
      for (std::int64_t group = 0; group < kTilesOfPanel; ++group) {
        StoredRow of_group[kTileRows];
        for (std::int64_t r = 0; r < kTileRows; ++r) {
          of_group[r] = row_at(parts, panel * kPanel + group * kTileRows + r);
        }
        switch (number_of(kept.format)) {
          case DType::kF32:
            all_finite &= pack_group<DType::kF32>(panels, panel, group, of_group);
            break;
          case DType::kF16:
            all_finite &= pack_group<DType::kF16>(panels, panel, group, of_group);
            break;
          case DType::kBF16:
            all_finite &= pack_group<DType::kBF16>(panels, panel, group, of_group);
            break;
        }
      }
    }
    if (!all_finite) finite = false;
  });
  if (!finite) throw_not_finite(parts, number_of(kept.format));
  return panels;
}

std::unique_ptr<CpuWeight> Packer::random(std::int64_t rows, std::int64_t cols, DType number,
                                          std::uint64_t seed) const {
  if (rows <= 0 || cols <= 0) {
    throw Error("random_weight: shape [" + std::to_string(rows) + ", " + std::to_string(cols) +
                "], expected positive sizes");
  }
  Panels panels = make_panels(rows, cols, {step_of(number)});
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
    table[static_cast<std::size_t>(i)] = number == DType::kF32 ? std::bit_cast<std::uint32_t>(value)
                                         : number == DType::kF16
                                             ? static_cast<std::uint32_t>(to_f16(value))
                                             : static_cast<std::uint32_t>(to_bf16(value));
  }
  pool_.parallel_for(panels.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t lanes = std::min(kPanel, rows - panel * kPanel);
      const std::int64_t steps = number == DType::kBF16 ? (cols + 1) / 2 : cols;
      std::uint64_t state = philox_u64(seed, 0, static_cast<std::uint64_t>(panel)) | 1u;
      const auto next = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return table[state >> 52];
      };
      for (std::int64_t step = 0; step < steps; ++step) {
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          std::byte* out = panels.at(panel, step, lane);
          const std::uint32_t bits = next();
          if (number == DType::kF32) {
            std::memcpy(out, &bits, 4);
          } else if (number == DType::kF16) {
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
  std::vector<Panels> runs;
  runs.push_back(std::move(panels));
  return std::make_unique<CpuWeight>(std::move(runs));
}

}  // namespace dendrite::cpu
