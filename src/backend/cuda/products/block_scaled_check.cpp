#include "backend/cuda/products/block_scaled_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cuda/products/block_scaled_products.h"
#include "backend/cuda/products/block_scaled_rows.h"
#include "backend/cuda/products/block_scaled_tiles.h"
#include "core/dtype.h"

namespace dendrite::cuda {
namespace {

constexpr const char* kOp = "checking block-scaled products";
constexpr std::int64_t kRows = 16;      // compared with the host
constexpr std::int64_t kMostRows = 80;  // several bands, the last one not whole
constexpr std::int64_t kOutputs = 8;    // at each end
/// Of the sum of all products' sizes. Tensor cores may add 32 to 128 products with some 13 bits;
/// a scale that goes with another group costs more than this.
constexpr double kTolerance = 0x1p-10;

/// Values of many sizes, each from its place alone.
std::vector<BF16> inputs(std::int64_t count) {
  std::vector<BF16> values;
  std::uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  for (std::int64_t i = 0; i < count; ++i) {
    const float unit = static_cast<float>(next() >> 8) * 0x1p-23F - 1;
    const float size = i % 97 == 0 ? 24.0F : 1.0F;  // groups differ in their scales
    values.push_back(to_bf16(unit * size));
  }
  return values;
}

/// Row `row` of the stacked matrices.
std::vector<float> values_of(std::span<const StoredMatrix> parts, std::int64_t row) {
  std::size_t part = 0;
  while (row >= parts[part].rows) row -= parts[part++].rows;
  std::vector<float> values(static_cast<std::size_t>(parts[part].cols));
  parts[part].format->widen(parts[part], row, 0, values);
  return values;
}

class Trial {
 public:
  Trial(const Device& device, const CudaWeight& weight)
      : device_(device),
        weight_(weight),
        scales_(*weight.block_scales()),
        values_(inputs(kMostRows * weight.cols())),
        rounded_{nullptr, kMostRows, weight.cols(), scales_.format},
        x_(std::ssize(values_) * 2, kOp),
        codes_(rounded_.size_bytes(), kOp),
        out_(kMostRows * weight.rows() * 4, kOp) {
    check(cudaMemcpyAsync(x_.data(), values_.data(), values_.size() * 2, cudaMemcpyHostToDevice,
                          device.stream()),
          kOp);
    rounded_.data = codes_.data();
  }

  bool agrees(std::span<const StoredMatrix> parts) {
    const std::vector<float> all = product(0, kMostRows);
    if (!rounds_as_the_host()) return false;
    const std::int64_t n = weight_.rows();
    for (const auto& [first, count] :
         {std::pair<std::int64_t, std::int64_t>{0, kRows}, {7, 1}, {kMostRows - 40, 40}}) {
      const std::vector<float> some = product(first, count);
      if (std::memcmp(some.data(), all.data() + first * n, some.size() * 4) != 0) return false;
    }
    for (std::int64_t output = 0; output < n; ++output) {
      if (output == kOutputs) output = std::max(output, n - kOutputs);
      if (!is_right(values_of(parts, output), output, all)) return false;
    }
    return true;
  }

 private:
  /// Of rows [first, first + count), which are rounded before.
  std::vector<float> product(std::int64_t first, std::int64_t count) {
    BlockScaledRows rows = rounded_;
    rows.rows = count;
    launch_block_scaled_rows(rows, scales_.input_factor, x_.data() + first * weight_.cols() * 2,
                             weight_.cols(), device_.stream());
    FewRowsProduct product;
    product.weight = &weight_;
    product.rows = count;
    product.out = out_.data();
    product.out_stride = weight_.rows();
    launch_block_scaled(product, rows, device_.stream());
    check(cudaGetLastError(), kOp);
    return download<float>(out_, count * weight_.rows());
  }

  template <typename T>
  std::vector<T> download(const Memory& memory, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    check(cudaMemcpyAsync(values.data(), memory.data(), values.size() * sizeof(T),
                          cudaMemcpyDeviceToHost, device_.stream()),
          kOp);
    device_.synchronize(kOp);
    return values;
  }

  /// Keeps what all rounded rows mean.
  bool rounds_as_the_host() {
    const std::vector<std::byte> got = download<std::byte>(codes_, rounded_.size_bytes());
    std::vector<std::byte> expected(got.size());
    const auto cols = static_cast<std::size_t>(weight_.cols());
    meant_.resize(kRows * cols);
    std::vector<float> row(cols);
    for (std::int64_t r = 0; r < kMostRows; ++r) {
      const BF16* const from = values_.data() + r * weight_.cols();
      std::transform(from, from + cols, row.begin(), [](BF16 value) { return to_f32(value); });
      std::byte* const codes = expected.data() + r * rounded_.code_bytes();
      std::byte* const scales =
          expected.data() + kMostRows * rounded_.code_bytes() + r * rounded_.scale_bytes();
      round_block_scaled(scales_.format, scales_.input_factor, row, codes, scales);
      if (r < kRows) {
        widen_block_scaled(scales_.format, scales_.input_factor, codes, scales,
                           std::span(meant_).subspan(static_cast<std::size_t>(r) * cols, cols));
      }
    }
    return got == expected;
  }

  bool is_right(const std::vector<float>& weights, std::int64_t output,
                const std::vector<float>& all) const {
    for (std::int64_t r = 0; r < kRows; ++r) {
      double expected = 0;
      double sizes = 0;
      for (std::size_t k = 0; k < weights.size(); ++k) {
        const double product =
            double{weights[k]} * double{meant_[static_cast<std::size_t>(r) * weights.size() + k]};
        expected += product;
        sizes += std::abs(product);
      }
      const double got = all[static_cast<std::size_t>(r * weight_.rows() + output)];
      if (!(std::abs(got - expected) <= kTolerance * sizes)) return false;  // also of NaN
    }
    return true;
  }

  const Device& device_;
  const CudaWeight& weight_;
  const BlockScales& scales_;
  std::vector<BF16> values_;
  BlockScaledRows rounded_;
  Memory x_;
  Memory codes_;
  Memory out_;
  std::vector<float> meant_;
};

}  // namespace

bool block_scaled_products_agree(const Device& device, const CudaWeight& weight,
                                 std::span<const StoredMatrix> parts) {
  return Trial(device, weight).agrees(parts);
}

}  // namespace dendrite::cuda
