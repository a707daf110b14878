// Products of weights of E4M3 with scales, of which a CPU makes bf16 as it multiplies them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "coded_fixture.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::Coded;
using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::first_different_part;
using testing_support::Owned;
using testing_support::product;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::refusal;
using testing_support::relative_error;
using testing_support::rounds_activations;
using testing_support::Share;
using testing_support::widened;

class MatmulOfCodes : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (test::on_cuda()) GTEST_SKIP() << "see packed_products_test.cpp";
    backend_ = test::make_backend(Numerics::kBF16, 2, GetParam());
  }
  /// What weights that are widened when they are loaded give, to the bit.
  void compare(Coded& coded, const std::string& what) {
    const std::int64_t n = coded.matrix.rows;
    const std::int64_t k = coded.matrix.cols;
    const auto packed = backend_->pack({&coded.matrix, 1});
    const FileMatrix wide(n, k, DType::kBF16, widened(coded.matrix));
    const auto plain = backend_->pack({&wide.host, 1});
    Random random(7);
    constexpr std::int64_t kMost = 101;
    Owned x(*backend_, kMost, k, k + 3);
    x.set(*backend_, random.normal(kMost * k));
    Owned bias(*backend_, 1, n);
    bias.set(*backend_, random.normal(n));
    for (const std::int64_t rows : {1, 2, 5, 16, 33, 101}) {
      for (const bool joined : {false, true}) {
        const float* const added = joined ? bias.tensor.data : nullptr;
        const Tensor in = x.tensor.first_rows(rows);
        ASSERT_EQ(first_difference(product(*backend_, *packed, in, added),
                                   product(*backend_, *plain, in, added)),
                  -1)
            << what << ", " << rows << " rows";
      }
    }
    const std::vector<std::int32_t> tokens{0, static_cast<std::int32_t>(n - 1)};
    Owned out(*backend_, 2, k);
    backend_->embed(out.tensor, tokens, *packed);
    const auto got = out.get(*backend_);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto row = static_cast<std::size_t>(tokens[i / static_cast<std::size_t>(k)] * k);
      ASSERT_EQ(got[i], wide.values[row + i % static_cast<std::size_t>(k)]) << what;
    }
  }
  double bits_of(const Coded& coded) {
    return static_cast<double>(backend_->pack({&coded.matrix, 1})->size_bytes()) * 8 /
           static_cast<double>(coded.matrix.rows * coded.matrix.cols);
  }

  std::unique_ptr<Backend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Paths, MatmulOfCodes, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& path) { return path.param; });

TEST_P(MatmulOfCodes, HaveTheBitsOfTheirValuesInBF16) {
  for (const Share share : testing_support::kShares) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{70, 32}, {64, 96}, {200, 160}, {3, 672}}) {
      Random random(static_cast<std::uint32_t>(n * k));
      Coded coded(n, k, share, random);
      compare(coded, std::to_string(n) + " x " + std::to_string(k));
    }
  }
}

TEST_P(MatmulOfCodes, EqualDoublePrecision) {
  for (const Share share : testing_support::kShares) {
    Random random(11);
    constexpr std::int64_t n = 70;
    constexpr std::int64_t k = 416;
    constexpr std::int64_t kRows = 9;
    Coded coded(n, k, share, random);
    const auto weight = backend_->pack({&coded.matrix, 1});
    const auto x = random.normal(kRows * k);
    Owned in(*backend_, kRows, k);
    in.set(*backend_, x);
    const FileMatrix wide(n, k, DType::kBF16, widened(coded.matrix));
    EXPECT_LE(relative_error(product(*backend_, *weight, in.tensor),
                             reference_matmul(x, wide.values, kRows, n, k)),
              rounds_activations(GetParam()) ? 1e-2 : 1e-5);
  }
}

