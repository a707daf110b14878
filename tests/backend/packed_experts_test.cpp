// Mixtures of experts whose weights are packed, each format in the layout that a device has of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experts_fixture.h"
#include "held_matrix.h"
#include "quant/formats.h"
#include "quant/rounded.h"
#include "support/paths.h"

namespace dendrite {
namespace {

using test::ExpertsShape;
using test::Held;
using test::Matrix;
using test::Mixture;
using test::Packer;
using testing_support::all_blocks;
using testing_support::Blocks;
using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::Random;
using testing_support::relative_error;

/// A way to store matrices.
struct Storing {
  std::string name;
  std::int64_t columns;  // of which a row is a multiple
  double bits;           // that a weight takes on a GPU at most, where rows are whole tiles
  std::function<Matrix(std::int64_t rows, std::int64_t cols)> make;
};

Storing in_blocks(const Blocks& blocks) {
  auto random = std::make_shared<Random>(5);
  return {std::string(blocks.format->name()), std::max<std::int64_t>(64, blocks.format->block()),
          blocks.most_on_gpu, [blocks, random](std::int64_t rows, std::int64_t cols) {
            return test::matrix_of({rows, cols, *blocks.format, blocks.halves, *random});
          }};
}

/// As files of safetensors have them.
Storing held(const std::string& kind, std::int64_t group, double bits) {
  auto packer = std::make_shared<Packer>(group);
  return {kind + " of " + std::to_string(group), group == 128 ? 128 : 64, bits,
          [=](std::int64_t rows, std::int64_t cols) -> Matrix {
            const auto matrix = std::make_shared<Held>(*packer, kind, rows, cols);
            return {matrix->matrix(), matrix->meant(), matrix};
          }};
}

/// By `--quantization`.
Storing rounded(WeightRounding rounding) {
  auto random = std::make_shared<Random>(6);
  return {name_of(rounding), rounding == WeightRounding::kInt4 ? 128 : 64, 8.5,
          [=](std::int64_t rows, std::int64_t cols) {
            FileMatrix matrix(rows, cols, DType::kF32,
                              random->normal(rows * cols, 1 / std::sqrt(static_cast<float>(cols))));
            matrix.host.format = &rounded_format(DType::kF32, rounding);
            for (std::int64_t row = 0; row < rows; ++row) {
              const auto at = static_cast<std::size_t>(row * cols);
              matrix.host.format->widen(
                  matrix.host, row, 0,
                  std::span(matrix.values).subspan(at, static_cast<std::size_t>(cols)));
            }
            return test::matrix_of(std::move(matrix));
          }};
}

/// All layouts of a GPU are among these.
std::vector<Storing> all_storings() {
  std::vector<Storing> out{
      held("mxfp4", 0, 4.5),          held("nvfp4", 0, 6),           held("awq", 32, 5),
      held("awq", 128, 4.5),          held("gptq", 64, 5),           held("int4", 32, 4.5),
      held("int4", 128, 4.5),         held("int4_zeros", 128, 4.5),  held("int8", 0, 8.25),
      held("fp8_channel", 0, 8.25),   held("fp8_block", 0, 8.25),    held("mxfp8", 0, 8.25),
      rounded(WeightRounding::kInt8), rounded(WeightRounding::kInt4)};
  for (const Blocks& blocks : all_blocks()) out.push_back(in_blocks(blocks));
  return out;
}

Mixture mixture_of(Backend& backend, const ExpertsShape& shape, const Storing& storing) {
  return Mixture(backend, shape, [&](std::int64_t rows, std::int64_t cols, std::int64_t) {
    return storing.make(rows, cols);
  });
}

class PackedExperts : public testing::Test {
 protected:
  PackedExperts() {
    path_ = test::kernel_paths().front();
    backend_ = test::make_backend(Numerics::kBF16, 2, path_);
  }

  /// Rows of all numbers that kernels have ways of their own for: right, and each one's bits are
  /// those that it has alone and in other company.
  void check(const Mixture& mixture, const ExpertsShape& shape, std::int64_t rows) {
    Random random(8);
    std::vector<float> x = random.normal(rows * shape.dim);
    if (test::on_cuda()) test::round_to_bf16(x);
    const std::vector<float> logits = random.normal(rows * shape.routing.logits(), 2);
    const std::vector<float> all = mixture.run(x, logits);
    // Some paths of a CPU round rows to 8 bits.
    EXPECT_LE(relative_error(all, mixture.reference(x, logits)), test::on_cuda() ? 6e-2 : 0.3);
    constexpr std::int64_t kCompany[] = {1, 8, 3, 16, 1, 9, 33, 64};
    std::int64_t begin = 0;
    for (std::size_t i = 0; begin < rows; ++i) {
      const std::int64_t count = std::min(rows - begin, kCompany[i % std::size(kCompany)]);
      const auto part = [&](std::span<const float> values) {
        const std::size_t width = values.size() / static_cast<std::size_t>(rows);
        return values.subspan(static_cast<std::size_t>(begin) * width,
                              static_cast<std::size_t>(count) * width);
      };
      EXPECT_EQ(first_difference(mixture.run(part(x), part(logits)), part(all)), -1)
          << count << " rows from " << begin << " on, of " << rows;
      begin += count;
    }
  }

