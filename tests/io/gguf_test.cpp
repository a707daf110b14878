#include "io/gguf.h"

#include <cstring>

#include "io/gguf_model.h"
#include "io/open_checkpoint.h"
#include "support/gguf_writer.h"
#include "test_files.h"

namespace dendrite {
namespace {

using test::GgufWriter;

/// Contents, and the bytes that they are views of.
struct Parsed {
  std::string bytes;
  GgufContents contents;
  explicit Parsed(std::string file)
      : bytes(std::move(file)), contents(parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf")) {}
};

std::string of_bytes(std::size_t count) {
  return std::string(count, 'x');
}

TEST(Gguf, GivesNameTypeShapeAndBytesOfEveryTensor) {
  GgufWriter writer;
  writer.tensor("b", 8, {3, 64}, of_bytes(3 * 68));  // Q8_0
  writer.tensor("a", 0, {2}, "01234567");
  writer.tensor("scalar", 1, {}, "01");
  const Parsed file(writer.bytes());
  const auto& tensors = file.contents.tensors;
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].stored_type, "F32");
  EXPECT_EQ(std::memcmp(tensors[0].data, "01234567", 8), 0);
  EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{3, 64}));
  EXPECT_EQ(tensors[1].size_bytes, 3 * 68);
  EXPECT_EQ(tensors[1].file, "x.gguf");
  EXPECT_TRUE(tensors[2].shape.empty());
  EXPECT_EQ(tensors[2].size_bytes, 2);
}

TEST(Gguf, GivesMetadataByKeys) {
  GgufWriter writer;
  writer.u32("n", 7);
  writer.raw("small", 1, "\xff");
  writer.f32("x", 0.5F);
  writer.boolean("yes", true);
  writer.text("name", "a");
  writer.texts("names", {"a", "", "bc"});
  writer.i32s("ids", {3, -1});
  writer.f32s("scores", {1.5F});
  const Parsed file(writer.bytes());
  const GgufMetadata& says = file.contents.metadata;
  EXPECT_EQ(says.require_int("n"), 7);
  EXPECT_EQ(says.find_int("small"), -1);
  EXPECT_EQ(says.find_number("n"), 7.0);
  EXPECT_EQ(says.find_number("x"), 0.5);
  EXPECT_EQ(says.find_bool("yes"), true);
  EXPECT_EQ(says.require_string("name"), "a");
  EXPECT_EQ(says.require_strings("names"), (std::vector<std::string_view>{"a", "", "bc"}));
  EXPECT_EQ(says.find_ints("ids"), (std::vector<std::int64_t>{3, -1}));
  EXPECT_EQ(says.find_floats("scores"), (std::vector<float>{1.5F}));
  EXPECT_FALSE(says.find_int("none"));
  EXPECT_ERROR(says.require_int("none"), "x.gguf: key \"none\" is missing, expected an integer");
  EXPECT_ERROR(says.find_int("name"), "key \"name\" is \"a\", expected an integer");
  EXPECT_ERROR(says.find_int("n", {0, 6}), "key \"n\" is 7, expected 0 to 6");
  EXPECT_ERROR(says.find_int("ids"), "key \"ids\" is an array of 2 values, expected an integer");
  EXPECT_ERROR(says.find_string("x"), "key \"x\" is 0.500000, expected a string");
  EXPECT_ERROR(says.find_bool("n"), "expected true or false");
  EXPECT_ERROR(says.find_strings("ids"), "expected an array of strings");
  EXPECT_ERROR(says.find_ints("names"), "expected an array of integers");
  EXPECT_ERROR(says.find_floats("ids"), "expected an array of f32");
}

TEST(Gguf, RefusesWhatIsNoGgufFile) {
  EXPECT_ERROR(Parsed("GG"), "x.gguf: ends inside of its first four bytes");
  EXPECT_ERROR(Parsed("{\"a\":1}"), "begins with \"{\"a\"\", expected \"GGUF\"");
  GgufWriter old;
  old.version = 1;
  EXPECT_ERROR(Parsed(old.bytes()), "is of version 1, expected 2 or 3");
  GgufWriter swapped;
  swapped.version = 3U << 24;
  EXPECT_ERROR(Parsed(swapped.bytes()), "is big-endian");
}

