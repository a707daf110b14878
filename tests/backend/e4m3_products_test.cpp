// Products in FP8 on a GPU, whose inputs are rounded, too: 128 neighbours of a row share a scale.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "coded_fixture.h"
#include "core/dtype.h"
#include "quant/e4m3.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::Coded;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::product;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::refusal;
using testing_support::relative_error;
using testing_support::Share;
using testing_support::widened;

constexpr Share kShares[] = {Share::kTensor, Share::kRow, Share::kSquare};
constexpr std::int64_t kNumbersOfRows[] = {1,  2,  7,  8,   9,   16,  17,  32, 33,
                                           64, 65, 72, 100, 128, 129, 200, 300};
constexpr std::int64_t kMost = 300;

std::string name_of(Share share) {
  return share == Share::kTensor ? "one scale" : share == Share::kRow ? "rows" : "squares";
}

class E4m3OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::on_cuda()) GTEST_SKIP() << "a CPU rounds no inputs for weights in FP8";
    backend_ = test::make_backend(Numerics::kBF16, 1, "cuda");
    if (backend_->info().kernels != "sm_90") GTEST_SKIP() << "needs compute capability 9.0";
  }

  static std::vector<float> rounded(std::span<const float> values) {
    std::vector<float> out;
    for (std::size_t group = 0; group < values.size(); group += 128) {
      float most = 0;
      std::vector<float> of_group;
      for (const float value : values.subspan(group, 128)) {
        of_group.push_back(to_f32(to_bf16(value)));
        most = std::max(most, std::abs(of_group.back()));
      }
      const float factor = most > 0 ? 448.0F / most : 0;
      for (const float value : of_group) {
        out.push_back(e4m3_value(e4m3_code(value * factor)) * (most / 448.0F));
      }
    }
    return out;
  }

  std::unique_ptr<Backend> backend_;
};

TEST_F(E4m3OnGpu, EqualDoublePrecisionOfRoundedInputs) {
  for (const Share share : kShares) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{64, 128}, {264, 768}, {3000, 1024}, {208, 3968}}) {
      Random random(static_cast<std::uint32_t>(n + k));
      const Coded coded(n, k, share, random);
      ASSERT_TRUE(backend_->rounds_inputs(coded.matrix));
      const auto weight = backend_->pack({&coded.matrix, 1});
      EXPECT_LE(static_cast<double>(weight->size_bytes()) * 8, 8.3 * static_cast<double>(n * k));
      const std::vector<float> values = random.normal(kMost * k);
      Owned x(*backend_, kMost, k);
      x.set(*backend_, values);
      const auto expected = reference_matmul(rounded(values), widened(coded.matrix), kMost, n, k);
      for (const std::int64_t rows : {1, 33, 64, 65, 300}) {
        const auto got = product(*backend_, *weight, x.tensor.first_rows(rows));
        EXPECT_LE(relative_error(got, std::span(expected).first(got.size())), 5e-3)
            << n << " x " << k << ", " << name_of(share) << ", " << rows << " rows";
      }
    }
  }
}

TEST_F(E4m3OnGpu, RowsHaveTheSameBitsInAnyCompany) {
  for (const Share share : kShares) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{64, 128},
                               {4096, 1152},
                               {6144, 640},
                               {8192, 384},
                               {17408, 640},
                               {28672, 256},
                               {32000, 256},
                               {34816, 1024}}) {
      Random random(static_cast<std::uint32_t>(n * k));
      const Coded coded(n, k, share, random);
      const auto weight = backend_->pack({&coded.matrix, 1});
      Owned x(*backend_, kMost, k);
      x.set(*backend_, random.normal(kMost * k));
      Owned bias(*backend_, 1, n);
      bias.set(*backend_, random.normal(n));
      for (const bool joined : {false, true}) {
        const float* const added = joined ? bias.tensor.data : nullptr;
        const auto all = product(*backend_, *weight, x.tensor, added);
        for (const std::int64_t rows : kNumbersOfRows) {
          Tensor some = x.tensor.first_rows(rows);
          const std::int64_t first = kMost - rows;  // the last ones, whose places differ
          some.data += first * some.stride;
          const auto got = product(*backend_, *weight, some, added);
          ASSERT_EQ(
              first_difference(std::span(all).subspan(static_cast<std::size_t>(first * n)), got),
              -1)
              << n << " x " << k << ", " << name_of(share) << ", " << rows << " rows"
              << (joined ? ", added to" : "");
        }
      }
    }
  }
}

