// Packed weights on a GPU: sums of their values, the same bits in any company.
#include <gtest/gtest.h>

#include "held_matrix.h"
#include "quant/rounded.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::all_blocks;
using testing_support::Blocks;
using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::product;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::refusal;
using testing_support::relative_error;
using testing_support::widened;

/// A matrix in a format, and scales beside it.
struct Stored {
  std::string name;
  FileMatrix matrix;
  std::vector<float> scales{};
  double bits = 0;      // that a weight takes at most
  double error = 2e-2;  // of sums, beside their mean size: values are rounded to bf16
};

/// Where codes are multiplied as they are.
constexpr double kExact = 2e-4;

class PackedOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::on_cuda()) GTEST_SKIP() << "a CPU has products of its own";
    backend_ = test::make_backend(Numerics::kBF16, 1, "cuda");
  }

  static Stored blocks(const Blocks& of, std::int64_t n, std::int64_t k, double bits) {
    Random random(static_cast<std::uint32_t>(n + k));
    return {
        std::string(of.format->name()), FileMatrix(n, k, *of.format, of.halves, random), {}, bits};
  }
  /// Codes of 8 bits; a scale a row, or one for 128 x 128.
  static Stored beside(const Format& format, std::int64_t n, std::int64_t k, bool square) {
    Random random(static_cast<std::uint32_t>(n * k));
    Stored stored{std::string(format.name()), FileMatrix(n, k, f32_format(), {}, random), {}, 8.5};
    FileMatrix& matrix = stored.matrix;
    matrix.bytes.resize(static_cast<std::size_t>(n * k));
    for (std::byte& code : matrix.bytes) {
      do code = random.byte();
      while ((code & std::byte{0x7f}) == std::byte{0x7f});
    }
    const std::int64_t rows = square ? (n + 127) / 128 : n;
    const std::int64_t cols = square ? (k + 127) / 128 : 1;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      stored.scales.push_back(static_cast<float>(random.in(1, 1000)) / 65536);
    }
    matrix.host.format = &format;
    matrix.host.data = matrix.bytes.data();
    matrix.host.stride = k;
    matrix.host.as_plain = true;  // inputs are not rounded: see e4m3_products_test.cpp
    matrix.host.scales = {&f32_format(), reinterpret_cast<const std::byte*>(stored.scales.data()),
                          rows, cols};
    matrix.values = widened(matrix.host);
    stored.error = kExact;
    return stored;
  }
  static Stored rounded(WeightRounding rounding, std::int64_t n, std::int64_t k) {
    Random random(static_cast<std::uint32_t>(n + 2 * k));
    Stored stored{name_of(rounding), FileMatrix(n, k, DType::kF32, random.normal(n * k)), {}, 8.5};
    stored.matrix.host.format = &rounded_format(DType::kF32, rounding);
    stored.matrix.values = widened(stored.matrix.host);
    return stored;
  }
  static std::vector<Stored> all(std::int64_t n, std::int64_t k) {
    std::vector<Stored> out;
    for (const Blocks& of : all_blocks()) {
      if (k % of.format->block() != 0) continue;
      out.push_back(blocks(of, n, k, of.most_on_gpu));
    }
    out.push_back(beside(fp8_format(), n, k, false));
    out.push_back(beside(fp8_format(), n, k, true));
    out.push_back(beside(int8_format(), n, k, false));
    out.push_back(rounded(WeightRounding::kInt8, n, k));
    out.push_back(rounded(WeightRounding::kInt4, n, k));
    return out;
  }
  /// Formats of safetensors in groups of so many, and the bits that a weight takes.
  static std::vector<std::pair<std::string, double>> in_groups(std::int64_t group) {
    if (group == 128) return {{"awq", 4.5}, {"gptq", 4.5}, {"int4", 4.5}, {"int4_zeros", 4.5}};
    std::vector<std::pair<std::string, double>> out{
        {"awq", 5}, {"gptq", 5}, {"int4", 4.5}, {"int4_zeros", 5}};
    if (group == 32) {
      out.insert(out.end(), {{"mxfp4", 4.5},
                             {"mxfp4_modelopt", 4.5},
                             {"nvfp4", 6},
                             {"nvfp4_modelopt", 6},
                             {"mxfp8", 8.25}});
    }
    return out;
  }
  void compare(const Stored& stored, std::span<const std::int64_t> numbers_of_rows) {
    compare(stored.matrix.host, stored.matrix.values, stored.name, stored.bits, stored.error,
            numbers_of_rows);
  }
  void compare(const StoredMatrix& matrix, std::span<const float> values, const std::string& name,
               double bits, double error, std::span<const std::int64_t> numbers_of_rows) {
    const std::int64_t n = matrix.rows;
    const std::int64_t k = matrix.cols;
    const std::string what = name + " " + std::to_string(n) + " x " + std::to_string(k);
    const auto packed = backend_->pack({&matrix, 1});
    if (n % 16 == 0 && k % 256 == 0) {
      EXPECT_LE(static_cast<double>(packed->size_bytes()) * 8, bits * static_cast<double>(n * k))
          << what;
    }
    Random random(7);
    const std::int64_t most = numbers_of_rows.back();
    const std::vector<float> inputs = random.normal(most * k);
    Owned x(*backend_, most, k);
    x.set(*backend_, inputs);
    Owned bias(*backend_, 1, n);
    bias.set(*backend_, random.normal(n));
    for (const bool joined : {false, true}) {
      const float* const added = joined ? bias.tensor.data : nullptr;
      const std::vector<float> all = product(*backend_, *packed, x.tensor, added);
      for (const std::int64_t rows : numbers_of_rows) {
        const auto some = product(*backend_, *packed, x.tensor.first_rows(rows), added);
        ASSERT_EQ(first_difference(some, std::span(all).first(some.size())), -1)
            << what << ", " << rows << " rows" << (joined ? ", added to" : "");
      }
      if (joined) continue;
      const std::span last = std::span(all).last(static_cast<std::size_t>(n));
      const auto expected = reference_matmul(
          rounded_to_bf16(std::span(inputs).last(static_cast<std::size_t>(k))), values, 1, n, k);
      EXPECT_LE(relative_error(last, expected), k % 64 == 0 ? error : 2e-2) << what;
    }
    const FileMatrix wide(n, k, DType::kBF16, values);
    const auto plain = backend_->pack({&wide.host, 1});
    const std::vector<std::int32_t> tokens{0, static_cast<std::int32_t>(n / 2),
                                           static_cast<std::int32_t>(n - 1)};
    Owned of_packed(*backend_, 3, k);
    Owned of_plain(*backend_, 3, k);
    backend_->embed(of_packed.tensor, tokens, *packed);
    backend_->embed(of_plain.tensor, tokens, *plain);
    std::vector<float> got = of_packed.get(*backend_);
    std::vector<float> exact = of_plain.get(*backend_);
    if (name.find("fp4") != name.npos) {  // packed zeros of E2M1 have the signs of their scales
      for (float& value : got) value += 0.0F;
      for (float& value : exact) value += 0.0F;
    }
    EXPECT_EQ(first_difference(got, exact), -1) << what;
  }

  static std::vector<float> rounded_to_bf16(std::span<const float> values) {
    std::vector<float> out;
    for (const float value : values) out.push_back(to_f32(to_bf16(value)));
    return out;
  }

  std::unique_ptr<Backend> backend_;
};

