#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/group_place.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/numerics.h"
#include "backend/weight.h"
#include "core/parallel.h"
#include "quant/format.h"

namespace dendrite::cpu {

/// How a panel lies in memory: step after step, or (kDotBF16 only) tile after tile, each of them
/// the 16 rows of 64 bytes that a matrix register takes.
enum class WeightOrder { kSteps, kTiles };

/// How rows of a weight are kept: `groups` with kGroups, or of kE4M3 where bf16 is made of codes.
struct Kept {
  StepFormat format = StepFormat::kF32;
  Groups groups{};
  bool coded() const { return groups.codes == GroupCodes::kE4M3; }
  bool operator==(const Kept&) const = default;
};

/// Rows of a weight that are kept in one format, as panels of 64, one contiguous run of memory
/// each, zero-padded:
///   kSteps, bf16       [rows / 64][cols / 2][64][2]
///   kSteps, f32, f16   [rows / 64][cols][64]
///   kTiles, bf16       [rows / 64][cols / 32][4][16 pairs][16][2]
///   groups             GroupsInfo
///   E4M3               CodesInfo
class Panels {
 public:
  Panels(std::int64_t rows, std::int64_t cols, const Kept& kept, WeightOrder order);
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  StepFormat format() const { return kept_.format; }
  const Groups& groups() const { return kept_.groups; }
  std::int64_t size_bytes() const {
    return count() * panel_bytes() + std::ssize(column_order_) * 4;
  }

  std::int64_t count() const { return (rows_ + kPanel - 1) / kPanel; }
  /// Of each panel; whole tiles of them in that order. Of groups: units. Of E4M3: of the bf16 that
  /// it becomes.
  std::int64_t steps() const;
  std::int64_t step_bytes() const { return info_of(kept_.format).panel_bytes; }
  std::int64_t panel_bytes() const;
  std::byte* data() const { return memory_.data(); }

  /// Where a step has what is row `lane`'s of a panel. The 15 rows after it follow, if `lane` is a
  /// multiple of 16; 16 steps from a multiple of 16 on are step_stride() apart.
  std::byte* at(std::int64_t panel, std::int64_t step, std::int64_t lane) const;
  std::int64_t step_stride() const { return order_ == WeightOrder::kTiles ? 64 : step_bytes(); }

  /// Of groups: values [256 * chunk, + 256) of row `row`, or as many as there are.
  void put_groups(std::int64_t row, std::int64_t chunk, const GroupedValues& values);

  /// Of groups: which column of the matrix each of theirs is; empty: the same.
  const std::vector<std::int32_t>& column_order() const { return column_order_; }
  void set_column_order(std::vector<std::int32_t> order) { column_order_ = std::move(order); }

  /// Row `row`, widened.
  void read_row(std::int64_t row, float* out) const;

 private:
  GroupPlace place_of(std::int64_t row, std::int64_t chunk) const;

  std::int64_t rows_;
  std::int64_t cols_;
  Kept kept_;
  WeightOrder order_;
  Memory memory_;
  std::vector<std::int32_t> column_order_;
};

/// A matrix [rows, cols] as runs of its rows, one for each format that they are kept in.
class CpuWeight final : public Weight {
 public:
  explicit CpuWeight(std::vector<Panels> runs) : runs_(std::move(runs)) {}
  std::int64_t rows() const override;
  std::int64_t cols() const override { return runs_.front().cols(); }
  std::int64_t size_bytes() const override;

  std::span<const Panels> runs() const { return runs_; }
  void read_row(std::int64_t row, float* out) const;  // widened

 private:
  std::vector<Panels> runs_;
};

/// Makes weights. What is plain is kept as it is stored, or as the numerics say; other formats as
/// they are stored where there are kernels for them, else widened.
class Packer {
 public:
  Packer(const Numerics& numerics, const Kernels& kernels, const ThreadPool& pool)
      : numerics_(numerics), kernels_(kernels), pool_(pool) {}

  /// See Backend::pack and Backend::random_weight.
  std::unique_ptr<CpuWeight> pack(std::span<const StoredMatrix> parts) const;
  std::unique_ptr<CpuWeight> random(std::int64_t rows, std::int64_t cols, DType number,
                                    std::uint64_t seed) const;
  /// See Backend::rounds_inputs.
  bool rounds_inputs(const StoredMatrix& stored) const {
    return kept_as(stored).format == StepFormat::kGroups;
  }

 private:
  StepFormat step_of(DType number) const;
  Kept kept_as(const StoredMatrix& stored) const;
  Panels make_panels(std::int64_t rows, std::int64_t cols, const Kept& kept) const;
  /// The matrices that are packed as the first one.
  std::span<const StoredMatrix> first_run(std::span<const StoredMatrix> parts) const;
  Panels pack_run(std::span<const StoredMatrix> parts, const Kept& kept) const;
  std::optional<Panels> pack_coded(std::span<const StoredMatrix> parts, const Kept& kept) const;

  const Numerics& numerics_;
  const Kernels& kernels_;
  const ThreadPool& pool_;
};

}  // namespace dendrite::cpu
