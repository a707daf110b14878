// Tokenizers out of GGUF files, against what transformers makes of the folders they came from.
#include "support/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include "dendrite/error.h"
#include "golden.h"
#include "io/gguf.h"
#include "io/gguf_tokenizer.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace dendrite {
namespace {

using test::Json;
using Ids = std::vector<std::int32_t>;

ModelTexts texts_of(const GgufMetadata& metadata) {
  return {"x.gguf", [&metadata](const std::string& name) -> std::optional<std::string> {
            if (name == "tokenizer.json") return gguf_tokenizer(metadata);
            if (name == "tokenizer_config.json") return gguf_tokenizer_config(metadata);
            return std::nullopt;
          }};
}

GgufContents parse(const std::string& bytes) {
  return parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf");
}

std::string error_of(const test::GgufWriter& writer) {
  const std::string bytes = writer.bytes();
  const GgufContents contents = parse(bytes);
  try {
    (void)Tokenizer::open(texts_of(contents.metadata));
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

struct Case {
  const char* name;
  const char* splitting;
};

TEST(GgufTokenizer, GivesTheTokensOfTransformers) {
  const Json texts = test::read_json(test::text_data() / "texts.json");
  for (const Case& one : {Case{"gpt2", "gpt-2"}, Case{"llama3", "llama-bpe"},
                          Case{"qwen2", "qwen2"}, Case{"llama2", ""}}) {
    const auto folder = test::text_data() / "tokenizers" / one.name;
    test::GgufWriter writer;
    test::put_tokenizer(writer, folder, one.splitting);
    const std::string bytes = writer.bytes();
    const GgufContents contents = parse(bytes);
    const Tokenizer tokenizer = Tokenizer::open(texts_of(contents.metadata));
    const Tokenizer folders = Tokenizer::open(folder);
    EXPECT_EQ(tokenizer.bos_id(), folders.bos_id()) << one.name;
    EXPECT_EQ(tokenizer.eos_id(), folders.eos_id()) << one.name;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i].get<std::string>();
      // A token of tokenizer_config.json that takes the blanks around it, as no GGUF file can say.
      if (text.find("<extra>") != std::string::npos) continue;
      const Ids ids = folders.encode(text, false);
      EXPECT_EQ(tokenizer.encode(text, false), ids) << one.name << " " << texts[i];
      EXPECT_EQ(tokenizer.decode(ids, false), folders.decode(ids, false)) << one.name;
    }
  }
}

TEST(GgufTokenizer, PutsTheBeginningInFrontWhereTheFileSaysSo) {
  test::GgufWriter writer;
  test::put_tokenizer(writer, test::text_data() / "tokenizers/llama2", "");
  const std::string bytes = writer.bytes();
  const GgufContents contents = parse(bytes);
  const Tokenizer tokenizer = Tokenizer::open(texts_of(contents.metadata));
  const Tokenizer folders = Tokenizer::open(test::text_data() / "tokenizers/llama2");
  EXPECT_EQ(tokenizer.encode("hello", true), folders.encode("hello", true));
  EXPECT_EQ(tokenizer.encode("hello", true).front(), *tokenizer.bos_id());
}

TEST(GgufTokenizer, LeavesOutTokensThatFillAVocabularyUp) {
  test::GgufWriter writer;
  test::put_tokenizer(writer, test::text_data() / "tokenizers/gpt2", "gpt-2", 600);
  const std::string bytes = writer.bytes();
  const GgufContents contents = parse(bytes);
  const Tokenizer tokenizer = Tokenizer::open(texts_of(contents.metadata));
  EXPECT_EQ(tokenizer.vocab_size(), 521);
  EXPECT_FALSE(tokenizer.token_to_id("[PAD599]"));
}

TEST(GgufTokenizer, IsTheFilesOwnTokenizerJsonWhereItHoldsOne) {
  std::ifstream in(test::text_data() / "tokenizers/bare/tokenizer.json");
  const std::string json(std::istreambuf_iterator<char>(in), {});
  test::GgufWriter writer;
  writer.text("tokenizer.huggingface.json", json);
  const std::string bytes = writer.bytes();
  EXPECT_EQ(gguf_tokenizer(parse(bytes).metadata), json);
}

TEST(GgufTokenizer, HasTheChatTemplatesOfTheFile) {
  test::GgufWriter writer;
  writer.text("tokenizer.chat_template", "one {{ messages[0].content }}");
  writer.texts("tokenizer.chat_templates", {"tool_use"});
  writer.text("tokenizer.chat_template.tool_use", "tools {{ messages[0].content }}");
  const std::string bytes = writer.bytes();
  const GgufContents contents = parse(bytes);
  const auto chat = ChatTemplate::open(texts_of(contents.metadata));
  const char* const messages = R"([{"role": "user", "content": "hi"}])";
  EXPECT_EQ(chat.render(messages), "one hi");
  EXPECT_EQ(chat.render(messages, {.tools_json = R"([{"name": "f"}])"}), "tools hi");
}

TEST(GgufTokenizer, NeedsNoMergesAndNoSplittingWhereTokensAreCharacters) {
  test::GgufWriter writer;
  writer.text("tokenizer.ggml.model", "gpt2");
  writer.text("tokenizer.ggml.pre", "default");
  writer.texts("tokenizer.ggml.tokens", {"a", "\u0120", "<s>"});
  writer.i32s("tokenizer.ggml.token_type", {1, 1, 3});
  EXPECT_EQ(error_of(writer), "none");
}

TEST(GgufTokenizer, ReadsPastMergesThatMakeNoToken) {
  test::GgufWriter writer;
  writer.text("tokenizer.ggml.model", "gpt2");
  writer.text("tokenizer.ggml.pre", "gpt-2");
  writer.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "ba"});
  writer.i32s("tokenizer.ggml.token_type", {1, 1, 1, 5});  // the last one unused
  writer.texts("tokenizer.ggml.merges", {"b b", "b a", "a b", "a c"});
  EXPECT_EQ(error_of(writer), "none");
  const std::string bytes = writer.bytes();
  const Json json = Json::parse(gguf_tokenizer(parse(bytes).metadata));
  EXPECT_EQ(json["model"]["merges"], Json::array({"a b"}));
}