TEST_F(PackedOnGpu, ProductsAreSumsOfValuesAndOfAnyCompany) {
  constexpr std::int64_t kRows[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 200};
  for (const auto& [n, k] :
       {std::pair<std::int64_t, std::int64_t>{64, 256}, {264, 768}, {304, 704}, {304, 1024 + 96}}) {
    for (const Stored& stored : all(n, k)) compare(stored, kRows);
  }
}

TEST_F(PackedOnGpu, SoAreProductsOfFourBitsInGroupsOfAnySize) {
  constexpr std::int64_t kRows[] = {1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 200};
  for (const std::int64_t group : {32, 64, 128}) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{64, 256}, {264, 768}, {304, 704}}) {
      if (k % group != 0) continue;
      for (const auto& [kind, bits] : in_groups(group)) {
        const test::Held held(kind, group, n, k);
        const bool exact = group == 128 || kind.starts_with("mx");
        compare(held.matrix(), held.meant(), kind + " of " + std::to_string(group), bits,
                exact ? kExact : 2e-2, kRows);
      }
    }
  }
}

TEST_F(PackedOnGpu, ProductsOfLongRowsToo) {  // warps have two tiles of k at a time
  constexpr std::int64_t kRows[] = {1, 8, 20, 64};
  for (const Stored& stored : all(304, 8192)) compare(stored, kRows);
}