/// Whose squares begin at rows that no other matrix of 28,672 rows has them at.
TEST_F(E4m3OnGpu, SoHaveRowsOfStackedMatrices) {
  constexpr std::int64_t kDim = 256;
  Random random(4);
  const Coded first(264, kDim, Share::kSquare, random);
  const Coded second(28408, kDim, Share::kSquare, random);
  const StoredMatrix parts[] = {first.matrix, second.matrix};
  const auto weight = backend_->pack(parts);
  Owned x(*backend_, kMost, kDim);
  x.set(*backend_, random.normal(kMost * kDim));
  const auto all = product(*backend_, *weight, x.tensor);
  for (const std::int64_t rows : kNumbersOfRows) {
    const auto got = product(*backend_, *weight, x.tensor.first_rows(rows));
    ASSERT_EQ(first_difference(std::span(all).first(got.size()), got), -1) << rows << " rows";
  }
}

struct FeedForward {
  std::int64_t ffn;
  std::int64_t dim;
};
class E4m3FeedForward : public E4m3OnGpu, public testing::WithParamInterface<FeedForward> {};

/// As gates and ups of a feed-forward part.
TEST_P(E4m3FeedForward, HasTheSameBitsInAnyCompany) {
  const auto [ffn, dim] = GetParam();
  for (const Share share : kShares) {
    Random random(3);
    const Coded coded(2 * ffn, dim, share, random);
    const Coded behind(256, ffn, share, random);
    const auto gate_up = backend_->pack({&coded.matrix, 1});
    const auto down = backend_->pack({&behind.matrix, 1});
    Owned x(*backend_, kMost, dim);
    x.set(*backend_, random.normal(kMost * dim));
    Owned norm(*backend_, 1, dim);
    norm.set(*backend_, random.normal(dim));
    const auto run = [&](std::int64_t rows, bool apart) {
      Owned normed(*backend_, rows, dim);
      Owned gates(*backend_, rows, 2 * ffn);
      Owned act(*backend_, rows, ffn);
      Owned out(*backend_, rows, 256);
      Product product;
      product.weight = gate_up.get();
      product.x = x.tensor.first_rows(rows);
      product.in = gate_up->input(normed.tensor);
      product.norm = norm.tensor.data;
      product.norm_eps = 1e-5F;
      product.out = gates.tensor;
      if (!apart) {
        product.epilogue = Epilogue::kSiluMul;
        product.act = down->input(act.tensor);
      }
      backend_->product(product);
      Product next;
      next.weight = down.get();
      next.in = down->input(act.tensor);
      next.out = out.tensor;
      if (apart) {
        backend_->silu_mul(act.tensor, gates.tensor);
        next.in = act.tensor;
      }
      backend_->product(next);
      return out.get(*backend_);
    };
    const auto all = run(kMost, true);
    for (const std::int64_t rows : kNumbersOfRows) {
      const auto got = run(rows, false);
      ASSERT_EQ(first_difference(std::span(all).first(got.size()), got), -1)
          << name_of(share) << ", " << rows << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, E4m3FeedForward,
                         testing::Values(FeedForward{1408, 1024}, FeedForward{14336, 256},
                                         FeedForward{14400, 256}, FeedForward{17408, 256}));

TEST_F(E4m3OnGpu, RowsOfAnEmbeddingAreWhatIsMeant) {
  for (const Share share : kShares) {
    Random random(5);
    const Coded coded(264, 384, share, random);
    const auto weight = backend_->pack({&coded.matrix, 1});
    const std::vector<std::int32_t> tokens{263, 0, 130};
    Owned out(*backend_, 3, 384);
    backend_->embed(out.tensor, tokens, *weight);
    const std::vector<float> meant = widened(coded.matrix);
    std::vector<float> expected;
    for (const std::int32_t token : tokens) {
      for (std::int64_t i = 0; i < 384; ++i) {
        expected.push_back(to_f32(to_bf16(meant[static_cast<std::size_t>(token * 384 + i)])));
      }
    }
    EXPECT_EQ(first_difference(out.get(*backend_), expected), -1) << name_of(share);
  }
}

TEST_F(E4m3OnGpu, ZerosTinyAndHugeInputsAreRoundedAsOthers) {
  Random random(8);
  const Coded coded(64, 256, Share::kRow, random);
  const auto weight = backend_->pack({&coded.matrix, 1});
  std::vector<float> values(4 * 256, 0.0F);
  std::fill_n(values.begin() + 256, 256, 1e-38F);
  for (std::size_t i = 512; i < 768; ++i) values[i] = i % 2 == 0 ? 1e30F : -1e30F;
  for (std::size_t i = 768; i < 1024; ++i) values[i] = i % 128 == 0 ? 96.5F : 1.0F;
  Owned x(*backend_, 4, 256);
  x.set(*backend_, values);
  const auto got = product(*backend_, *weight, x.tensor);
  for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(got[i], 0.0F);
  const auto expected = reference_matmul(rounded(values), widened(coded.matrix), 4, 64, 256);
  for (const std::size_t row : {2U, 3U}) {
    EXPECT_LE(relative_error(std::span(got).subspan(64 * row, 64),
                             std::span(expected).subspan(64 * row, 64)),
              5e-3);
  }
}

TEST_F(E4m3OnGpu, TakesNoMatrixWhoseInputsAreToStay) {
  Random random(9);
  Coded coded(64, 256, Share::kRow, random);
  coded.matrix.as_plain = true;
  EXPECT_FALSE(backend_->rounds_inputs(coded.matrix));
  EXPECT_FALSE(backend_->rounds_inputs(Coded(64, 192, Share::kRow, random).matrix));
  EXPECT_FALSE(backend_->rounds_inputs(Coded(60, 256, Share::kRow, random).matrix));
  EXPECT_FALSE(backend_->rounds_inputs(Coded(64, 256, Share::kThirtyTwo, random).matrix));
}

TEST_F(E4m3OnGpu, AValueThatIsNotFiniteIsNamed) {
  Random random(10);
  Coded coded(32, 256, Share::kRow, random);
  coded.codes[256 + 3] = std::byte{0xff};
  coded.matrix.data = coded.codes.data();
  const std::string said = refusal(*backend_, coded.matrix);
  EXPECT_NE(said.find("NaN at element 259"), std::string::npos) << said;
}

TEST(Sanitized, ProductsInFp8) {
  if (!test::on_cuda()) GTEST_SKIP() << "for a GPU";
  const auto backend = test::make_backend(Numerics::kBF16, 1, "cuda");
  Random random(2);
  const auto run = [&](std::int64_t n, std::int64_t k, std::initializer_list<std::int64_t> counts) {
    for (const Share share : {Share::kRow, Share::kSquare}) {
      const Coded coded(n, k, share, random);
      const auto weight = backend->pack({&coded.matrix, 1});
      for (const std::int64_t rows : counts) {
        Owned x(*backend, rows, k);
        x.set(*backend, random.normal(rows * k));
        Owned out(*backend, rows, n);
        backend->matmul(out.tensor, x.tensor, *weight, nullptr, Backend::Store::kOverwrite);
        for (const float value : out.get(*backend)) ASSERT_TRUE(std::isfinite(value));
      }
    }
  };
  run(1024, 2048, {1, 9, 20, 64, 100, 150});
  run(28672, 256, {300});  // units of 256 outputs
}

}  // namespace
}  // namespace dendrite
