// Kernels of block-scaled products on a GPU, whichever it is: where it lacks the instruction, what
// stands in for it runs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/block_scaled_check.h"
#include "backend/cuda/products/block_scaled_products.h"
#include "backend/cuda/products/block_scaled_rows.h"
#include "backend/cuda/products/block_scaled_tiles.h"
#include "backend/cuda/products/rounded.h"
#include "backend/cuda/products/rows.h"
#include "core/dtype.h"
#include "held_matrix.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite::cuda {
namespace {

using test::Held;
using testing_support::Random;

constexpr const char* kKinds[] = {"mxfp8", "nvfp4", "nvfp4_modelopt"};
constexpr std::int64_t kMost = 200;
constexpr float kInputWhole = 0.02F;

/// A matrix as a weight, whatever the device.
struct Packed {
  Held held;
  StoredMatrix matrix;
  std::unique_ptr<CudaWeight> weight;

  Packed(const Device& device, const std::string& kind, std::int64_t rows, std::int64_t cols)
      : held(kind, 32, rows, cols), matrix(held.matrix()) {
    matrix.rounds_inputs = true;
    const BlockFormat format = *block_format_of(matrix);
    const std::int64_t bytes =
        format == BlockFormat::kMxfp8
            ? BlockWeightLayout<BlockFormat::kMxfp8>{rows, cols}.size_bytes()
            : BlockWeightLayout<BlockFormat::kNvfp4>{rows, cols}.size_bytes();
    std::vector<std::uint32_t> tiles(static_cast<std::size_t>(bytes / 4));
    EXPECT_TRUE(write_block_tiles(matrix, format, 0, rows, tiles.data()));
    BlockScales scales{format, {}, 1};
    if (format == BlockFormat::kNvfp4) {
      const std::vector<float> factors(static_cast<std::size_t>(rows), whole_scale_of(matrix));
      scales.factors = copied(device, factors);
      scales.input_factor = kInputWhole;
    }
    weight = std::make_unique<CudaWeight>(rows, cols, std::move(scales), copied(device, tiles));
  }

  template <typename T>
  static Memory copied(const Device& device, const std::vector<T>& values) {
    Memory memory(std::ssize(values) * static_cast<std::int64_t>(sizeof(T)), "test");
    check(cudaMemcpyAsync(memory.data(), values.data(), values.size() * sizeof(T),
                          cudaMemcpyHostToDevice, device.stream()),
          "test");
    device.synchronize("test");
    return memory;
  }
};

template <typename T>
std::vector<T> fetched(const Device& device, const Memory& memory) {
  std::vector<T> values(static_cast<std::size_t>(memory.size_bytes()) / sizeof(T));
  check(cudaMemcpyAsync(values.data(), memory.data(), values.size() * sizeof(T),
                        cudaMemcpyDeviceToHost, device.stream()),
        "test");
  device.synchronize("test");
  return values;
}

class BlockScaledOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::on_cuda()) GTEST_SKIP() << "for a GPU";
    device_ = std::make_unique<Device>(0);
  }

  /// Of rows [first, first + count) of x, added to `before`, with a bias.
  std::vector<float> product(const Packed& packed, const Memory& x, std::int64_t first,
                             std::int64_t count, const float* bias, bool add) const {
    const CudaWeight& weight = *packed.weight;
    const BlockScales& scales = *weight.block_scales();
    BlockScaledRows rows{nullptr, count, weight.cols(), scales.format};
    const Memory codes(rows.size_bytes(), "test");
    rows.data = codes.data();
    launch_block_scaled_rows(rows, scales.input_factor, x.data() + first * weight.cols() * 2,
                             weight.cols(), device_->stream());
    const std::int64_t stride = weight.rows() + 4;
    const Memory out =
        Packed::copied(*device_, std::vector<float>(static_cast<std::size_t>(count * stride), 7));
    FewRowsProduct product;
    product.weight = &weight;
    product.rows = count;
    product.bias = bias;
    product.out = out.data();
    product.out_stride = stride;
    product.epilogue = add ? Epilogue::kAdd : Epilogue::kStore;
    launch_block_scaled(product, rows, device_->stream());
    check(cudaGetLastError(), "test");
    const auto all = fetched<float>(*device_, out);
    std::vector<float> results;
    for (std::int64_t r = 0; r < count; ++r) {
      const auto row = all.begin() + r * stride;
      results.insert(results.end(), row, row + weight.rows());
      for (std::int64_t i = weight.rows(); i < stride; ++i) EXPECT_EQ(row[i], 7.0F);
    }
    return results;
  }

  Memory inputs(std::int64_t cols, std::vector<float>& meant) const {
    Random random(static_cast<std::uint32_t>(cols));
    std::vector<BF16> values;
    for (const float value : random.normal(kMost * cols)) {
      values.push_back(to_bf16(value));
      meant.push_back(to_f32(values.back()));
    }
    return Packed::copied(*device_, values);
  }

  std::unique_ptr<Device> device_;
};