TEST_F(PackedOnGpu, ProductsOfWideMatricesToo) {  // several rounds of units, several pieces of x
  constexpr std::int64_t kRows[] = {1, 20, 64};
  compare(blocks(all_blocks()[0], 35000, 512, 5), kRows);
  compare(blocks(all_blocks()[0], 35000, 1024, 5), kRows);
  compare(blocks(all_blocks()[8], 4096, 4096, 5), kRows);
  compare(beside(fp8_format(), 2048, 5632, false), kRows);
}

TEST_F(PackedOnGpu, MatricesOfSeveralTypesAreStacked) {
  constexpr std::int64_t k = 512;
  const Stored four = blocks({&q4_k_format(), {0, 2}, 0, 0}, 96, k, 0);
  const Stored six = blocks({&q6_k_format(), {208}, 0, 0}, 40, k, 0);
  const StoredMatrix parts[] = {four.matrix.host, six.matrix.host};
  std::vector<float> values = four.matrix.values;
  values.insert(values.end(), six.matrix.values.begin(), six.matrix.values.end());
  const auto packed = backend_->pack(parts);
  EXPECT_LT(packed->size_bytes() * 8, 10 * 144 * k);
  const std::vector<float> inputs = Random(3).normal(5 * k);
  Owned x(*backend_, 5, k);
  x.set(*backend_, inputs);
  EXPECT_LE(relative_error(product(*backend_, *packed, x.tensor),
                           reference_matmul(rounded_to_bf16(inputs), values, 5, 136, k)),
            2e-2);
}

TEST_F(PackedOnGpu, ScalesOfMxfp8MayBeFarOut) {
  constexpr std::int64_t kRows[] = {1, 20};
  test::Held held("mxfp8", 0, 32, 256);
  held.bytes_of("_scale")[0] = std::byte{0};  // 2^-127: all values are 0 or have few bits
  held.bytes_of("_scale")[9] = std::byte{1};
  held.bytes_of("_scale")[18] = std::byte{190};
  compare(held.matrix(), widened(held.matrix()), "scales far out", 8.25, kExact, kRows);
}

TEST_F(PackedOnGpu, AValueThatIsNotFiniteIsNamed) {
  Stored stored = beside(fp8_format(), 32, 256, false);
  stored.matrix.bytes[256 + 3] = std::byte{0xff};
  const std::string said = refusal(*backend_, stored.matrix.host);
  EXPECT_NE(said.find("NaN at element 259"), std::string::npos) << said;
}

TEST(Sanitized, ProductsOfPackedWeights) {
  if (!test::on_cuda()) GTEST_SKIP() << "for a GPU";
  const auto backend = test::make_backend(Numerics::kBF16, 1, "cuda");
  Random random(2);
  for (const Blocks& of : {all_blocks()[0], all_blocks()[10]}) {
    const FileMatrix w(1024, 2048, *of.format, of.halves, random);
    const auto weight = backend->pack({&w.host, 1});
    Owned x(*backend, 80, 2048);
    x.set(*backend, random.normal(80 * 2048));
    Owned out(*backend, 80, 1024);
    for (const std::int64_t rows : {1, 12, 40, 80}) {
      backend->matmul(out.tensor.first_rows(rows), x.tensor.first_rows(rows), *weight, nullptr,
                      Backend::Store::kOverwrite);
    }
    out.get(*backend);
  }
}

}  // namespace
}  // namespace dendrite
