#include "io/safetensors.h"

#include <cstring>

#include "test_files.h"

namespace dendrite {
namespace {

using test::safetensors;
using test::safetensors_of;

std::vector<TensorInfo> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "x.safetensors");
}

/// An entry of the header.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return '"' + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + '}';
}

TEST(Safetensors, GivesNameTypeShapeAndBytesOfEveryTensor) {
  const test::TempFolder folder;
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "BF16", "[2,1]", "[4,8]") + "," +
      entry("a", "F32", "[]", "[0,4]") + "," + entry("none", "F8_E4M3", "[0,3]", "[4,4]") + "}   ";
  const SafetensorsFile file(folder.write("m.safetensors", safetensors(header, "01234567")));
  ASSERT_EQ(file.tensors().size(), 3u);
  const TensorInfo* const b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->stored_type, "BF16");
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(b->size_bytes, 4);
  EXPECT_EQ(std::memcmp(b->data, "4567", 4), 0);
  EXPECT_EQ(b->file, file.path());
  EXPECT_TRUE(file.find("a")->shape.empty());
  EXPECT_EQ(file.find("none")->size_bytes, 0);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, KnowsEveryTypeOfTheFormat) {
  for (const auto& [name, bits] : std::vector<std::pair<std::string, int>>{
           {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
           {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},      {"F6_E2M3", 6},
           {"F6_E3M2", 6}, {"I16", 16},        {"U16", 16},        {"F16", 16},    {"BF16", 16},
           {"I32", 32},    {"U32", 32},        {"F32", 32},        {"C64", 64},    {"F64", 64},
           {"I64", 64},    {"U64", 64}}) {
    const int bytes = bits;  // of 8 values
    const auto tensors =
        parse(safetensors("{" + entry("t", name, "[8]", "[0," + std::to_string(bytes) + "]") + "}",
                          std::string(static_cast<std::size_t>(bytes), 'x')));
    ASSERT_EQ(tensors.size(), 1u) << name;
    EXPECT_EQ(tensors[0].stored_type, name);
  }
  EXPECT_ERROR(parse(safetensors("{" + entry("t", "F4", "[3]", "[0,2]") + "}", "xx")),
               "a whole number of bytes");
}

TEST(Safetensors, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(parse(safetensors("{}")).empty());
}

TEST(BrokenSafetensors, IsRefusedWhateverItsLengthFieldSays) {
  EXPECT_ERROR(parse("1234567"), "has 7 bytes, too few");
  const std::string good = safetensors_of({"a"});
  for (const std::uint64_t length :
       {std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{100'000'001}}) {
    std::string bytes = good;
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_ERROR(parse(bytes),
                 "header has " + std::to_string(length) + " bytes, expected at most 100000000");
  }
  std::string longer = good;
  longer[1] = 1;  // 256 bytes more
  EXPECT_ERROR(parse(longer), "follow (cut short?)");
  EXPECT_ERROR(parse(safetensors("")), "does not begin with '{'");
  EXPECT_ERROR(parse(safetensors(" {}")), "does not begin with '{'");
}

TEST(BrokenSafetensors, IsRefusedWhereverItIsCut) {
  const std::string good = safetensors_of({"a", "b"});
  ASSERT_EQ(parse(good).size(), 2u);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_ERROR(parse(good.substr(0, size)), "x.safetensors: ") << size;
  }
  EXPECT_ERROR(parse(good.substr(0, good.size() - 1)),
               "but the file holds only 7 bytes of data (cut short?)");
}

TEST(BrokenSafetensors, MustCoverItsDataExactly) {
  const std::string a = entry("a", "F32", "[1]", "[0,4]");
  EXPECT_ERROR(
      parse(safetensors("{" + a + "," + entry("b", "F32", "[1]", "[2,6]") + "}", "012345")),
      "tensor \"b\" is at bytes [2, 6), which overlap another tensor");
  EXPECT_ERROR(parse(safetensors("{" + a + "," + entry("b", "F32", "[1]", "[0,4]") + "}", "0123")),
               "overlap");
  EXPECT_ERROR(
      parse(safetensors("{" + a + "," + entry("b", "F32", "[1]", "[8,12]") + "}", "0123456789ab")),
      "tensor \"b\" is at bytes [8, 12), after a hole that begins at byte 4");
  EXPECT_ERROR(parse(safetensors("{" + a + "}", "0123+")), "holds 5 bytes of data, expected 4");
  EXPECT_ERROR(parse(safetensors("{" + entry("a", "F32", "[1]", "[4,0]") + "}", "0123")),
               "end before they begin");
  EXPECT_ERROR(parse(safetensors("{" + entry("a", "F32", "[2]", "[0,4]") + "}", "0123")),
               "expected 8 bytes");
  EXPECT_ERROR(parse(safetensors("{}", "0123")), "holds 4 bytes of data, expected 0");
}