  std::string path_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(PackedExperts, EqualTheirSumInEveryFormatAloneAndInCompany) {
  for (const Storing& storing : all_storings()) {
    SCOPED_TRACE(storing.name);
    // Rows are no whole tiles where the format allows it; items of more than 64 rows.
    const ExpertsShape shape{
        storing.columns * 5 / 2 / storing.columns * storing.columns + storing.columns,
        storing.columns < 128 ? 192 : 256,
        0,
        {5, 3, true}};
    check(mixture_of(*backend_, shape, storing), shape, 150);
  }
}

TEST_F(PackedExperts, WithoutGatesEqualTheirSumInEveryFormatAloneAndInCompany) {
  for (const Storing& storing : all_storings()) {
    SCOPED_TRACE(storing.name);
    const std::int64_t ffn = storing.columns < 128 ? 192 : 256;
    const ExpertsShape shape{storing.columns * 3,
                             ffn,
                             2 * ffn,
                             {5, 3, true, SharedExpert::kPlain},
                             false,
                             true,
                             {},
                             false,
                             true};
    check(mixture_of(*backend_, shape, storing), shape, 90);
  }
}

TEST_F(PackedExperts, WithBiasesFactorsAndASharedOneOfAnotherWidth) {
  const Storing storing = held("mxfp4", 0, 4.5);
  const Activation clamped{Activation::Kind::kClamped, 0.8F, 1.7F};
  ExpertsShape shape{448, 320, 0, {8, 4, false}, false, true, clamped};
  check(mixture_of(*backend_, shape, storing), shape, 40);
  shape = {320, 192, 64, {6, 2, true, SharedExpert::kGated}, false, false, {}, true};
  check(mixture_of(*backend_, shape, storing), shape, 90);
  shape.activation = {Activation::Kind::kGelu};
  check(mixture_of(*backend_, shape, held("int8", 0, 9)), shape, 20);
}

TEST_F(PackedExperts, OfALayerMayBeStoredInWaysThatDiffer) {
  const std::vector<Storing> storings{held("mxfp4", 0, 4.5), in_blocks(all_blocks()[0]),
                                      rounded(WeightRounding::kInt8)};
  Random random(9);
  ExpertsShape shape{320, 192, 128, {7, 3, true, SharedExpert::kPlain}};
  for (const bool squared_relu : {false, true}) {
    shape.squared_relu = squared_relu;
    SCOPED_TRACE(text_of(shape));
    const Mixture mixture(*backend_, shape,
                          [&](std::int64_t rows, std::int64_t cols, std::int64_t expert) {
                            const auto which = static_cast<std::size_t>(expert % 4);
                            return which < storings.size() ? storings[which].make(rows, cols)
                                                           : test::plain_matrix(rows, cols, random);
                          });
    check(mixture, shape, 100);
  }
}

TEST_F(PackedExperts, WhatIsNoWholeTilesIsWidened) {
  const Storing storing = in_blocks(all_blocks()[4]);
  Random random(10);
  for (const auto& [dim, ffn] : {std::pair<std::int64_t, std::int64_t>{128, 96},
                                 {96, 128},
                                 {128, 80},
                                 {128, 72},
                                 {128, 36},
                                 {128, 33},
                                 {100, 64}}) {
    ExpertsShape shape{dim, ffn, 0, {4, 2, true}};
    for (const bool squared_relu : {false, true}) {
      shape.squared_relu = squared_relu;
      SCOPED_TRACE(text_of(shape));
      const Mixture mixture(*backend_, shape,
                            [&](std::int64_t rows, std::int64_t cols, std::int64_t) {
                              return cols % 32 == 0 ? storing.make(rows, cols)
                                                    : test::plain_matrix(rows, cols, random);
                            });
      check(mixture, shape, 30);
    }
  }
}

TEST_F(PackedExperts, TakeNoMoreMemoryOnAGpuThanTheirFormat) {
  if (!test::on_cuda()) GTEST_SKIP() << "a CPU has layouts of its own";
  for (const Storing& storing : all_storings()) {
    const ExpertsShape shape{512, 256, 0, {2, 1, true}};
    const Mixture mixture = mixture_of(*backend_, shape, storing);
    EXPECT_LE(static_cast<double>(mixture.size_bytes()) * 8, storing.bits * 2 * 3 * 512 * 256)
        << storing.name;
  }
}

TEST_F(PackedExperts, TakeTheMemoryOfTheirBitsOnACpu) {
  if (test::on_cuda()) GTEST_SKIP() << "see above";
  for (const auto& [kind, bits] : {std::pair("mxfp4", 4.25), {"nvfp4", 4.5}}) {
    const ExpertsShape shape{512, 256, 0, {2, 1, true}};
    const Mixture mixture = mixture_of(*backend_, shape, held(kind, 0, 0));
    EXPECT_EQ(static_cast<double>(mixture.size_bytes()) * 8, bits * 2 * 3 * 512 * 256) << kind;
  }
}

TEST(Sanitized, ProductsOfPackedExperts) {
  if (!test::on_cuda()) GTEST_SKIP() << "for a GPU";
  const auto backend = test::make_backend(Numerics::kBF16, 1, "cuda");
  ExpertsShape shape{320, 192, 0, {4, 2, true}};
  for (const Storing& storing : {held("mxfp4", 0, 4.5), rounded(WeightRounding::kInt8)}) {
    for (const bool squared_relu : {false, true}) {
      shape.squared_relu = squared_relu;
      const Mixture mixture = mixture_of(*backend, shape, storing);
      Random random(3);
      for (const std::int64_t rows : {1, 8, 20, 140}) {
        mixture.run(random.normal(rows * shape.dim), random.normal(rows * shape.routing.logits()));
      }
    }
  }
}

}  // namespace
}  // namespace dendrite
