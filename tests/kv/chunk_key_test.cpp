#include "kv/chunk_key.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/golden.h"

namespace dendrite {
namespace {

using Tokens = std::vector<Token>;

TEST(ChunkKey, ContentOfTextsAndIdsIsWhatPythonsHashlibGives) {
  const test::Json goldens = test::read_json(test::text_data() / "chunks.json");
  for (const test::Json& golden : goldens["texts"]) {
    EXPECT_EQ(to_hex(chunk_content(golden[1].get<std::string>())), golden[2]);
  }
  ASSERT_GE(goldens["ids"].size(), 5u);
  for (const test::Json& golden : goldens["ids"]) {
    EXPECT_EQ(to_hex(chunk_content(golden[0].get<Tokens>())), golden[1]);
  }
  EXPECT_EQ(to_hex(chunk_content("Hello\nWorld")),
            "35c6b9f66dceb6cf8f733d08689564e420e18eb40250d9435352617c027f36d6");
}

TEST(ChunkKey, EachOfItsPartsMakesAnotherKey) {
  const auto key = [](std::string_view text, const Tokens& left, std::uint64_t variant) {
    return ChunkKey{chunk_content(text), left_context_hash(left), variant};
  };
  const ChunkKey base = key("text", {1, 2}, 7);
  EXPECT_EQ(base, key("text", {1, 2}, 7));
  EXPECT_EQ(ChunkKeyHash{}(base), ChunkKeyHash{}(key("text", {1, 2}, 7)));
  std::set<std::string> texts{to_text(base)};
  std::set<std::size_t> hashes{ChunkKeyHash{}(base)};
  for (const ChunkKey& other :
       {key("Text", {1, 2}, 7), key("text", {}, 7), key("text", {1}, 7), key("text", {2, 1}, 7),
        key("text", {1, 2, 0}, 7), key("text", {1, 2}, 8)}) {
    EXPECT_NE(other, base);
    texts.insert(to_text(other));
    hashes.insert(ChunkKeyHash{}(other));
  }
  EXPECT_EQ(texts.size(), 7u);
  EXPECT_EQ(hashes.size(), 7u);
}

TEST(ChunkKey, TextIsItsPartsInHexadecimal) {
  EXPECT_EQ(
      to_text({.content = chunk_content("abc"), .left = 0x12ab, .variant = ~std::uint64_t{0}}),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad-00000000000012ab-"
      "ffffffffffffffff");
}

}  // namespace
}  // namespace dendrite
