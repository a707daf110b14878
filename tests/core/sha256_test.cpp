#include "core/sha256.h"

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace dendrite {
namespace {

std::string hex_of(std::string_view text) {
  return to_hex(sha256(text));
}

/// Byte i is (7 i + size) mod 256.
std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(7 * i + size);
  return bytes;
}

// NIST's examples: https://csrc.nist.gov/projects/cryptographic-standards-and-guidelines/
// example-values (SHA256), and the million of FIPS 180-2, appendix B.3.
TEST(Sha256, GivesTheDigestsOfTheStandardsExamples) {
  EXPECT_EQ(hex_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                   "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(hex_of(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The sizes at which the padding takes a block more, and their neighbours. From Python's hashlib.
TEST(Sha256, GivesHashlibsDigestsAroundTheBordersOfBlocks) {
  struct Golden {
    std::size_t size;
    const char* hex;
  };
  constexpr std::array kGoldens{
      Golden{1, "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a"},
      Golden{54, "1ad616be707a2b269ecfe28bdea4a4284a4f78a221287d45b98004231f501c77"},
      Golden{55, "81afe5b788dc2ce138ff83d9b20164db75a94d75d2b2432eea4a0ef605088c72"},
      Golden{56, "2aba54f0ac632420a2b502431408866e40e1d5e430df4cd822642c78ab2eb9c1"},
      Golden{57, "903284efbf9100e8ba1614ec65eacacad125e03f857cae7acbf8b73b23e0fdfe"},
      Golden{63, "733d3d4ee79ee67145bf73da13588f6f235d37414fc64b14a2f00f1762792f5e"},
      Golden{64, "79322907b3e9d013d7dc2c2f256674dbf733045cde01df3539271c6f5605feb8"},
      Golden{65, "d85c007c6eb440f085afa2b84f6f2bce4658b240e9f62cb1364bf0485a57e720"},
      Golden{119, "6c87eedf096b345de205b702e5223b73b447a3207791ded3ea007ba15ed6736e"},
      Golden{120, "42500cf6a1e3936d6b9e0bcfe296d654b63255e525487d3634d0b15fde591c4d"},
      Golden{128, "489d55fea9a73af36b6dd0be7b4117d8e5683386d39544e8a44c99a87f368707"},
      Golden{1000, "6b0df76627243d095b0c4400cb658b7e804dd03461cc03aee8fc8fe0bcada168"}};
  for (const Golden& golden : kGoldens) {
    EXPECT_EQ(to_hex(sha256(pattern(golden.size))), golden.hex) << golden.size << " bytes";
  }
}

// hashlib's digest of the digests of pattern(0) to pattern(299), one after the other.
TEST(Sha256, GivesHashlibsDigestAtEverySize) {
  Sha256 all;
  for (std::size_t size = 0; size < 300; ++size) all.add(sha256(pattern(size)));
  EXPECT_EQ(to_hex(all.digest()),
            "d5238871a46ac4a1a75ac3fb19d645b0b3b9e5f35f5f720e2b240d605c6b694e");
}

TEST(Sha256, IsTheSameHoweverTheBytesAreCut) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 300; ++turn) {
    const std::vector<std::byte> bytes = pattern(random() % 400);
    const std::size_t largest = 1 + random() % 150;
    Sha256 pieces;
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const std::size_t size = std::min<std::size_t>(rest.size(), random() % (largest + 1));
      pieces.add(rest.first(size));
      rest = rest.subspan(size);
      const std::size_t done = bytes.size() - rest.size();
      ASSERT_EQ(pieces.digest(), sha256(std::span(bytes).first(done))) << done << " bytes";
    }
    ASSERT_EQ(pieces.digest(), sha256(bytes)) << bytes.size() << " bytes";
  }
}

TEST(Sha256, HexHasTwoDigitsForEachByte) {
  constexpr std::array kBytes{std::byte{0x00}, std::byte{0x0a}, std::byte{0xf0}, std::byte{0x9b}};
  EXPECT_EQ(to_hex(kBytes), "000af09b");
  EXPECT_EQ(to_hex({}), "");
}

}  // namespace
}  // namespace dendrite
