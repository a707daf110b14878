// Packed weights that a CPU keeps in fewer bits give the bits that their codes give in bytes, with
// a scale and a minimum of f32 for each group.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "experts_fixture.h"
#include "held_matrix.h"
#include "quant/formats.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using test::ExpertsShape;
using test::Held;
using test::Matrix;
using test::Mixture;
using testing_support::all_blocks;
using testing_support::Blocks;
using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::Random;

/// A matrix whose codes are said to be bytes, and its numbers f32.
class InBytes final : public Format {
 public:
  explicit InBytes(const StoredMatrix& of)
      : Format(of.format->name(), of.format->stored_type(), of.format->block(),
               of.format->block_bytes()),
        of_(of) {}

  StoredMatrix matrix() const {
    StoredMatrix matrix = of_;
    matrix.format = this;
    return matrix;
  }
  void widen(const StoredMatrix&, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    of_.format->widen(of_, row, begin, out);
  }
  std::optional<Groups> groups(const StoredMatrix&) const override {
    const auto groups = of_.format->groups(of_);
    const bool two_levels = groups->scales == GroupScales::kTwoLevels;
    return Groups{.size = groups->size,
                  .minimums = groups->minimums,
                  .scales = two_levels ? groups->scales : GroupScales::kF32};
  }
  void read_groups(const StoredMatrix&, std::int64_t row, std::int64_t begin, std::int64_t count,
                   GroupedValues& out) const override {
    of_.format->read_groups(of_, row, begin, count, out);
  }

 private:
  StoredMatrix of_;
};

class PackedBits : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (test::on_cuda()) GTEST_SKIP() << "see packed_products_test.cpp";
    backend_ = test::make_backend(Numerics::kBF16, 1, GetParam());
  }

  std::vector<float> product(const StoredMatrix& matrix, std::span<const float> x) {
    const std::int64_t rows = std::ssize(x) / matrix.cols;
    Owned in(*backend_, rows, matrix.cols);
    in.set(*backend_, x);
    return testing_support::product(*backend_, *backend_->pack({&matrix, 1}), in.tensor);
  }
  std::vector<float> rows_of(const StoredMatrix& matrix) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(matrix.rows));
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
    Owned out(*backend_, matrix.rows, matrix.cols);
    backend_->embed(out.tensor, tokens, *backend_->pack({&matrix, 1}));
    return out.get(*backend_);
  }
  double bits_of(const StoredMatrix& matrix) {
    const auto weight = backend_->pack({&matrix, 1});
    return static_cast<double>(weight->size_bytes()) * 8 /
           static_cast<double>(matrix.rows * matrix.cols);
  }

  void compare(const StoredMatrix& matrix, const std::string& what) {
    const InBytes in_bytes(matrix);
    Random random(7);
    for (const std::int64_t rows : {1, 2, 3, 6, 7, 13, 48, 70}) {
      const auto x = random.normal(rows * matrix.cols);
      ASSERT_EQ(first_difference(product(matrix, x), product(in_bytes.matrix(), x)), -1)
          << what << " [" << matrix.rows << ", " << matrix.cols << "], " << rows << " rows";
    }
    ASSERT_EQ(rows_of(matrix), rows_of(in_bytes.matrix())) << what;  // zeros may lose a sign
  }

  std::unique_ptr<Backend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Paths, PackedBits, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& path) { return path.param; });

TEST_P(PackedBits, OfBlocksAreThoseOfBytes) {
  for (const Blocks& blocks : all_blocks()) {
    if (blocks.bits > 8) continue;
    for (const std::int64_t cols : {64, 512, 512 + 96}) {
      if (cols % blocks.format->block() != 0) continue;
      Random random(static_cast<std::uint32_t>(cols));
      const FileMatrix matrix(72, cols, *blocks.format, blocks.halves, random);
      compare(matrix.host, std::string(blocks.format->name()));
    }
  }
}

struct Expected {
  const char* kind;
  std::int64_t group;
  double bits;  // a weight takes
};