TEST(BrokenSafetensors, MustNotOverflow) {
  const std::string huge = "9223372036854775807";
  EXPECT_ERROR(parse(safetensors(
                   "{" + entry("a", "F32", "[" + huge + "," + huge + "]", "[0,4]") + "}", "0123")),
               "below 2^64 bits");
  EXPECT_ERROR(parse(safetensors("{" + entry("a", "U8", "[2305843009213693952]", "[0,0]") + "}")),
               "below 2^64 bits");
  EXPECT_ERROR(parse(safetensors("{" + entry("a", "U8", "[18446744073709551615]", "[0,0]") + "}")),
               "below 2^63");
  EXPECT_ERROR(parse(safetensors("{" + entry("a", "U8", "[18446744073709551616]", "[0,0]") + "}")),
               "expected an integer of at least 0");
  EXPECT_ERROR(
      parse(safetensors("{" + entry("a", "U8", "[4]", "[18446744073709551612,0]") + "}", "0123")),
      "end before they begin");
  EXPECT_ERROR(
      parse(safetensors("{" + entry("a", "U8", "[4]", "[0,18446744073709551615]") + "}", "0123")),
      "but the file holds only 4 bytes");
}

TEST(BrokenSafetensors, MustHaveEachNameOnce) {
  const std::string a = entry("a", "F32", "[0]", "[0,0]");
  EXPECT_ERROR(parse(safetensors("{" + a + "," + a + "}")), "tensor \"a\" is written twice");
  EXPECT_ERROR(
      parse(safetensors(R"({"a":{"dtype":"F32","dtype":"F16","shape":[0],"data_offsets":[0,0]}})")),
      "has two keys \"dtype\"");
  EXPECT_ERROR(parse(safetensors(R"({"__metadata__":{"a":"b","a":"c"}})")),
               "__metadata__ has two keys \"a\"");
  EXPECT_ERROR(parse(safetensors(R"({"__metadata__":{},"__metadata__":{}})")), "written twice");
}

TEST(BrokenSafetensors, MustHaveTheRightKindOfValueInEveryPlace) {
  const auto header = [](const std::string& text) { return parse(safetensors(text)); };
  EXPECT_ERROR(header(R"({"a":7})"), "tensor \"a\" is 7, expected an object");
  EXPECT_ERROR(header(R"({"a":{}})"), "tensor \"a\" has no dtype");
  EXPECT_ERROR(header(R"({"a":{"dtype":"F32","data_offsets":[0,0]}})"), "has no shape");
  EXPECT_ERROR(header(R"({"a":{"dtype":"F32","shape":[0]}})"), "has no data_offsets");
  EXPECT_ERROR(header("{" + entry("a", "F31", "[0]", "[0,0]") + "}"),
               "has dtype \"F31\", which the format does not");
  EXPECT_ERROR(header(R"({"a":{"dtype":null,"shape":[0],"data_offsets":[0,0]}})"),
               "has dtype null, expected a string");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[-1]", "[0,0]") + "}"), "has a dimension of -1");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[1.5]", "[0,0]") + "}"),
               "has a dimension of \"1.5\"");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[1e2]", "[0,0]") + "}"),
               "has a dimension of \"1e2\"");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[[1]]", "[0,0]") + "}"),
               "has a dimension of a list");
  EXPECT_ERROR(header("{" + entry("a", "F32", "0", "[0,0]") + "}"), "has shape 0, expected a list");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[0]", "[0]") + "}"),
               "has 1 data_offsets, expected 2");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[0]", "[0,0,0]") + "}"),
               "has 3 data_offsets, expected 2");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[0]", "{}") + "}"), "has data_offsets an object");
  EXPECT_ERROR(header("{" + entry("a", "F32", "[1,1,1,1,1,1,1,1,0]", "[0,0]") + "}"),
               "more than 8 dimensions");
  EXPECT_ERROR(header(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1}})"),
               "has an unknown key \"x\"");
  EXPECT_ERROR(header(R"({"__metadata__":{"a":1}})"),
               "__metadata__ holds 1, expected an object of strings");
  EXPECT_ERROR(header(R"({"__metadata__":null})"), "__metadata__ holds null");
}

TEST(BrokenSafetensors, MustBeOneJsonDocument) {
  EXPECT_ERROR(parse(safetensors("{}x")), "is not valid JSON, reading stopped at its byte 3");
  EXPECT_ERROR(parse(safetensors("{}{}")), "is not valid JSON");
  EXPECT_ERROR(parse(safetensors("{")), "is not valid JSON");
  EXPECT_ERROR(parse(safetensors("{\"\xff\":1}")), "is not valid JSON");  // not UTF-8
  EXPECT_ERROR(parse(safetensors(std::string("{}\0garbage", 10))), "has a zero byte");
  EXPECT_ERROR(parse(safetensors("{\"a\":" + std::string(1'000'000, '['))),
               "tensor \"a\" is a list");
}

TEST(BrokenSafetensors, NamesAreMadeFitForOneLine) {
  const std::string text = test::error_of(
      [] { parse(safetensors("{\"a\\n\\u001b" + std::string(5000, 'b') + "\":1}")); });
  EXPECT_NE(text.find("\"a\\x0a\\x1bbbb"), std::string::npos) << text;
  EXPECT_LT(text.size(), 250u);
}

}  // namespace
}  // namespace dendrite