/// Sums, bias and addition: what rows that are rounded on the host give in double precision.
TEST_F(BlockScaledOnGpu, ProductsEqualDoublePrecision) {
  const double rounding = has_block_scaled_instruction(device_->stream()) ? 0x1p-10 : 1e-6;
  for (const char* kind : kKinds) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{8, 128}, {72, 256}, {136, 1152}}) {
      const Packed packed(*device_, kind, n, k);
      std::vector<float> x;
      const Memory stored = inputs(k, x);
      const BlockScales& scales = *packed.weight->block_scales();
      const BlockScaledRows shape{nullptr, 1, k, scales.format};
      std::vector<std::byte> bytes(static_cast<std::size_t>(shape.size_bytes()));
      for (std::int64_t row = 0; row < kMost; ++row) {
        const auto values =
            std::span(x).subspan(static_cast<std::size_t>(row * k), static_cast<std::size_t>(k));
        std::byte* const of_row = bytes.data() + shape.code_bytes();
        round_block_scaled(scales.format, scales.input_factor, values, bytes.data(), of_row);
        widen_block_scaled(scales.format, scales.input_factor, bytes.data(), of_row, values);
      }
      Random random(5);
      const std::vector<float> biases = random.normal(n);
      const Memory bias = Packed::copied(*device_, biases);
      const auto plain = product(packed, stored, 0, kMost, nullptr, false);
      const auto joined =
          product(packed, stored, 0, kMost, reinterpret_cast<const float*>(bias.data()), true);
      for (std::int64_t i = 0; i < kMost * n; ++i) {
        double sum = 0;
        double sizes = 0;
        for (std::int64_t j = 0; j < k; ++j) {
          const double one = double{x[static_cast<std::size_t>(i / n * k + j)]} *
                             double{packed.held.meant()[static_cast<std::size_t>(i % n * k + j)]};
          sum += one;
          sizes += std::abs(one);
        }
        const auto at = static_cast<std::size_t>(i);
        ASSERT_NEAR(plain[at], sum, sizes * rounding) << kind << ", " << n << " x " << k;
        const float added = plain[at] + biases[static_cast<std::size_t>(i % n)] + 7.0F;
        ASSERT_EQ(joined[at], added);
      }
    }
  }
}

TEST_F(BlockScaledOnGpu, RowsHaveTheSameBitsInAnyCompany) {
  for (const char* kind : kKinds) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{200, 640}, {1032, 128}}) {
      const Packed packed(*device_, kind, n, k);
      std::vector<float> meant;
      const Memory x = inputs(k, meant);
      const auto all = product(packed, x, 0, kMost, nullptr, false);
      for (const std::int64_t rows : {1, 2, 7, 15, 16, 17, 33, 63, 64, 65, 100, 129}) {
        const std::int64_t first = kMost - rows;  // the last ones, whose places differ
        const auto got = product(packed, x, first, rows, nullptr, false);
        ASSERT_EQ(std::memcmp(got.data(), all.data() + first * n, got.size() * 4), 0)
            << kind << ", " << n << " x " << k << ", " << rows << " rows";
      }
    }
  }
}

