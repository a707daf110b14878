#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cuda/products/e4m3_products.h"
#include "backend/host_cores.h"
#include "backend/packing.h"
#include "core/parallel.h"

namespace dendrite::cuda {
namespace {

constexpr std::int64_t kPieceRows = 4096;

/// Rows of a matrix as codes, and the scales of their groups [rows, cols / 128]. Returns whether
/// all are finite.
bool read_rows(const StoredMatrix& part, std::int64_t first, std::int64_t count, std::byte* codes,
               float* scales) {
  const std::int64_t groups = part.cols / kE4m3Group;
  std::atomic<bool> finite{true};
  const ThreadPool pool(usable_cores());
  pool.parallel_for(count, 16, [&](std::int64_t begin, std::int64_t end) {
    GroupedValues values;
    bool all_finite = true;
    for (std::int64_t row = begin; row < end; ++row) {
      std::byte* const to = codes + row * part.cols;
      for (std::int64_t k = 0; k < part.cols; k += GroupedValues::kMost) {
        const std::int64_t some = std::min(GroupedValues::kMost, part.cols - k);
        part.format->read_groups(part, first + row, k, some, values);
        std::memcpy(to + k, values.codes.data(), static_cast<std::size_t>(some));
        for (std::int64_t i = 0; i < some; i += kE4m3Group) {
          const float scale = values.scale * values.scales[static_cast<std::size_t>(i / 32)];
          all_finite &= std::isfinite(scale);
          scales[row * groups + (k + i) / kE4m3Group] = scale;
        }
      }
      all_finite &= std::all_of(to, to + part.cols, [](std::byte code) {
        return (code & std::byte{0x7f}) != std::byte{0x7f};
      });
    }
    if (!all_finite) finite = false;
  });
  return finite;
}

/// What all groups of a row, or of a row's eight and a tile, share; else none.
std::optional<std::vector<float>> shared_scales(const std::vector<float>& scales, std::int64_t rows,
                                                bool squares) {
  const std::int64_t tiles = std::ssize(scales) / rows;
  const auto scale = [&](std::int64_t row, std::int64_t tile) {
    return scales[static_cast<std::size_t>(row * tiles + tile)];
  };
  std::vector<float> shared(static_cast<std::size_t>(squares ? rows / 8 * tiles : rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const bool first = squares ? row % 8 == 0 : tile == 0;
      float& of = shared[static_cast<std::size_t>(squares ? tile * (rows / 8) + row / 8 : row)];
      if (first) of = scale(row, tile);
      if (of != scale(row, tile)) return std::nullopt;
    }
  }
  return shared;
}

/// Of squares [tiles, rows / 8]: [rows / 128, tiles], if each 128 rows share theirs.
std::optional<std::vector<float>> shared_blocks(const std::vector<float>& squares,
                                                std::int64_t rows) {
  constexpr std::int64_t kEights = kE4m3Group / 8;
  const std::int64_t eights = rows / 8;
  const std::int64_t tiles = std::ssize(squares) / eights;
  std::vector<float> blocks;
  for (std::int64_t first = 0; first < eights; first += kEights) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const auto of = squares.begin() + tile * eights + first;
      const std::int64_t count = std::min(kEights, eights - first);
      if (std::count(of, of + count, *of) != count) return std::nullopt;
      blocks.push_back(*of);
    }
  }
  return blocks;
}

/// In the device's stream.
Memory upload(const Device& device, const std::vector<float>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  Memory kept(bytes, "scales of weights");
  check(cudaMemcpyAsync(kept.data(), values.data(), static_cast<std::size_t>(bytes),
                        cudaMemcpyHostToDevice, device.stream()),
        "pack");
  return kept;
}

}  // namespace

bool E4m3Products::takes(const Device& device, const StoredMatrix& matrix,
                         const Numerics& numerics) {
  if (numerics.product != ComputeFormat::kBF16 || numerics.weights != DType::kBF16 ||
      !multiplies_tiles(device) || matrix.as_plain || matrix.cols % kE4m3Group != 0 ||
      matrix.rows % 8 != 0)
    return false;
  const auto groups = matrix.format->groups(matrix);
  return groups && groups->codes == GroupCodes::kE4M3 && groups->scales == GroupScales::kF32;
}

std::unique_ptr<CudaWeight> E4m3Products::pack(const Device& device,
                                               std::span<const StoredMatrix> parts,
                                               const Numerics& numerics) {
  const std::int64_t rows = stacked_rows(parts);
  if (!std::ranges::all_of(parts,
                           [&](const StoredMatrix& part) { return takes(device, part, numerics); }))
    return nullptr;
  const std::int64_t cols = parts.front().cols;
  Memory codes(rows * cols, "weights");
  std::vector<float> scales(static_cast<std::size_t>(rows * (cols / kE4m3Group)));
  std::vector<std::byte> staged;
  std::int64_t at = 0;  // rows of all parts
  for (const StoredMatrix& part : parts) {
    for (std::int64_t row = 0; row < part.rows; row += kPieceRows) {
      const std::int64_t count = std::min(kPieceRows, part.rows - row);
      staged.resize(static_cast<std::size_t>(count * cols));
      if (!read_rows(part, row, count, staged.data(), scales.data() + at * (cols / kE4m3Group))) {
        throw_not_finite(parts, DType::kBF16);
      }
      // From pageable memory: `staged` may be used again as soon as this returns.
      check(cudaMemcpyAsync(codes.data() + at * cols, staged.data(), staged.size(),
                            cudaMemcpyHostToDevice, device.stream()),
            "pack");
      at += count;
    }
  }
  bool squares = false;
  auto shared = shared_scales(scales, rows, squares);
  if (!shared) shared = shared_scales(scales, rows, squares = true);
  if (!shared) return nullptr;
  WeightScales kept{upload(device, *shared), squares, {}};
  if (const auto blocks = squares ? shared_blocks(*shared, rows) : std::nullopt) {
    kept.blocks = upload(device, *blocks);
  }
  device.synchronize("pack");  // products read weights before earlier kernels are done
  return std::make_unique<CudaWeight>(rows, cols, std::move(kept), std::move(codes));
}

}  // namespace dendrite::cuda
