// Formats of 8 and 4 bits: what they mean, and what is broken.
#include <gtest/gtest.h>

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
