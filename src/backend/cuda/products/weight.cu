#include "backend/cuda/products/weight.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/base/numbers.cuh"
#include "backend/packing.h"
#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

constexpr unsigned kBlocks = 1024;
constexpr unsigned kThreads = 256;
/// Host rows are converted and uploaded in pieces of about this size.
constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

template <typename T>
__device__ bool is_finite(T x) {
  return isfinite(widen(x));
}

template <typename T>
__global__ void find_not_finite(const T* values, std::int64_t count, int* found) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    if (!is_finite(values[i])) *found = 1;
  }
}

__device__ std::uint64_t mixed(std::uint64_t x) {  // Steele et al. 2014 (SplitMix64)
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/// N(0, deviation^2) by Box and Muller, a value from its index alone.
template <typename T>
__global__ void fill_normal(T* values, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                            std::uint64_t seed, float deviation) {
  const std::int64_t count = rows * ld;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::uint64_t bits = mixed(seed ^ mixed(static_cast<std::uint64_t>(i)));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(bits & 0xffffffu) * 0x1p-24f;
    const float normal = sqrtf(-2.0f * logf(u)) * cospif(2.0f * angle);
    values[i] = static_cast<T>(i % ld < cols ? normal * deviation : 0.0f);
  }
}

template <typename F>
void with_type(DType dtype, std::byte* data, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(reinterpret_cast<float*>(data));
    case DType::kF16:
      return f(reinterpret_cast<__half*>(data));
    case DType::kBF16:
      return f(reinterpret_cast<bf16*>(data));
  }
}

bool all_finite(const Device& device, const CudaWeight& weight) {
  const Memory found(sizeof(int), "pack");
  check(cudaMemsetAsync(found.data(), 0, sizeof(int), device.stream()), "pack");
  with_type(weight.dtype(), weight.data(), [&](auto* values) {
    find_not_finite<<<kBlocks, kThreads, 0, device.stream()>>>(
        values, weight.rows() * weight.ld(), reinterpret_cast<int*>(found.data()));
  });
  check(cudaGetLastError(), "pack");
  int bad = 0;
  check(cudaMemcpyAsync(&bad, found.data(), sizeof bad, cudaMemcpyDeviceToHost, device.stream()),
        "pack");
  device.synchronize("pack");
  return bad == 0;
}

DType kept_as(std::span<const StoredMatrix> parts, const Numerics& numerics) {
  if (numerics.weights) return *numerics.weights;
  const std::optional<DType> first = parts.front().format->number();
  const bool alike = std::ranges::all_of(
      parts, [&](const StoredMatrix& part) { return part.format->number() == first; });
  return alike ? first.value_or(DType::kF32) : DType::kF32;
}

}  // namespace

CudaWeight::CudaWeight(std::int64_t rows, std::int64_t cols, DType dtype, ComputeFormat product)
    : rows_(rows),
      cols_(cols),
      ld_((cols + 7) / 8 * 8),
      dtype_(dtype),
      takes_bf16_(product == ComputeFormat::kBF16 && cols % 4 == 0),
      memory_(rows * ld_ * size_of(dtype), "weights") {}

CudaWeight::CudaWeight(std::int64_t rows, std::int64_t cols, const Packing& packing, Memory memory)
    : rows_(rows),
      cols_(cols),
      ld_((cols + 7) / 8 * 8),
      dtype_(DType::kBF16),
      takes_bf16_(cols % 4 == 0),
      packing_(packing),
      memory_(std::move(memory)) {}

CudaWeight::CudaWeight(std::int64_t rows, std::int64_t cols, WeightScales scales, Memory codes)
    : rows_(rows),
      cols_(cols),
      ld_((cols + 7) / 8 * 8),
      dtype_(DType::kBF16),
      takes_bf16_(cols % 4 == 0),
      scales_(std::move(scales)),
      memory_(std::move(codes)) {}

CudaWeight::CudaWeight(std::int64_t rows, std::int64_t cols, BlockScales scales, Memory tiles)
    : rows_(rows),
      cols_(cols),
      ld_(cols),
      dtype_(DType::kBF16),
      takes_bf16_(true),
      block_scales_(std::move(scales)),
      memory_(std::move(tiles)) {}

Rows CudaWeight::input(Tensor scratch) const {
  if (!takes_bf16_) return scratch;
  return {scratch.data, RowFormat::kBF16, scratch.rows, cols_, ld_};
}

std::unique_ptr<CudaWeight> pack_weight(const Device& device, std::span<const StoredMatrix> parts,
                                        const Numerics& numerics) {
  const std::int64_t rows = stacked_rows(parts);
  const DType dtype = kept_as(parts, numerics);
  auto weight = std::make_unique<CudaWeight>(rows, parts[0].cols, dtype, numerics.product);
  const std::int64_t row_bytes = weight->ld() * size_of(dtype);
  const std::int64_t piece = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
  std::byte* target = weight->data();
  std::vector<std::byte> staged;
  for (const StoredMatrix& part : parts) {
    if (part.format->number() == dtype && part.stride == row_bytes) {
      check(cudaMemcpyAsync(target, part.data, static_cast<std::size_t>(part.rows * row_bytes),
                            cudaMemcpyHostToDevice, device.stream()),
            "pack");
      target += part.rows * row_bytes;
      continue;
    }
    for (std::int64_t row = 0; row < part.rows; row += piece) {
      const std::int64_t count = std::min(piece, part.rows - row);
      staged.assign(static_cast<std::size_t>(count * row_bytes), std::byte{0});
      for (std::int64_t r = 0; r < count; ++r) {
        convert(staged.data() + r * row_bytes, dtype, part, row + r, 0, part.cols);
      }
      // From pageable memory: `staged` may be used again as soon as this returns.
      check(cudaMemcpyAsync(target, staged.data(), staged.size(), cudaMemcpyHostToDevice,
                            device.stream()),
            "pack");
      target += count * row_bytes;
    }
  }
  if (!all_finite(device, *weight)) throw_not_finite(parts, dtype);
  return weight;
}

std::unique_ptr<CudaWeight> random_weight(const Device& device, std::int64_t rows,
                                          std::int64_t cols, DType dtype, ComputeFormat product,
                                          std::uint64_t seed) {
  if (rows <= 0 || cols <= 0) {
    throw Error("random_weight: shape [" + std::to_string(rows) + ", " + std::to_string(cols) +
                "], expected positive sizes");
  }
  auto weight = std::make_unique<CudaWeight>(rows, cols, dtype, product);
  const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
  with_type(dtype, weight->data(), [&](auto* values) {
    fill_normal<<<kBlocks, kThreads, 0, device.stream()>>>(values, rows, cols, weight->ld(), seed,
                                                           deviation);
  });
  check(cudaGetLastError(), "random_weight");
  device.synchronize("random_weight");  // products read weights before earlier kernels are done
  return weight;
}

}  // namespace dendrite::cuda
