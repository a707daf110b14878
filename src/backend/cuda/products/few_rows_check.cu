#include <algorithm>
#include <array>

#include "backend/cuda/products/few_rows_check.h"
#include "backend/cuda/products/gemm.h"

namespace dendrite::cuda {
namespace {

constexpr const char* kOp = "checking a kernel";
constexpr std::array<std::int64_t, 10> kRows = {112, 113, 128, 160, 192, 200, 256, 512, 1024, 2048};
static_assert(kRows.front() == WgmmaProducts::kMostRows);
constexpr std::array<std::int64_t, 2> kFewRows = {16, 64};
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // of a result

/// That a result of `n` columns is compared with.
std::int64_t most_rows(std::int64_t n) {
  return std::clamp(kMostBytes / (4 * n), WgmmaProducts::kMostRows + 1, kRows.back());
}

__global__ void find_difference(const std::uint32_t* a, const std::uint32_t* b, std::int64_t count,
                                int* found) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    if (a[i] != b[i]) *found = 1;
  }
}

}  // namespace

bool FewRowsCheck::passes(const CudaWeight& weight, bool bias, bool add) {
  if (!products_.takes(weight)) return false;
  const std::tuple key{weight.rows(), weight.cols(), bias, add};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(device_.stream(), &status), kOp);
  if (status != cudaStreamCaptureStatusNone) return false;
  return known_[key] = try_shape(weight, bias, add);
}

std::int64_t FewRowsCheck::most_bytes(std::int64_t rows, std::int64_t cols) {
  const std::int64_t results = most_rows(rows) + WgmmaProducts::kMostRows + kFewRows.back() + 1;
  return kRows.back() * cols * 2 + results * rows * 4;
}

bool FewRowsCheck::try_shape(const CudaWeight& weight, bool bias, bool add) const {
  const std::int64_t n = weight.rows();
  const std::int64_t count = WgmmaProducts::kMostRows * n;
  const std::int64_t most = most_rows(n);
  constexpr auto kProduct = ComputeFormat::kBF16;
  const auto x = random_weight(device_, kRows.back(), weight.cols(), DType::kBF16, kProduct, 1);
  const auto biases = random_weight(device_, 1, n, DType::kF32, kProduct, 2);
  const Memory ours(count * 4, kOp);
  const Memory theirs(most * n * 4, kOp);
  const Memory found(sizeof(int), kOp);
  const auto fill = [this](const Memory& memory, int byte) {
    check(cudaMemsetAsync(memory.data(), byte, static_cast<std::size_t>(memory.size_bytes()),
                          device_.stream()),
          kOp);
  };
  const auto compare = [&](const Memory& a, const Memory& b, std::int64_t values) {
    find_difference<<<1024, 256, 0, device_.stream()>>>(
        reinterpret_cast<const std::uint32_t*>(a.data()),
        reinterpret_cast<const std::uint32_t*>(b.data()), values,
        reinterpret_cast<int*>(found.data()));
    check(cudaGetLastError(), kOp);
  };
  const int before = add ? 0x3c : 0xff;  // 0.0115 or NaN
  fill(ours, before);
  fill(found, 0);

  FewRowsProduct product;
  product.weight = &weight;
  product.bias = bias ? reinterpret_cast<const float*>(biases->data()) : nullptr;
  product.rows = WgmmaProducts::kMostRows;
  product.x = x->data();
  product.x_stride = x->ld();
  product.epilogue = add ? Epilogue::kAdd : Epilogue::kStore;
  product.out = ours.data();
  product.out_stride = n;
  products_.launch(product);
  check(cudaGetLastError(), kOp);
  // Fewer rows may take other instructions.
  const Memory of_few(kFewRows.back() * n * 4, kOp);
  product.out = of_few.data();
  for (const std::int64_t rows : kFewRows) {
    fill(of_few, before);
    product.rows = rows;
    products_.launch(product);
    check(cudaGetLastError(), kOp);
    compare(ours, of_few, rows * n);
  }

  Gemm gemm(device_, /*deterministic=*/true);
  for (const std::int64_t rows : kRows) {
    if (rows > most) break;
    fill(theirs, before);
    const Tensor result{reinterpret_cast<float*>(theirs.data()), rows, n, n};
    gemm.run(result, x->data(), weight, product.bias, add);
    compare(ours, theirs, count);
  }
  int different = 0;
  check(cudaMemcpyAsync(&different, found.data(), sizeof different, cudaMemcpyDeviceToHost,
                        device_.stream()),
        kOp);
  device_.synchronize(kOp);
  return different == 0;
}

}  // namespace dendrite::cuda