/// Gemma 4's: blanks are characters and bytes stand in as SentencePiece has it, merges are told.
TEST(GgufTokenizer, OfGemma4MergesAsTheFileSays) {
  test::GgufWriter writer;
  writer.text("tokenizer.ggml.model", "gemma4");
  writer.texts("tokenizer.ggml.tokens", {"<unk>", "<bos>", "a", "b", "ab", "\u2581", "\u2581ab",
                                         "<0xC3>", "<0xA9>", "\n", "\n\n"});
  writer.i32s("tokenizer.ggml.token_type", {2, 3, 1, 1, 1, 1, 1, 6, 6, 1, 1});
  writer.texts("tokenizer.ggml.merges", {"a b", "\u2581 ab", "\n \n"});
  writer.boolean("tokenizer.ggml.add_space_prefix", false);
  writer.u32("tokenizer.ggml.bos_token_id", 1);
  writer.u32("tokenizer.ggml.unknown_token_id", 0);
  const std::string bytes = writer.bytes();
  const GgufContents contents = parse(bytes);
  const Tokenizer tokenizer = Tokenizer::open(texts_of(contents.metadata));
  const std::string text = "ab ab \u00e9\n\n\n";
  EXPECT_EQ(tokenizer.encode(text, false), (Ids{4, 6, 5, 7, 8, 10, 9}));
  EXPECT_EQ(tokenizer.encode("b", true), (Ids{1, 3}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
}

TEST(GgufTokenizer, SaysWhatIsBroken) {
  const auto says = [](const test::GgufWriter& writer, const std::string& expected) {
    const std::string error = error_of(writer);
    EXPECT_NE(error.find(expected), std::string::npos) << error;
  };
  test::GgufWriter kind;
  kind.text("tokenizer.ggml.model", "t5");
  says(kind, "key \"tokenizer.ggml.model\" is \"t5\", expected gpt2, llama or gemma4");

  const auto start = [](const char* model) {
    test::GgufWriter writer;
    writer.text("tokenizer.ggml.model", model);
    writer.text("tokenizer.ggml.pre", "gpt-2");
    return writer;
  };
  test::GgufWriter none = start("gpt2");
  says(none, "key \"tokenizer.ggml.tokens\" is missing, expected an array of strings");

  test::GgufWriter types = start("gpt2");
  types.texts("tokenizer.ggml.tokens", {"a", "b"});
  says(types, "key \"tokenizer.ggml.token_type\" is missing, expected an array of 2");
  types.i32s("tokenizer.ggml.token_type", {1, 7});
  says(types, "types of tokens from 1 to 6 (got 7)");

  test::GgufWriter twice = start("gpt2");
  twice.texts("tokenizer.ggml.tokens", {"a", "a"});
  twice.i32s("tokenizer.ggml.token_type", {1, 1});
  says(twice, "each text once (\"a\" stands twice)");

  test::GgufWriter whole = start("gpt2");
  whole.texts("tokenizer.ggml.tokens", {"a", "ab"});
  whole.i32s("tokenizer.ggml.token_type", {1, 1});
  says(whole,
       "key \"tokenizer.ggml.merges\" is missing, expected an array of strings, as token "
       "\"ab\" is merged of others");
  whole.texts("tokenizer.ggml.merges", {});
  whole.u32("tokenizer.ggml.bos_token_id", 2);
  says(whole, "key \"tokenizer.ggml.bos_token_id\" is 2, expected the id of one of 2 tokens");

  test::GgufWriter bos = start("gpt2");
  bos.texts("tokenizer.ggml.tokens", {"a"});
  bos.i32s("tokenizer.ggml.token_type", {1});
  bos.texts("tokenizer.ggml.merges", {});
  bos.boolean("tokenizer.ggml.add_bos_token", true);
  says(bos, "key \"tokenizer.ggml.bos_token_id\" is missing, expected the id that");

  test::GgufWriter splitting;
  splitting.text("tokenizer.ggml.model", "gpt2");
  splitting.texts("tokenizer.ggml.tokens", {"a", "ab"});
  splitting.i32s("tokenizer.ggml.token_type", {1, 1});
  says(splitting, "key \"tokenizer.ggml.pre\" is missing, expected one of gpt-2, llama-bpe");

  test::GgufWriter scores = start("llama");
  scores.texts("tokenizer.ggml.tokens", {"a"});
  scores.i32s("tokenizer.ggml.token_type", {1});
  says(scores, "key \"tokenizer.ggml.scores\" is missing, expected an array of 1");

  test::GgufWriter bytes = start("gpt2");
  bytes.texts("tokenizer.ggml.tokens", {"\xff"});
  bytes.i32s("tokenizer.ggml.token_type", {1});
  bytes.texts("tokenizer.ggml.merges", {});
  says(bytes, "no UTF-8");
}

}  // namespace
}  // namespace dendrite
