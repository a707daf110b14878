// Formats of 8 and 4 bits: what they mean, and what is broken.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "dendrite/error.h"
#include "quant/formats.h"
#include "support/packed_matrix.h"
#include "tensors.h"

namespace dendrite {
namespace {

using test::PackedMatrix;
using test::PackedTensor;
using test::Tensors;

Tensors tensors_of(const PackedMatrix& matrix) {
  Tensors tensors;
  for (const PackedTensor& tensor : matrix.tensors) {
    tensors.add(tensor.name, tensor.type, tensor.shape, tensor.bytes);
  }
  return tensors;
}

constexpr std::int64_t kRows = 160;
constexpr std::int64_t kCols = 288;  // neither is whole blocks of 128

class PackedFormats : public testing::TestWithParam<std::string> {
 protected:
  /// What finding it says, "" if it is found.
  static std::string error_of(const PackedMatrix& matrix) {
    const Tensors tensors = tensors_of(matrix);
    try {
      return find_matrix(tensors, "a.weight", kRows, kCols) ? "" : "not found";
    } catch (const Error& error) {
      return error.what();
    }
  }

  PackedMatrix packed_ = test::Packer().pack(GetParam(), "a.weight", kRows, kCols);
};

INSTANTIATE_TEST_SUITE_P(Kinds, PackedFormats, testing::ValuesIn(test::packed_kinds()),
                         [](const auto& kind) { return kind.param; });

TEST_P(PackedFormats, MeanWhatTheirWritersMeant) {
  const Tensors tensors = tensors_of(packed_);
  const auto matrix = find_matrix(tensors, "a.weight", kRows, kCols);
  ASSERT_TRUE(matrix);
  EXPECT_FALSE(matrix->format->number());
  const std::int64_t block = matrix->format->block();
  std::vector<float> row(kCols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto meant = std::span(packed_.meant).subspan(static_cast<std::size_t>(r * kCols), kCols);
    matrix->format->widen(*matrix, r, 0, row);
    ASSERT_TRUE(std::ranges::equal(row, meant)) << "row " << r;
    // And from anywhere.
    const std::int64_t begin = (r * 13 % kCols) / block * block;
    const std::span<float> part = std::span(row).first(
        static_cast<std::size_t>(std::min<std::int64_t>(kCols - begin, (1 + r % 9) * block)));
    matrix->format->widen(*matrix, r, begin, part);
    ASSERT_TRUE(
        std::ranges::equal(part, meant.subspan(static_cast<std::size_t>(begin), part.size())))
        << "row " << r << " from " << begin;
  }
}

TEST_P(PackedFormats, GoWithoutNoneOfTheirTensors) {
  for (std::size_t i = 0; i < packed_.tensors.size(); ++i) {
    PackedMatrix broken = packed_;
    const std::string name = broken.tensors[i].name;
    // (Zero points are there or not; without an order, columns are grouped as they lie.)
    if (name.ends_with("_zero_point") || name.ends_with("g_idx")) continue;
    broken.tensors.erase(broken.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string error = error_of(broken);
    const bool is_data = i == 0;
    EXPECT_TRUE(is_data ? error == "not found" : error.find(name) != std::string::npos)
        << name << ": " << error;
  }
}

TEST_P(PackedFormats, RefuseTensorsOfAnotherShapeOrSize) {
  for (std::size_t i = 0; i < packed_.tensors.size(); ++i) {
    const PackedTensor& whole = packed_.tensors[i];
    PackedMatrix broken = packed_;
    PackedTensor& tensor = broken.tensors[i];
    for (std::size_t axis = 0; axis < whole.shape.size(); ++axis) {
      tensor.shape = whole.shape;
      tensor.shape[axis] += 1;
      EXPECT_NE(error_of(broken).find(whole.name), std::string::npos) << whole.name;
      tensor.shape[axis] = 0;
      EXPECT_NE(error_of(broken).find(whole.name), std::string::npos) << whole.name;
    }
    tensor = whole;
    tensor.bytes.pop_back();
    EXPECT_NE(error_of(broken).find(whole.name), std::string::npos) << whole.name;
    tensor = whole;
    tensor.type = "F64";
    const std::string error = error_of(broken);
    EXPECT_TRUE(error == "not found" || error.find(whole.name) != std::string::npos) << error;
  }
}

TEST(GptqFormat, RefusesAGroupThatThereIsNot) {
  for (const std::int32_t group : {-1, 9}) {
    PackedMatrix packed = test::Packer().pack("gptq", "a.weight", kRows, kCols);
    std::memcpy(&packed.tensors.back().bytes[4 * 17], &group, 4);
    const Tensors tensors = tensors_of(packed);
    try {
      find_matrix(tensors, "a.weight", kRows, kCols);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "x.file: tensor \"a.g_idx\" says that column 17 is of group " +
                    std::to_string(group) + ", expected 0 to 8");
    }
  }
}

TEST(E2M1Format, ReadsEveryCodeLowBitsFirst) {
  const std::vector<float> expected{0, 0.5F,  1,  1.5F,  2,  3,  4,  6,
                                    0, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  std::vector<std::byte> codes;
  for (int i = 0; i < 16; i += 2) codes.push_back(static_cast<std::byte>(i | (i + 1) << 4));
  const std::vector<std::byte> one{std::byte{0x38}};  // 1 as E4M3
  const std::vector<std::byte> ten{std::byte{0}, std::byte{0}, std::byte{0x20}, std::byte{0x41}};
  Tensors tensors;
  tensors.add("a.weight", "U8", {1, 8}, codes);
  tensors.add("a.weight_scale", "F8_E4M3", {1, 1}, one);
  tensors.add("a.weight_scale_2", "F32", {}, ten);
  const auto matrix = find_matrix(tensors, "a.weight", 1, 16);
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->format, &nvfp4_modelopt_format());
  std::vector<float> values(16);
  matrix->format->widen(*matrix, 0, 0, values);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(values[i], 10 * expected[i]) << i;
}

TEST(E2M1Format, HasNoNumberForTheLastPower) {
  for (const char* kind : {"mxfp4", "mxfp8"}) {
    PackedMatrix packed = test::Packer().pack(kind, "a.weight", kRows, kCols);
    packed.tensors[1].bytes[2] = std::byte{255};
    packed.tensors[1].bytes[1] = std::byte{0};  // 2^-127, a subnormal number
    const Tensors tensors = tensors_of(packed);
    const auto matrix = find_matrix(tensors, "a.weight", kRows, kCols);
    ASSERT_TRUE(matrix);
    std::vector<float> values(kCols);
    matrix->format->widen(*matrix, 0, 0, values);
    const float old = std::abs(packed.meant[32]);
    EXPECT_TRUE(old == 0 || std::abs(values[32]) < 1e-30F);
    EXPECT_TRUE(std::isnan(values[64]));
    EXPECT_TRUE(std::isfinite(values[96]));
  }
}

TEST(E2M1Format, RefusesFactorsOfInputsAndOtherScales) {
  PackedMatrix packed = test::Packer().pack("nvfp4_modelopt", "a.weight", kRows, kCols);
  packed.tensors.push_back({"a.pre_quant_scale", "F32", {1}, std::vector<std::byte>(4)});
  const auto error_of = [](const PackedMatrix& matrix) -> std::string {
    const Tensors tensors = tensors_of(matrix);
    try {
      find_matrix(tensors, "a.weight", kRows, kCols);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(error_of(packed),
            "x.file: tensor \"a.pre_quant_scale\" is not supported; expected NVFP4 without factors "
            "of its inputs");
  packed.tensors.pop_back();
  packed.tensors[1].type = "F16";
  EXPECT_EQ(error_of(packed),
            "x.file: tensor \"a.weight_scale\" is stored as F16, expected F8_E4M3 (NVFP4), or "
            "F8_E8M0 or U8 (MXFP4)");
}

TEST(E2M1Format, FindsTheNumberOfInputsWhereThereIsOne) {
  for (const bool modelopt : {false, true}) {
    PackedMatrix packed =
        test::Packer().pack(modelopt ? "nvfp4_modelopt" : "nvfp4", "a.weight", kRows, kCols);
    const auto number = [&]() -> float {
      const Tensors tensors = tensors_of(packed);
      const Companion inputs = find_matrix(tensors, "a.weight", kRows, kCols)->input_whole;
      float value = -1;
      if (inputs.format != nullptr) inputs.widen(0, 0, {&value, 1});
      return value;
    };
    EXPECT_EQ(number(), -1);
    const float scale = 0.25F;
    std::vector<std::byte> bytes(sizeof scale);
    std::memcpy(bytes.data(), &scale, sizeof scale);
    packed.tensors.push_back(
        {modelopt ? "a.input_scale" : "a.input_global_scale", "F32", {}, bytes});
    EXPECT_EQ(number(), scale);
  }
}

TEST(Int8Format, RefusesZeroPoints) {
  PackedMatrix packed = test::Packer().pack("int8", "a.weight", kRows, kCols);
  PackedTensor zeros = packed.tensors[0];
  zeros.name = "a.weight_zero_point";
  packed.tensors.push_back(zeros);
  const Tensors tensors = tensors_of(packed);
  EXPECT_THROW(find_matrix(tensors, "a.weight", kRows, kCols), Error);
}

}  // namespace
}  // namespace dendrite