TEST(Gguf, SaysWhereAFileIsCutShort) {
  GgufWriter writer;
  writer.text("name", "some text");
  writer.texts("names", {"a", "b"});
  writer.tensor("a", 0, {2, 4}, of_bytes(32));
  const std::string whole = writer.bytes();
  EXPECT_EQ(Parsed(whole).contents.tensors.size(), 1u);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(test::error_of([&] { (void)Parsed(whole.substr(0, size)); }), "") << size;
  }
  EXPECT_ERROR(
      Parsed(whole.substr(0, whole.size() - 1)),
      "tensor \"a\" begins at byte 0 of the data, and has 32, but the file holds only 31 of "
      "data (cut short?)");
}

TEST(Gguf, RefusesCountsBeyondTheFile) {
  const auto head = [](std::uint64_t tensors, std::uint64_t keys) {
    std::string out = GgufWriter().bytes();
    std::memcpy(&out[8], &tensors, 8);
    std::memcpy(&out[16], &keys, 8);
    return out;
  };
  EXPECT_ERROR(Parsed(head(std::uint64_t{1} << 62, 0)), "says it has 4611686018427387904 tensors");
  EXPECT_ERROR(Parsed(head(0, ~std::uint64_t{0})), "says it has 18446744073709551615 keys");
  GgufWriter array;  // of 2^61 numbers of 8 bytes: the product is 2^64
  array.raw("a", 9, std::string("\x0a\0\0\0\0\0\0\0\0\0\0\x20", 12));
  EXPECT_ERROR(Parsed(array.bytes()), "says it has 2305843009213693952 values in key \"a\"");
  GgufWriter text;
  text.raw("a", 8, std::string(8, '\xff'));
  EXPECT_ERROR(Parsed(text.bytes()),
               "ends inside of key \"a\": 18446744073709551615 bytes are expected");
}

TEST(Gguf, RefusesBrokenKeys) {
  GgufWriter twice;
  twice.u32("a", 1);
  twice.u32("a", 1);
  EXPECT_ERROR(Parsed(twice.bytes()), "key \"a\" is written twice");
  GgufWriter empty;
  empty.u32("", 1);
  EXPECT_ERROR(Parsed(empty.bytes()), "has a name of 0 bytes");
  GgufWriter kind;
  kind.raw("a", 13, "");
  EXPECT_ERROR(Parsed(kind.bytes()), "key \"a\" has a value of type 13, expected 0 to 12");
  GgufWriter deep;
  deep.raw("a", 9, std::string("\x09\0\0\0\1\0\0\0\0\0\0\0", 12));
  EXPECT_ERROR(Parsed(deep.bytes()), "key \"a\" is an array of arrays");
  GgufWriter boolean;
  boolean.raw("a", 7, "\x02");
  EXPECT_ERROR(Parsed(boolean.bytes()), "key \"a\" has a bool of 2, expected 0 or 1");
  GgufWriter alignment;
  alignment.u32("general.alignment", 24);
  EXPECT_ERROR(Parsed(alignment.bytes()),
               "key \"general.alignment\" is 24, expected a power of two");
}

TEST(Gguf, RefusesBrokenTensors) {
  const auto one = [](std::uint32_t type, const std::vector<std::int64_t>& shape,
                      std::uint64_t offset = 0) {
    GgufWriter writer;
    writer.tensor("a", 0, {8}, of_bytes(32));
    writer.tensor_at("b", type, shape, offset);
    return writer.bytes() + of_bytes(256);
  };
  EXPECT_EQ(Parsed(one(0, {8}, 32)).contents.tensors.size(), 2u);
  EXPECT_ERROR(Parsed(one(0, {8}, 0)),
               "expected byte 32, where the one before ends (they overlap)");
  EXPECT_ERROR(Parsed(one(0, {8}, 33)), "expected a multiple of 32");
  EXPECT_ERROR(Parsed(one(0, {8}, 64)), "expected byte 32 (before it is a hole)");
  EXPECT_ERROR(Parsed(one(0, {1000}, 32)), "and has 4000, but the file holds only");
  EXPECT_ERROR(Parsed(one(4, {8}, 32)), "tensor \"b\" is of type 4, expected the number of a type");
  EXPECT_ERROR(Parsed(one(12, {3, 128}, 32)),
               "has rows of 128 values, expected a multiple of 256, the block of Q4_K");
  EXPECT_ERROR(Parsed(one(0, {1, 1, 1, 1, 8}, 32)), "has 5 dimensions, expected at most 4");
  EXPECT_ERROR(Parsed(one(0, {0, 8}, 32)), "has a dimension of 0, expected 1 to 2^63 - 1");
  EXPECT_ERROR(Parsed(one(0, {-1}, 32)), "has a dimension of 18446744073709551615");
  EXPECT_ERROR(Parsed(one(0, {std::int64_t{1} << 40, std::int64_t{1} << 40}, 32)),
               "expected one of less than 2^63 bytes");
  GgufWriter twice;
  twice.tensor("a", 0, {8}, of_bytes(32));
  twice.tensor("a", 0, {8}, of_bytes(32));
  EXPECT_ERROR(Parsed(twice.bytes()), "tensor \"a\" is written twice");
}