TEST_P(MatmulOfCodes, TakeTheBitsOfTheirCodesAndScales) {
  Random random(5);
  for (const auto& [share, bits] : {std::pair(Share::kTensor, 8.0625),
                                    {Share::kRow, 8.25},
                                    {Share::kSquare, 8.0625},
                                    {Share::kThirtyTwo, 8.25390625}}) {
    EXPECT_EQ(bits_of(Coded(128, 2048, share, random)), bits);
  }
}

TEST_P(MatmulOfCodes, ScalesMayBeZeroOrNegative) {
  for (const Share share : {Share::kTensor, Share::kRow, Share::kSquare}) {
    for (const float scale : {0.0F, -0.0F, -0.013F}) {
      Random random(6);
      Coded coded(128, 192, share, random);
      coded.scales[0] = scale;
      compare(coded, "scale " + std::to_string(scale));
      EXPECT_LT(bits_of(coded), 16);
    }
  }
}

TEST_P(MatmulOfCodes, WhatIsNotNormalInBF16IsWidened) {
  for (const Share share : {Share::kRow, Share::kSquare}) {
    for (const float scale : {0x1p-118F, 0x1p-140F}) {
      Random random(6);
      Coded coded(128, 192, share, random);
      coded.scales[0] = scale;
      compare(coded, std::to_string(scale));
      EXPECT_EQ(bits_of(coded), 16);
    }
  }
  for (const int power : {0, 9, 246, 10}) {
    Random random(6);
    Coded coded(64, 192, Share::kThirtyTwo, random);
    coded.powers[5] = static_cast<std::byte>(power);
    compare(coded, "2^" + std::to_string(power - 127));
    EXPECT_EQ(bits_of(coded) == 16, power < 10) << power;
  }
}

TEST_P(MatmulOfCodes, ZerosHaveAnyPowerOfTwo) {
  Random random(6);
  Coded coded(64, 192, Share::kThirtyTwo, random);
  coded.powers[5] = std::byte{0};
  std::fill_n(coded.codes.begin() + 5 * 32, 32, std::byte{0});
  coded.codes[5 * 32 + 3] = std::byte{0x80};
  compare(coded, "zeros");
  EXPECT_LT(bits_of(coded), 9);
}

TEST_P(MatmulOfCodes, StandBelowEachOther) {
  constexpr std::int64_t k = 160;
  Random random(8);
  const Coded first(40, k, Share::kSquare, random);
  const Coded second(150, k, Share::kSquare, random);
  const Coded third(30, k, Share::kRow, random);
  const Coded fourth(70, k, Share::kRow, random);
  const FileMatrix fifth(8, k, DType::kBF16, random.normal(8 * k));
  const std::vector<StoredMatrix> parts{first.matrix, second.matrix, third.matrix, fourth.matrix,
                                        fifth.host};
  Owned in(*backend_, 3, k);
  in.set(*backend_, random.normal(3 * k));
  EXPECT_EQ(first_different_part(*backend_, parts, in.tensor), -1);
}

TEST_P(MatmulOfCodes, AreWidenedToOtherNumbers) {
  for (const Numerics numerics : {Numerics(Numerics::kF32), Numerics(Numerics::kF16)}) {
    backend_ = test::make_backend(numerics, 1, GetParam());
    Random random(3);
    Coded coded(64, 128, Share::kRow, random);
    EXPECT_EQ(bits_of(coded), numerics.weights ? 16 : 32);
  }
}

TEST_P(MatmulOfCodes, RefuseWhatIsNotFinite) {
  const auto refused = [&](const Coded& coded, const std::string& what) {
    const std::string said = refusal(*backend_, coded.matrix);
    EXPECT_NE(said.find("\"test.weight\" holds " + what), std::string::npos) << said;
  };
  for (const Share share : testing_support::kShares) {
    Random random(6);
    Coded coded(70, 256, share, random);
    coded.codes[65 * 256 + 2] = std::byte{0xff};
    refused(coded, "NaN at element 16642");
  }
  Random random(6);
  Coded coded(70, 256, Share::kRow, random);
  coded.scales[65] = testing_support::kNan;
  refused(coded, "NaN at element 16640");
}

}  // namespace
}  // namespace dendrite
