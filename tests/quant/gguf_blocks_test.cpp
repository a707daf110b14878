#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dendrite/error.h"
#include "quant/formats.h"
#include "tensors.h"

namespace dendrite {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint16_t kHalf = 0x3800;   // 0.5 as f16
constexpr std::uint16_t kTwo = 0x4000;    // 2
constexpr std::uint16_t kMinus = 0xbc00;  // -1

void put_half(Bytes& block, std::size_t at, std::uint16_t half) {
  std::memcpy(&block[at], &half, 2);
}

std::vector<float> widened(const Format& format, const Bytes& block) {
  EXPECT_EQ(std::ssize(block), format.block_bytes());
  std::vector<float> out(static_cast<std::size_t>(format.block()));
  format.widen({.format = &format,
                .data = reinterpret_cast<const std::byte*>(block.data()),
                .rows = 1,
                .cols = format.block(),
                .stride = format.block_bytes()},
               0, 0, out);
  return out;
}

// What is worked out by hand below are values at borders of the parts that a block is made of; all
// values of all formats are compared with GGUF's own reference below.

TEST(GgufBlocks, OfFourBits) {
  Bytes block(18);
  put_half(block, 0, kHalf);
  block[2] = 0x0f;   // value 0 is 15, value 16 is 0
  block[17] = 0x90;  // value 15 is 0, value 31 is 9
  const auto q4_0 = widened(q4_0_format(), block);
  EXPECT_EQ(q4_0[0], 3.5F);
  EXPECT_EQ(q4_0[16], -4.0F);
  EXPECT_EQ(q4_0[15], -4.0F);
  EXPECT_EQ(q4_0[31], 0.5F);
  const auto iq4_nl = widened(iq4_nl_format(), block);
  EXPECT_EQ(iq4_nl[0], 56.5F);
  EXPECT_EQ(iq4_nl[16], -63.5F);
  EXPECT_EQ(iq4_nl[31], 6.5F);

  Bytes with_minimum(20);
  put_half(with_minimum, 0, kHalf);
  put_half(with_minimum, 2, kMinus);
  with_minimum[4] = 0x2f;
  const auto q4_1 = widened(q4_1_format(), with_minimum);
  EXPECT_EQ(q4_1[0], 6.5F);
  EXPECT_EQ(q4_1[16], 0.0F);
  EXPECT_EQ(q4_1[1], -1.0F);
}

TEST(GgufBlocks, OfFiveBits) {
  Bytes block(22);
  put_half(block, 0, kHalf);
  block[2] = 0x01;  // the fifth bit of value 0
  block[5] = 0x80;  // of value 31
  block[6] = 0x21;
  block[21] = 0xf0;
  const auto q5_0 = widened(q5_0_format(), block);
  EXPECT_EQ(q5_0[0], 0.5F);    // 17
  EXPECT_EQ(q5_0[16], -7.0F);  // 2
  EXPECT_EQ(q5_0[31], 7.5F);   // 31
  Bytes with_minimum(24);
  put_half(with_minimum, 0, kTwo);
  put_half(with_minimum, 2, kMinus);
  with_minimum[5] = 0x01;  // the fifth bit of value 8
  with_minimum[16] = 0x03;
  EXPECT_EQ(widened(q5_1_format(), with_minimum)[8], 37.0F);
}

TEST(GgufBlocks, OfEightBits) {
  Bytes block(34);
  put_half(block, 0, kHalf);
  block[2] = 0x80;
  block[33] = 0x7f;
  const auto values = widened(q8_0_format(), block);
  EXPECT_EQ(values[0], -64.0F);
  EXPECT_EQ(values[31], 63.5F);
}

TEST(GgufBlocks, OfTwoAndThreeBits) {
  Bytes two(84);
  two[0] = 0x23;        // scale 3, minimum 2
  two[15] = 0x11;       // of values 240 to 255
  two[16] = 0x03;       // value 0
  two[16 + 63] = 0xc0;  // value 255
  put_half(two, 80, kTwo);
  put_half(two, 82, kHalf);
  const auto q2_k = widened(q2_k_format(), two);
  EXPECT_EQ(q2_k[0], 17.0F);  // 2 * 3 * 3 - 0.5 * 2
  EXPECT_EQ(q2_k[1], -1.0F);
  EXPECT_EQ(q2_k[255], 5.5F);

  Bytes three(110);
  three[0] = 0x01;        // the third bit of value 0
  three[31] = 0x80;       // of value 255
  three[32] = 0x02;       // value 0
  three[32 + 63] = 0xc0;  // value 255
  three[96] = 0x05;       // four bits of part 0
  three[103] = 0xf0;      // of part 15
  three[104] = 0x02;      // upper bits of part 0
  three[107] = 0xc0;      // of part 15
  put_half(three, 108, kTwo);
  const auto q3_k = widened(q3_k_format(), three);
  EXPECT_EQ(q3_k[0], 2.0F * (37 - 32) * 2);
  EXPECT_EQ(q3_k[1], 2.0F * (37 - 32) * -4);
  EXPECT_EQ(q3_k[255], 2.0F * (63 - 32) * 3);
}

TEST(GgufBlocks, OfFourToSixBitsWithScalesOfSix) {
  Bytes four(144);
  put_half(four, 0, kTwo);
  put_half(four, 2, kHalf);
  four[4] = 0xc3;   // part 0: scale 3; upper bits of part 4's: 3
  four[8] = 0x42;   // part 0: minimum 2; upper bits of part 4's: 1
  four[12] = 0x51;  // part 4: scale 1 below, minimum 5
  four[16] = 0x0f;
  four[16 + 64] = 0x07;
  const auto q4_k = widened(q4_k_format(), four);
  EXPECT_EQ(q4_k[0], 2.0F * 3 * 15 - 0.5F * 2);
  EXPECT_EQ(q4_k[128], 2.0F * (1 + 48) * 7 - 0.5F * (5 + 16));

  Bytes five(176);
  std::copy(four.begin(), four.begin() + 16, five.begin());
  five[16] = 0x11;  // fifth bits of values 0 and 128
  five[48] = 0x01;
  five[48 + 64] = 0x02;
  const auto q5_k = widened(q5_k_format(), five);
  EXPECT_EQ(q5_k[0], 2.0F * 3 * 17 - 0.5F * 2);
  EXPECT_EQ(q5_k[128], 2.0F * 49 * 18 - 0.5F * 21);

  Bytes six(210);
  six[0] = 0x1f;    // values 0 and 64
  six[127] = 0xf0;  // value 255
  six[128] = 0x23;  // upper bits of values 0 (3) and 64 (2)
  six[191] = 0xc0;  // of value 255
  six[192] = 0xff;  // scale -1
  six[192 + 4] = 0x02;
  six[207] = 0x03;
  put_half(six, 208, kTwo);
  const auto q6_k = widened(q6_k_format(), six);
  EXPECT_EQ(q6_k[0], -2.0F * (63 - 32));
  EXPECT_EQ(q6_k[64], 4.0F * (33 - 32));
  EXPECT_EQ(q6_k[255], 6.0F * (63 - 32));
}

TEST(GgufBlocks, OfUnevenStepsWithScalesOfSix) {
  Bytes block(136);
  put_half(block, 0, kTwo);
  block[3] = 0xc0;        // upper bits of part 7's scale
  block[7] = 0x10;        // lower
  block[8 + 112] = 0xf0;  // values 224 (0) and 240 (15)
  const auto values = widened(iq4_xs_format(), block);
  EXPECT_EQ(values[224], 2.0F * (49 - 32) * -127);
  EXPECT_EQ(values[240], 2.0F * (49 - 32) * 113);
  EXPECT_EQ(values[0], 2.0F * -32 * -127);
}

TEST(GgufBlocks, OfMicroscaledFloats) {
  Bytes block(17);
  block[0] = 128;   // 2
  block[1] = 0xf7;  // 6 and -6
  block[2] = 0x01;  // 0.5
  auto mxfp4 = widened(mxfp4_format(), block);
  EXPECT_EQ(mxfp4[0], 12.0F);
  EXPECT_EQ(mxfp4[16], -12.0F);
  EXPECT_EQ(mxfp4[1], 1.0F);
  block[0] = 0;  // 2^-127
  EXPECT_EQ(widened(mxfp4_format(), block)[1], 0x1p-128F);
  block[0] = 255;
  EXPECT_TRUE(std::isnan(widened(mxfp4_format(), block)[0]));

  Bytes nvfp4(36);
  nvfp4[0] = 0x38;   // 1
  nvfp4[3] = 0x01;   // 2^-9
  nvfp4[4] = 0x27;   // values 0 (6) and 8 (1)
  nvfp4[35] = 0x20;  // value 63 (1)
  const auto values = widened(nvfp4_format(), nvfp4);
  EXPECT_EQ(values[0], 6.0F);
  EXPECT_EQ(values[8], 1.0F);
  EXPECT_EQ(values[63], 0x1p-9F);
  nvfp4[0] = 0x7f;
  EXPECT_TRUE(std::isnan(widened(nvfp4_format(), nvfp4)[0]));
}

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

/// tools/golden/gguf_blocks.py writes the file.
TEST(GgufBlocks, AreWidenedToTheBitsOfTheReference) {
  std::ifstream in(DENDRITE_TEST_DATA "/quant/gguf_blocks.json");
  const auto golden = nlohmann::json::parse(in);
  ASSERT_EQ(golden.size(), 14u);
  for (const auto& [type, one] : golden.items()) {
    const auto blocks = bytes_of(one["blocks"].get<std::string>());
    const auto values = bytes_of(one["values"].get<std::string>());
    const auto cols = std::ssize(values) / 4;
    test::Tensors tensors;
    tensors.add("a.weight", type, {1, cols}, blocks);
    const auto matrix = find_matrix(tensors, "a.weight", 1, cols);
    ASSERT_TRUE(matrix) << type;
    std::vector<float> out(static_cast<std::size_t>(cols));
    matrix->format->widen(*matrix, 0, 0, out);
    EXPECT_EQ(std::memcmp(out.data(), values.data(), values.size()), 0) << type;
    // Any whole blocks give the same.
    const std::int64_t block = matrix->format->block();
    std::vector<float> last(static_cast<std::size_t>(block));
    matrix->format->widen(*matrix, 0, cols - block, last);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), out.end() - block)) << type;
  }
}

