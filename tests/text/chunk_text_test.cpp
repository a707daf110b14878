#include "text/chunk_text.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "core/sha256.h"
#include "dendrite/error.h"
#include "golden.h"

namespace dendrite {
namespace {

using namespace std::string_literals;

std::string encoded(char32_t code) {
  const auto byte = [](char32_t bits) { return static_cast<char>(bits); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xc0 | code >> 6), byte(0x80 | (code & 0x3f))};
  if (code < 0x10000) {
    return {byte(0xe0 | code >> 12), byte(0x80 | (code >> 6 & 0x3f)), byte(0x80 | (code & 0x3f))};
  }
  return {byte(0xf0 | code >> 18), byte(0x80 | (code >> 12 & 0x3f)),
          byte(0x80 | (code >> 6 & 0x3f)), byte(0x80 | (code & 0x3f))};
}

std::string error_of(std::string_view text) {
  try {
    return "no error, but " + normalise_chunk(text);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ChunkText, IsWhatPythonMakesOfIt) {
  const test::Json texts = test::read_json(test::text_data() / "chunks.json")["texts"];
  ASSERT_GE(texts.size(), 100u);
  for (const test::Json& golden : texts) {
    EXPECT_EQ(normalise_chunk(golden[0].get<std::string>()), golden[1].get<std::string>());
  }
}

TEST(ChunkText, StripsOfAllCharactersThoseThatPythonStrips) {
  Sha256 all;
  int stripped = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;  // surrogates are no characters
    const std::string normal = normalise_chunk(encoded(code) + "x" + encoded(code));
    if (normal == "x") ++stripped;
    all.add(normal + "\n");
  }
  EXPECT_EQ(stripped, 29);
  EXPECT_EQ(to_hex(all.digest()),
            test::read_json(test::text_data() / "chunks.json")["every_character"]);
}

TEST(ChunkText, KeepsWhatIsInsideButTheEndsOfLines) {
  EXPECT_EQ(normalise_chunk("\r\n a \t b\r\n\r\nc\rd\r\r\ne \r\n"), "a \t b\n\nc\rd\r\ne");
  EXPECT_EQ(normalise_chunk("a\0 b"s), "a\0 b"s);
  EXPECT_EQ(normalise_chunk("\xEF\xBB\xBF x"), "\xEF\xBB\xBF x");  // U+FEFF
}

TEST(ChunkText, RefusesWhatIsNotUtf8AndSaysWhere) {
  for (const std::string_view bad :
       {"ab\xff"
        "c",
        "ab\xc3", "ab\xc0\xa0", "ab\xed\xa0\x80", "ab\xe2\x80", "ab\x80"}) {
    EXPECT_EQ(error_of(bad), "text of a chunk: bytes from 2 of " + std::to_string(bad.size()) +
                                 " on are not UTF-8; expected UTF-8");
  }
}

TEST(ChunkText, RefusesTextOfWhiteSpaceAlone) {
  for (const std::string_view blank : {"", " ", "\r\n", "\xC2\xA0\t\xE3\x80\x80"}) {
    EXPECT_EQ(error_of(blank), "text of a chunk: " + std::to_string(blank.size()) +
                                   " bytes without any character but white space; expected other "
                                   "characters");
  }
}

}  // namespace
}  // namespace dendrite
