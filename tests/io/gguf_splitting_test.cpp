// How tokenizers of GGUF files split texts: by the names that files have for it.
#include "io/gguf_splitting.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "io/gguf_tokenizer.h"
#include "support/gguf_writer.h"
#include "text/tokenizer.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;
using Pieces = std::vector<std::string>;

/// What BPE over bytes writes for a byte.
std::string letter_of(unsigned char byte) {
  const auto is_shown = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!is_shown(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += is_shown(b) ? 0 : 1;
  }
  if (code < 128) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string letters_of(const std::string& text) {
  std::string out;
  for (const char byte : text) out += letter_of(static_cast<unsigned char>(byte));
  return out;
}

/// A tokenizer of all parts of a text, put together in all ways: its tokens are whole pieces.
class Splitter {
 public:
  Splitter(const std::string& splitting, const std::string& text) : text_(text) {
    std::set<std::string> parts;
    std::vector<std::string> merges;
    for (std::size_t count = 1; count <= text.size(); ++count) {
      for (std::size_t first = 0; first + count <= text.size(); ++first) {
        const std::string part = text.substr(first, count);
        if (!parts.insert(part).second) continue;
        tokens_.push_back(letters_of(part));
        for (std::size_t left = 1; left < count; ++left) {
          merges.push_back(letters_of(part.substr(0, left)) + " " + letters_of(part.substr(left)));
        }
      }
    }
    writer_.text("tokenizer.ggml.model", "gpt2");
    writer_.text("tokenizer.ggml.pre", splitting);
    writer_.texts("tokenizer.ggml.tokens", tokens_);
    writer_.i32s("tokenizer.ggml.token_type", std::vector<std::int32_t>(tokens_.size(), 1));
    writer_.texts("tokenizer.ggml.merges", merges);
    writer_.boolean("tokenizer.ggml.add_bos_token", false);
  }

  Pieces pieces() const {
    const std::string bytes = writer_.bytes();
    const GgufContents contents = parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf");
    const ModelTexts texts{"x.gguf", [&](const std::string& name) -> std::optional<std::string> {
                             if (name == "tokenizer.json") return gguf_tokenizer(contents.metadata);
                             return std::nullopt;
                           }};
    const Tokenizer tokenizer = Tokenizer::open(texts);
    Pieces out;
    for (const auto id : tokenizer.encode(text_, false)) {
      out.push_back(tokens_[static_cast<std::size_t>(id)]);
    }
    return out;
  }

 private:
  std::string text_;
  std::vector<std::string> tokens_;
  test::GgufWriter writer_;
};

void expect_pieces(const std::string& splitting, const Pieces& pieces) {
  std::string text;
  Pieces expected;
  for (const std::string& piece : pieces) {
    text += piece;
    expected.push_back(letters_of(piece));
  }
  EXPECT_EQ(Splitter(splitting, text).pieces(), expected) << splitting << " of " << text;
}

TEST(GgufSplitting, IsThatOfTheNameInTheFile) {
  const std::string ka = "\u0915", i = "\u093F";  // a letter and a mark that goes with it
  expect_pieces("qwen2", {ka, i, "1", "2"});
  expect_pieces("qwen35", {ka + i, "1", "2"});
  for (const char* name : {"llama-bpe", "lfm2", "dbrx", "glm4"}) {
    expect_pieces(name, {"it", "'s", " ", "123", "4", "!\n"});
  }
  for (const char* name : {"gpt-4o", "minimax-m2", "llama4"}) {
    expect_pieces(name, {"It's", "In", " ", "123", "4", "!\n"});
  }
  expect_pieces("seed-coder", {"it", "'s", "1", "2", "!", "\n"});
  for (const char* name : {"gpt-2", "exaone4"}) expect_pieces(name, {"it", "'s", "12", "!"});
  for (const char* name : {"refact", "starcoder"}) expect_pieces(name, {"it", "'s", "1", "2", "!"});
}

TEST(GgufSplitting, HasNoOtherNames) {
  EXPECT_EQ(find_splitting("default"), nullptr);
  EXPECT_EQ(find_splitting(""), nullptr);
  EXPECT_TRUE(splitting_names().starts_with("gpt-2, llama-bpe"));
}

/// Phi 3's tokens between turns take the blanks behind them, as its tokenizer.json says.
TEST(GgufSplitting, OfPhi3LeavesOutBlanksBehindTurns) {
  test::GgufWriter writer;
  writer.text("general.architecture", "phi3");
  writer.text("tokenizer.ggml.model", "llama");
  writer.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "a", "<|end|>", "<|endoftext|>"});
  writer.i32s("tokenizer.ggml.token_type", {2, 3, 1, 3, 3});
  writer.f32s("tokenizer.ggml.scores", {0, 0, 0, 0, 0});
  writer.u32("tokenizer.ggml.bos_token_id", 1);
  const std::string bytes = writer.bytes();
  const Json json =
      Json::parse(gguf_tokenizer(parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf").metadata));
  std::map<std::string, bool> takes;
  for (const Json& token : json["added_tokens"]) takes[token["content"]] = token["rstrip"];
  EXPECT_EQ(takes,
            (std::map<std::string, bool>{
                {"<unk>", false}, {"<s>", false}, {"<|end|>", true}, {"<|endoftext|>", false}}));
}

}  // namespace
}  // namespace dendrite