/// What is tried when a weight is loaded passes, and sees a word that is another.
TEST_F(BlockScaledOnGpu, TheTrialTellsRightFromWrong) {
  for (const char* kind : kKinds) {
    const Packed right(*device_, kind, 96, 4096);
    EXPECT_TRUE(block_scaled_products_agree(*device_, *right.weight, {&right.matrix, 1})) << kind;
    const bool is_mxfp8 = right.weight->block_scales()->format == BlockFormat::kMxfp8;
    const std::int64_t scales =
        4 * (is_mxfp8 ? BlockWeightLayout<BlockFormat::kMxfp8>{96, 4096}.scales_at(0, 3)
                      : BlockWeightLayout<BlockFormat::kNvfp4>{96, 4096}.scales_at(0, 3));
    for (const std::int64_t at : {std::int64_t{0}, scales}) {  // codes or scales of the first row
      const Packed wrong(*device_, kind, 96, 4096);
      check(cudaMemsetAsync(wrong.weight->data() + at, 0x77, 4, device_->stream()), "test");
      EXPECT_FALSE(block_scaled_products_agree(*device_, *wrong.weight, {&wrong.matrix, 1}))
          << kind << ", byte " << at;
    }
  }
}

/// A norm that rounds gives what rounding its result gives.
TEST_F(BlockScaledOnGpu, NormsRoundAsRowsAreRounded) {
  constexpr std::int64_t kCols = 640;
  constexpr std::int64_t kRows = 5;
  Random random(6);
  const Memory x = Packed::copied(*device_, random.normal(kRows * kCols, 3));
  const Memory norm = Packed::copied(*device_, random.normal(kCols));
  const Tensor in{reinterpret_cast<float*>(x.data()), kRows, kCols, kCols};
  const auto* const weights = reinterpret_cast<const float*>(norm.data());
  const Memory normed(kRows * kCols * 2, "test");
  launch_norm_rows(normed.data(), kCols, in, nullptr, weights, 1e-5F, device_->stream());
  for (const BlockFormat format : {BlockFormat::kMxfp8, BlockFormat::kNvfp4}) {
    BlockScaledRows rows{nullptr, kRows, kCols, format};
    const Memory apart(rows.size_bytes(), "test");
    const Memory joined(rows.size_bytes(), "test");
    rows.data = apart.data();
    launch_block_scaled_rows(rows, 0.5F, normed.data(), kCols, device_->stream());
    rows.data = joined.data();
    launch_block_scaled_norm_rows(rows, 0.5F, in, nullptr, weights, 1e-5F, device_->stream());
    EXPECT_EQ(fetched<std::byte>(*device_, apart), fetched<std::byte>(*device_, joined));
  }
}

TEST_F(BlockScaledOnGpu, RowsOfAnEmbeddingAreWhatIsMeant) {
  for (const char* kind : kKinds) {
    const Packed packed(*device_, kind, 40, 256);
    const std::vector<std::int32_t> tokens{39, 0, 17};
    const Memory of_tokens = Packed::copied(*device_, tokens);
    const Memory out(3 * 256 * 4, "test");
    launch_embed({reinterpret_cast<float*>(out.data()), 3, 256, 256},
                 reinterpret_cast<const std::int32_t*>(of_tokens.data()), nullptr, *packed.weight,
                 device_->stream());
    const auto got = fetched<float>(*device_, out);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float meant =
          packed.held.meant()[static_cast<std::size_t>(tokens[i / 256]) * 256 + i % 256];
      EXPECT_NEAR(got[i], meant, std::abs(meant) * 0x1p-8F) << kind;
    }
  }
}

TEST(Sanitized, ProductsOfBlockScaledWeights) {
  if (!test::on_cuda()) GTEST_SKIP() << "for a GPU";
  const Device device(0);
  for (const char* kind : kKinds) {
    const Packed packed(device, kind, 520, 1024);
    EXPECT_TRUE(block_scaled_products_agree(device, *packed.weight, {&packed.matrix, 1})) << kind;
  }
}

}  // namespace
}  // namespace dendrite::cuda