TEST_P(PackedBits, OfSafetensorsAreThoseOfBytes) {
  for (const Expected& one : {Expected{"mxfp4", 32, 4.25},
                              {"mxfp4_modelopt", 32, 4.25},
                              {"nvfp4", 32, 4.5},
                              {"nvfp4_modelopt", 32, 4.5},
                              {"awq", 32, 4.75},
                              {"awq", 64, 4.375},
                              {"awq", 128, 4.1875},
                              {"gptq", 96, 4.75},
                              {"gptq", 128, 4.1875},
                              {"int4", 32, 4.5},
                              {"int4", 128, 4.125},
                              {"int4_zeros", 64, 4.375},
                              {"int4_zeros", 128, 4.1875},
                              {"int4_zeros", 256, 4.09375},
                              {"int4_zeros", 768, 4.09375}}) {
    const std::string what = one.kind + std::string(" of ") + std::to_string(one.group);
    const Held held(one.kind, one.group, 64, 768);
    EXPECT_EQ(bits_of(held.matrix()), one.bits) << what;
    compare(held.matrix(), what);
    if (one.group == 768) continue;
    const Held short_end(one.kind, one.group, 80, 3 * one.group);
    compare(short_end.matrix(), what);
  }
}

TEST_P(PackedBits, OfExpertsAreThoseOfBytes) {
  const ExpertsShape shape{320, 192, 0, {5, 2, true}};
  Random random(5);
  const auto x = random.normal(70 * shape.dim);
  const auto logits = random.normal(70 * shape.routing.logits());
  for (const char* kind : {"mxfp4", "nvfp4", "awq"}) {
    const auto run = [&](bool in_bytes) {
      test::Packer packer(64);
      const Mixture mixture(
          *backend_, shape, [&](std::int64_t rows, std::int64_t cols, std::int64_t) -> Matrix {
            const auto held = std::make_shared<Held>(packer, kind, rows, cols);
            if (!in_bytes) return {held->matrix(), held->meant(), held};
            const auto format = std::make_shared<InBytes>(held->matrix());
            return {format->matrix(), held->meant(),
                    std::make_shared<std::pair<decltype(held), decltype(format)>>(held, format)};
          });
      return mixture.run(x, logits);
    };
    EXPECT_EQ(first_difference(run(false), run(true)), -1) << kind;
  }
}

TEST_P(PackedBits, OfScalesAtTheEndsOfTheirRangeAreThoseOfBytes) {
  Held powers("mxfp4", 32, 64, 256);
  std::vector<std::byte>& exponents = powers.bytes_of("_scale");
  for (const int exponent : {0, 1, 2, 3, 254}) {
    std::ranges::fill(exponents, static_cast<std::byte>(exponent));
    ASSERT_EQ(
        first_difference(rows_of(powers.matrix()), rows_of(InBytes(powers.matrix()).matrix())), -1)
        << exponent;
    if (exponent < 254) compare(powers.matrix(), "2^" + std::to_string(exponent - 127));
  }
  for (const char* kind : {"nvfp4", "nvfp4_modelopt"}) {
    Held held(kind, 32, 64, 256);
    std::vector<std::byte>& scales = held.bytes_of("_scale");
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const auto code = static_cast<unsigned>(i % 256);
      scales[i] = static_cast<std::byte>((code & 127) == 127 ? 1 : code);  // signs, 0, subnormals
    }
    EXPECT_EQ(bits_of(held.matrix()), 4.5);
    compare(held.matrix(), kind);
  }
  // A step that f32 has next to no number for: scales are numbers then.
  Held tiny("nvfp4_modelopt", 32, 64, 256);
  const float whole = 0x1p-120F;
  std::memcpy(tiny.bytes_of("_scale_2").data(), &whole, sizeof whole);
  EXPECT_EQ(bits_of(tiny.matrix()), 6);
  compare(tiny.matrix(), "tiny");
}

}  // namespace
}  // namespace dendrite