TEST(Gguf, ObeysTheAlignmentThatAFileSays) {
  GgufWriter writer;
  writer.alignment = 128;
  writer.u32("general.alignment", 128);
  writer.tensor("a", 0, {1}, "0123");
  writer.tensor("b", 0, {1}, "4567");
  const Parsed file(writer.bytes());
  EXPECT_EQ(file.contents.tensors[1].data - file.contents.tensors[0].data, 128);
}

/// The least that a model of the Llama kind says.
GgufWriter small_model() {
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::uint32_t>>{{"embedding_length", 8},
                                                          {"feed_forward_length", 4},
                                                          {"block_count", 1},
                                                          {"context_length", 16},
                                                          {"attention.head_count", 2}}) {
    writer.u32("llama." + key, value);
  }
  writer.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  writer.tensor("token_embd.weight", 0, {3, 8}, of_bytes(96));
  return writer;
}

class GgufModelTest : public testing::Test {
 protected:
  GgufModel open(const GgufWriter& writer) {
    return GgufModel(folder_.write("m.gguf", writer.bytes()));
  }
  test::TempFolder folder_;
};

TEST_F(GgufModelTest, IsACheckpointUnderHuggingFacesNames) {
  GgufWriter writer = small_model();
  writer.tensor("blk.0.attn_v.weight", 0, {1, 8}, of_bytes(32));
  writer.tensor("blk.0.attn_rot_embd", 0, {1}, "0123");
  const GgufModel model = open(writer);
  EXPECT_EQ(model.names(),
            (std::vector<std::string_view>{"model.embed_tokens.weight",
                                           "model.layers.0.self_attn.v_proj.weight"}));
  EXPECT_EQ(model.matrix("model.embed_tokens.weight", 3, 8).stride, 32);
  EXPECT_TRUE(model.has_text("config.json"));
  EXPECT_FALSE(model.has_text("tokenizer.json"));
  EXPECT_NE(model.text("config.json", 1000).find("\"vocab_size\":3"), std::string::npos);
  EXPECT_ERROR(model.text("config.json", 10), "expected at most 10");
  EXPECT_ERROR(model.require("lm_head.weight", {3, 8}), "holds no tensor \"lm_head.weight\"");
  EXPECT_EQ(open_checkpoint((folder_.path() / "m.gguf").string(), WeightFiles::kRequire)->names(),
            model.names());
}

TEST_F(GgufModelTest, PutsRowsOfQAndKInOrder) {
  GgufWriter writer = small_model();  // heads of four
  std::string rows, bias;
  for (int i = 0; i < 8; ++i) {
    const std::vector<float> row(8, static_cast<float>(i));
    rows.append(reinterpret_cast<const char*>(row.data()), 32);
    bias.append(reinterpret_cast<const char*>(row.data()), 4);
  }
  writer.tensor("blk.0.attn_q.weight", 0, {8, 8}, rows);
  writer.tensor("blk.0.attn_q.bias", 0, {8}, bias);
  writer.tensor("blk.0.attn_v.bias", 0, {8}, bias);
  const GgufModel model = open(writer);
  const std::vector<float> expected{0, 2, 1, 3, 4, 6, 5, 7};
  std::vector<float> got;
  for (const StoredMatrix& part : model.stacked("model.layers.0.self_attn.q_proj.weight", 8, 8)) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      std::vector<float> values(8);
      part.format->widen(part, row, 0, values);
      got.push_back(values[0]);
    }
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(model.vector("model.layers.0.self_attn.q_proj.bias", 8), expected);
  EXPECT_EQ(model.vector("model.layers.0.self_attn.v_proj.bias", 8),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
}