TEST(GgufBlocks, Nvfp4TakesTheScaleOfTheWholeTensor) {
  std::vector<std::byte> block(36);
  block[0] = std::byte{0x38};
  block[4] = std::byte{0x07};
  const float scale = 0.25F;
  std::vector<std::byte> number(4);
  std::memcpy(number.data(), &scale, 4);
  test::Tensors tensors;
  tensors.add("a.weight", "NVFP4", {1, 64}, block);
  tensors.add("a.scale", "F32", {1}, number);
  const auto matrix = find_matrix(tensors, "a.weight", 1, 64);
  ASSERT_TRUE(matrix);
  std::vector<float> out(64);
  matrix->format->widen(*matrix, 0, 0, out);
  EXPECT_EQ(out[0], 1.5F);
  tensors.add("a.scale", "F32", {2}, number);
  EXPECT_THROW((void)find_matrix(tensors, "a.weight", 1, 64), Error);
}

TEST(GgufBlocks, SayWhatARowMustBe) {
  const std::vector<std::byte> block(144);
  test::Tensors tensors;
  tensors.add("a.weight", "Q4_K", {1, 128}, block);
  try {
    (void)find_matrix(tensors, "a.weight", 1, 128);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "x.file: tensor \"a.weight\" has rows of 128 values, expected a multiple of 256, "
                 "the block of q4_k");
  }
}

}  // namespace
}  // namespace dendrite
