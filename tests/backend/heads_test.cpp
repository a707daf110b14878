#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/dtype.h"
#include "dendrite/error.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::kNan;
using testing_support::Owned;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::relative_error;

class HeadsOnPath : public testing::TestWithParam<std::string> {};

/// Sizes of a head, as a latent has them.
struct Sizes {
  std::int64_t rows, heads, outputs, cols, x_step, out_step;
};
constexpr Sizes kSizes[] = {
    {1, 3, 16, 12, 20, 24},      {9, 2, 20, 16, 24, 20},       {5, 1, 64, 40, 40, 64},
    {1, 20, 512, 192, 256, 576}, {33, 4, 256, 512, 576, 256},  {70, 2, 130, 64, 68, 131},
    {17, 130, 40, 24, 32, 48},   {200, 2, 128, 128, 192, 320},
};

/// Where columns of no head are NaN, and stay so. Values are bf16, so nothing rounds them.
struct HeadFixture {
  HeadFixture(Backend& backend, const Sizes& sizes)
      : sizes(sizes),
        in(backend, sizes.rows, sizes.heads * sizes.x_step, sizes.heads * sizes.x_step + 4),
        out(backend, sizes.rows, sizes.heads * sizes.out_step, sizes.heads * sizes.out_step + 3) {
    Random random(static_cast<std::uint32_t>(sizes.outputs + sizes.rows));
    x.assign(static_cast<std::size_t>(sizes.rows * sizes.heads * sizes.x_step), kNan);
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      matrices.emplace_back(sizes.outputs, sizes.cols, DType::kBF16,
                            random.normal(sizes.outputs * sizes.cols));
      weights.push_back(backend.pack({&matrices.back().host, 1}));
      std::vector<float> values = random.normal(sizes.rows * sizes.cols);
      for (float& value : values) value = to_f32(to_bf16(value));
      inputs.push_back(values);
      for (std::int64_t row = 0; row < sizes.rows; ++row) {
        for (std::int64_t i = 0; i < sizes.cols; ++i) {
          x[at(row, head, i, sizes.x_step)] =
              values[static_cast<std::size_t>(row * sizes.cols + i)];
        }
      }
    }
    in.set(backend, x);
  }
  std::size_t at(std::int64_t row, std::int64_t head, std::int64_t i, std::int64_t step) const {
    return static_cast<std::size_t>((row * sizes.heads + head) * step + i);
  }
  HeadProducts products() const {
    return {out.tensor, sizes.out_step, in.tensor, sizes.x_step, weights};
  }

  Sizes sizes;
  std::vector<FileMatrix> matrices;
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<std::vector<float>> inputs;  // of each head
  std::vector<float> x;
  Owned in;
  Owned out;
};

TEST_P(HeadsOnPath, ProductsEqualDoublePrecisionAndTouchNoOtherColumn) {
  for (const Numerics& compute : {Numerics::kF32, Numerics::kBF16}) {
    const auto backend = test::make_backend(compute, 2, GetParam());
    for (const Sizes& s : kSizes) {
      const HeadFixture fixture(*backend, s);
      backend->head_products(fixture.products());
      const std::vector<float> got = fixture.out.get(*backend);
      for (std::int64_t head = 0; head < s.heads; ++head) {
        const auto which = static_cast<std::size_t>(head);
        const auto expected = reference_matmul(
            fixture.inputs[which], fixture.matrices[which].values, s.rows, s.outputs, s.cols);
        std::vector<float> own;
        for (std::int64_t row = 0; row < s.rows; ++row) {
          for (std::int64_t i = 0; i < s.out_step; ++i) {
            const float value = got[fixture.at(row, head, i, s.out_step)];
            if (i < s.outputs) {
              own.push_back(value);
            } else {
              ASSERT_TRUE(std::isnan(value)) << s.outputs << ": row " << row << ", column " << i;
            }
          }
        }
        ASSERT_LE(relative_error(own, expected), 1e-5)
            << s.outputs << " x " << s.cols << " of " << s.rows << " rows, head " << head;
      }
    }
  }
}

TEST_P(HeadsOnPath, ProductsOfARowIgnoreCompany) {
  const auto backend = test::make_backend(Numerics::kBF16, 2, GetParam());
  for (const Sizes& s : kSizes) {
    const HeadFixture fixture(*backend, s);
    backend->head_products(fixture.products());
    const std::vector<float> together = fixture.out.get(*backend);
    for (const std::int64_t count : {std::int64_t{1}, s.rows / 2, s.rows - 1}) {
      if (count == 0) continue;
      Owned out(*backend, count, s.heads * s.out_step);
      HeadProducts last = fixture.products();
      last.x = {last.x.data + (s.rows - count) * last.x.stride, count, last.x.cols, last.x.stride};
      last.out = out.tensor;
      backend->head_products(last);
      const auto alone = out.get(*backend);
      EXPECT_EQ(first_difference(alone, std::span(together).last(alone.size())), -1)
          << s.outputs << " x " << s.cols << ": the last " << count << " of " << s.rows;
    }
  }
}

TEST_P(HeadsOnPath, CopiesGoToEachHeadFromItsOwnOrFromOne) {
  const auto backend = test::make_backend(Numerics::kF32, 2, GetParam());
  for (const Sizes& s : kSizes) {
    const HeadFixture fixture(*backend, s);
    for (const std::int64_t x_step : {s.x_step, std::int64_t{0}}) {
      backend->copy_heads({fixture.out.tensor, s.out_step, fixture.in.tensor, x_step, s.heads, 8});
      const std::vector<float> got = fixture.out.get(*backend);
      for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t head = 0; head < s.heads; ++head) {
          for (std::int64_t i = 0; i < 8; ++i) {
            ASSERT_EQ(got[fixture.at(row, head, i, s.out_step)],
                      fixture.x[fixture.at(row, x_step == 0 ? 0 : head, i, s.x_step)])
                << row << ", head " << head << ", " << i;
          }
          ASSERT_TRUE(std::isnan(got[fixture.at(row, head, 8, s.out_step)]));
        }
      }
    }
  }
}

TEST_P(HeadsOnPath, WhatDoesNotFitIsRefused) {
  const auto backend = test::make_backend(Numerics::kF32, 1, GetParam());
  const HeadFixture fixture(*backend, kSizes[0]);
  HeadProducts products = fixture.products();
  products.x_step = 30;
  EXPECT_THROW(backend->head_products(products), Error);
  HeadCopies copies{fixture.out.tensor, 24, fixture.in.tensor, 20, 3, 21};
  EXPECT_THROW(backend->copy_heads(copies), Error);
}

INSTANTIATE_TEST_SUITE_P(Paths, HeadsOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dendrite