/// Of experts in NVFP4, each with a number of its own.
TEST_F(GgufModelTest, TakesANumberForEachExpert) {
  const std::string name = "model.layers.0.block_sparse_moe.experts.up_proj.weight";
  const auto file = [](std::vector<float> numbers) {
    GgufWriter writer = small_model();
    std::string block(36, '\0');
    block[0] = 0x38;  // a scale of 1
    block[4] = 0x07;  // 6
    writer.tensor("blk.0.ffn_up_exps.weight", 40, {2, 1, 64}, block + block);
    writer.tensor("blk.0.ffn_up_exps.scale", 0, {std::ssize(numbers)},
                  {reinterpret_cast<const char*>(numbers.data()), numbers.size() * 4});
    return writer;
  };
  const GgufModel model = open(file({0.25F, 3}));
  std::vector<float> first, values(64);
  for (const std::int64_t expert : {0, 1}) {
    const StoredMatrix one = model.slice(name, {expert, 2}, 1, 64);
    EXPECT_EQ(one.rows, 1);
    one.format->widen(one, 0, 0, values);
    first.push_back(values[0]);
  }
  EXPECT_EQ(first, (std::vector<float>{1.5F, 18}));
  const GgufModel other = open(file({0.25F, 3, 1}));
  EXPECT_ERROR((void)other.slice(name, {0, 2}, 1, 64), "experts.up_proj.scale");
}

TEST_F(GgufModelTest, RefusesWhatItDoesNotCompute) {
  GgufWriter other;
  other.text("general.architecture", "bert");
  EXPECT_ERROR(open(other), "is \"bert\", expected one of llama, llama4, mistral3, qwen2, qwen3");
  EXPECT_ERROR(open(GgufWriter()), "key \"general.architecture\" is missing");
  GgufWriter experts = small_model();
  experts.u32("llama.expert_shared_count", 1);
  EXPECT_ERROR(open(experts), "key \"llama.expert_shared_count\" is 1, expected none");
  GgufWriter scale = small_model();
  scale.f32("llama.logit_scale", 0.5F);
  EXPECT_ERROR(open(scale), "key \"llama.logit_scale\" is 0.500000, expected none");
  GgufWriter part = small_model();
  part.u32("llama.rope.dimension_count", 2);
  EXPECT_ERROR(open(part), "key \"llama.rope.dimension_count\" is 2, expected 4");
  GgufWriter rope = small_model();
  rope.text("llama.rope.scaling.type", "longrope");
  EXPECT_ERROR(open(rope), "is \"longrope\", expected none, linear or yarn");
  GgufWriter factor = small_model();
  factor.text("llama.rope.scaling.type", "linear");
  EXPECT_ERROR(open(factor), "key \"llama.rope.scaling.factor\" is missing");
  GgufWriter tensor = small_model();
  tensor.tensor("blk.0.attn_qkv.weight", 0, {1, 8}, of_bytes(32));
  EXPECT_ERROR(open(tensor), "tensor \"blk.0.attn_qkv.weight\" is none that a model of");
  GgufWriter alone = small_model();
  alone.tensor("blk.0.attn_v.weight", 0, {1, 8}, of_bytes(32));
  alone.tensor("blk.0.attn_v.scale", 0, {1}, "0123");
  EXPECT_ERROR(open(alone), "is a scale of F32, expected one of NVFP4");
  GgufWriter causal = small_model();
  causal.boolean("llama.attention.causal", false);
  EXPECT_ERROR(open(causal), "key \"llama.attention.causal\" is false, expected true");
}

TEST_F(GgufModelTest, SaysWhatItDoesNotRead) {
  GgufWriter writer = small_model();
  writer.u32("llama.future_key", 1);
  const GgufModel model = open(writer);
  ASSERT_EQ(model.warnings().size(), 1u);
  EXPECT_NE(model.warnings()[0].find("is not read in llama.future_key"), std::string::npos);
}

TEST_F(GgufModelTest, RefusesAModelThatLacksAKey) {
  for (const char* gone :
       {"embedding_length", "feed_forward_length", "block_count", "context_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    std::string bytes = small_model().bytes();
    bytes.replace(bytes.find(gone), 1, "X");
    const auto file = folder_.write("m.gguf", bytes);
    EXPECT_ERROR(GgufModel(file), "key \"llama." + std::string(gone) + "\" is missing");
  }
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  EXPECT_ERROR(open(writer), "holds no tensor \"token_embd.weight\"");
}

TEST_F(GgufModelTest, NamesTheFileWhereAFolderHoldsOne) {
  folder_.write("m.gguf", small_model().bytes());
  EXPECT_ERROR(open_checkpoint(folder_.path().string(), WeightFiles::kRequire),
               "it holds weights only as *.gguf, which are models of their own: name the file");
}

}  // namespace
}  // namespace dendrite
