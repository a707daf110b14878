// Products of GPTQ's weights whose columns take scales out of their order (desc_act).
#include "quant/column_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "held_matrix.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using test::Held;
using testing_support::first_difference;
using testing_support::first_different_part;
using testing_support::Owned;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::relative_error;
using testing_support::rounded_in_groups;

constexpr std::int64_t kRowsOfWeight = 72;
constexpr std::int64_t kCols = 352;

class ColumnOrder : public testing::TestWithParam<std::string> {
 protected:
  ColumnOrder() {
    if (test::on_cuda()) return;
    backend_ = test::make_backend(Numerics::kBF16, 2, GetParam());
  }
  void SetUp() override {
    if (test::on_cuda()) GTEST_SKIP() << "widened";
  }
  std::vector<float> product(const StoredMatrix& matrix, Tensor x) {
    return testing_support::product(*backend_, *backend_->pack({&matrix, 1}), x);
  }
  std::unique_ptr<Backend> backend_;
  Held held_{"gptq_order", 32, kRowsOfWeight, kCols};
};

INSTANTIATE_TEST_SUITE_P(Paths, ColumnOrder, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& path) { return path.param; });

TEST_P(ColumnOrder, ActivationsAreRoundedInTheOrderOfGroups) {
  const auto order = column_order(held_.matrix());
  ASSERT_EQ(std::ssize(order), kCols);
  constexpr std::int64_t kRows = 50;  // tiles multiply so many
  const std::vector<float> x = Random(3).normal(kRows * kCols);
  std::vector<float> sorted(x.size());
  std::vector<float> meant(held_.meant().size());
  const auto sort = [&order](std::span<const float> from, std::span<float> to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      to[i] = from[i / kCols * kCols + static_cast<std::size_t>(order[i % kCols])];
    }
  };
  sort(x, sorted);
  sort(held_.meant(), meant);
  Owned in(*backend_, kRows, kCols, kCols + 7);
  in.set(*backend_, x);
  const std::vector<float> got = product(held_.matrix(), in.tensor);
  const auto rounded = rounded_in_groups(sorted, kCols);
  EXPECT_LE(relative_error(got, reference_matmul(rounded, meant, kRows, kRowsOfWeight, kCols)),
            1e-5);
  for (const std::int64_t row : {0, 1, 49}) {
    const Tensor alone{in.tensor.data + row * in.tensor.stride, 1, kCols, kCols};
    EXPECT_EQ(first_difference(product(held_.matrix(), alone),
                               std::span(got).subspan(static_cast<std::size_t>(row * kRowsOfWeight),
                                                      kRowsOfWeight)),
              -1)
        << row;
  }
}

TEST_P(ColumnOrder, RowsAreReadInTheirOwn) {
  const auto weight = backend_->pack({&held_.matrix(), 1});
  const std::vector<std::int32_t> tokens{0, 71};
  Owned out(*backend_, 2, kCols);
  backend_->embed(out.tensor, tokens, *weight);
  const auto got = out.get(*backend_);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<std::size_t>(tokens[i / kCols]);
    ASSERT_EQ(got[i], held_.meant()[row * kCols + i % kCols]) << i;
  }
}

TEST_P(ColumnOrder, GroupsOfDifferentSizesAreWidened) {
  std::vector<std::int32_t> groups(kCols);
  std::memcpy(groups.data(), held_.matrix().groups, kCols * 4);
  groups[3] = groups[4];
  StoredMatrix uneven = held_.matrix();
  uneven.groups = reinterpret_cast<const std::byte*>(groups.data());
  EXPECT_TRUE(column_order(uneven).empty());
  EXPECT_TRUE(backend_->rounds_inputs(held_.matrix()));
  EXPECT_FALSE(backend_->rounds_inputs(uneven));
  EXPECT_LT(backend_->pack({&held_.matrix(), 1})->size_bytes(),
            backend_->pack({&uneven, 1})->size_bytes() / 3);
}

TEST_P(ColumnOrder, WeightsOfSeveralStandBelowEachOther) {
  std::vector<std::int32_t> groups(kCols);
  for (std::size_t k = 0; k < groups.size(); ++k) groups[k] = static_cast<std::int32_t>(k * 3 % 11);
  StoredMatrix other = held_.matrix();
  other.groups = reinterpret_cast<const std::byte*>(groups.data());
  const std::vector<StoredMatrix> parts{held_.matrix(), other, held_.matrix()};
  Owned in(*backend_, 3, kCols);
  in.set(*backend_, Random(4).normal(3 * kCols));
  EXPECT_EQ(first_different_part(*backend_, parts, in.tensor), -1);
}

}  // namespace
}  // namespace dendrite
