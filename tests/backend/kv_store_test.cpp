// Pages out of the store and back, bit for bit: what snapshots are made of.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "quant/e4m3.h"
#include "support/paths.h"

namespace dendrite {
namespace {

std::vector<std::byte> random_bytes(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(static_cast<std::size_t>(count));
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

class KvStoreTest : public ::testing::TestWithParam<std::tuple<KvFormat, int, int, bool>> {
 protected:
  KvStoreTest() {
    shape_.layers = 3;
    shape_.kv_heads = 2;
    shape_.pages = 3;
    shape_.format = std::get<0>(GetParam());
    shape_.head_dim = std::get<1>(GetParam());
    shape_.page_tokens = std::get<2>(GetParam());
    shape_.values_are_keys = std::get<3>(GetParam());
    store_ = backend_->make_kv_store(shape_);
  }

  std::vector<std::byte> exported(std::int32_t page, std::int32_t tokens) const {
    std::vector<std::byte> out = random_bytes(shape_.page_bytes(), 99);
    store_->export_page(page, tokens, out);
    return out;
  }
  /// One value of K (0) or V (1) in the layout of snapshots, widened.
  float value(const std::vector<std::byte>& bytes, std::int64_t layer, std::int64_t head,
              std::int64_t part, std::int64_t token, std::int64_t i) const {
    const std::int64_t run = shape_.values_are_keys ? layer * shape_.kv_heads + head
                                                    : (layer * shape_.kv_heads + head) * 2 + part;
    const std::byte* vector =
        bytes.data() + (run * shape_.page_tokens + token) * shape_.vector_bytes();
    switch (shape_.format) {
      case KvFormat::kF32: {
        float out;
        std::memcpy(&out, vector + i * 4, 4);
        return out;
      }
      case KvFormat::kBF16: {
        BF16 out;
        std::memcpy(&out, vector + i * 2, 2);
        return to_f32(out);
      }
      case KvFormat::kFP8:
        break;
    }
    return e4m3_value(std::to_integer<std::uint8_t>(vector[i])) *
           std::ldexp(1.0f, std::to_integer<int>(vector[shape_.head_dim]) - 127);
  }

  KvShape shape_;
  std::unique_ptr<Backend> backend_ =
      test::make_backend(Numerics::kF32, 1, test::kernel_paths().front());
  std::unique_ptr<KvStore> store_;
};

TEST_P(KvStoreTest, AnyBitsComeBack) {
  const std::vector<std::byte> bytes = random_bytes(shape_.page_bytes(), 1);  // NaNs among them
  store_->import_page(1, random_bytes(shape_.page_bytes(), 2));
  store_->import_page(2, random_bytes(shape_.page_bytes(), 3));
  store_->import_page(1, bytes);
  EXPECT_EQ(exported(1, static_cast<std::int32_t>(shape_.page_tokens)), bytes);
  EXPECT_EQ(exported(2, static_cast<std::int32_t>(shape_.page_tokens)),
            random_bytes(shape_.page_bytes(), 3));
  EXPECT_EQ(exported(0, 5), std::vector<std::byte>(bytes.size(), std::byte{0}));
}

TEST_P(KvStoreTest, TheLayoutIsTheOneThatIsDocumented) {
  store_->import_page(0, random_bytes(shape_.page_bytes(), 4));
  const auto slot = static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim);
  for (const std::int32_t tokens : {0, 1, 4, 7, static_cast<int>(shape_.page_tokens)}) {
    const std::vector<std::byte> bytes = exported(0, tokens);
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<float> k(slot * static_cast<std::size_t>(shape_.page_tokens));
      std::vector<float> v(k.size());
      store_->read(0, layer, static_cast<std::int32_t>(shape_.page_tokens), k, v);
      for (std::int64_t token = 0; token < shape_.page_tokens; ++token) {
        for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
          for (std::int64_t i = 0; i < shape_.head_dim; ++i) {
            const auto at =
                static_cast<std::size_t>((token * shape_.kv_heads + head) * shape_.head_dim + i);
            const float keys = token < tokens ? k[at] : 0;
            const float values = token < tokens ? v[at] : 0;
            const float got_keys = value(bytes, layer, head, 0, token, i);
            const float got_values = value(bytes, layer, head, 1, token, i);
            ASSERT_EQ(std::memcmp(&got_keys, &keys, 4), 0) << token << " of " << tokens;
            ASSERT_EQ(std::memcmp(&got_values, &values, 4), 0) << token << " of " << tokens;
          }
        }
      }
    }
  }
}

TEST_P(KvStoreTest, WhatIsWrittenIsReadAndLeavesOtherTokensAlone) {
  const auto page_tokens = static_cast<std::int32_t>(shape_.page_tokens);
  const std::vector<std::byte> before = random_bytes(shape_.page_bytes(), 5);
  store_->import_page(1, before);
  const std::int32_t tokens = 5;
  const auto count = static_cast<std::size_t>(tokens * shape_.kv_heads * shape_.head_dim);
  std::vector<float> k(count), v(count);
  for (std::size_t i = 0; i < count; ++i) {  // exact in every format
    k[i] = static_cast<float>(static_cast<int>(i * 7 % 15) - 7);
    v[i] = static_cast<float>(static_cast<int>(i * 11 % 13) - 6);
  }
  store_->write(1, 2, tokens, k, shape_.values_are_keys ? std::span<const float>() : v);
  if (shape_.values_are_keys) v = k;
  std::vector<float> got_k(count), got_v(count);
  store_->read(1, 2, tokens, got_k, got_v);
  EXPECT_EQ(got_k, k);
  EXPECT_EQ(got_v, v);
  // Of its page, the other tokens of that layer, and the other layers.
  const std::vector<std::byte> after = exported(1, page_tokens);
  const std::int64_t vector_bytes = shape_.vector_bytes();
  const std::int64_t of_layer = shape_.page_bytes() / shape_.layers;
  for (std::int64_t i = 0; i < shape_.page_bytes(); ++i) {
    if (i >= 2 * of_layer && i / vector_bytes % page_tokens < tokens) continue;
    ASSERT_EQ(after[static_cast<std::size_t>(i)], before[static_cast<std::size_t>(i)]) << i;
  }
}

TEST_P(KvStoreTest, RefusesOtherSizes) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(shape_.page_bytes()) + 1);
  EXPECT_THROW(store_->import_page(0, bytes), Error);
  EXPECT_THROW(store_->export_page(0, 1, bytes), Error);
  bytes.pop_back();
  EXPECT_THROW(store_->import_page(3, bytes), Error);
  EXPECT_THROW(store_->export_page(-1, 1, bytes), Error);
  EXPECT_THROW(store_->export_page(0, static_cast<std::int32_t>(shape_.page_tokens) + 1, bytes),
               Error);
}

/// Copies that wait for each other's company, some of which read what others wrote or write what
/// others read, against the same one after the other.
TEST_P(KvStoreTest, CopiesOfAStepAreThoseOneAfterTheOther) {
  KvShape shape = shape_;
  shape.pages = 100;
  const auto together = backend_->make_kv_store(shape);
  const auto apart = backend_->make_kv_store(shape);
  for (std::int32_t page = 0; page < 100; ++page) {
    const std::vector<std::byte> bytes =
        random_bytes(shape.page_bytes(), static_cast<std::uint32_t>(page));
    together->import_page(page, bytes);
    apart->import_page(page, bytes);
  }
  const auto page_tokens = static_cast<std::int32_t>(shape.page_tokens);
  const auto copy = [&](std::int32_t from, std::int32_t to, std::int32_t tokens) {
    together->copy_slots(from, to, tokens);
    apart->copy_slots(from, to, tokens);
    apart->flush_copies();
  };
  for (std::int32_t i = 0; i < 50; ++i) copy(i, 99 - i, 1 + i % page_tokens);  // apart from others
  for (std::int32_t i = 0; i < 20; ++i) copy(7, 60 + i, page_tokens);          // many of one page
  copy(60, 8, page_tokens);                                                    // of a copy
  copy(9, 60, 1 + page_tokens / 2);                                            // over what was read
  for (std::int32_t i = 0; i < 10; ++i) copy(20 + i, 21 + i, page_tokens);     // a chain
  for (std::int32_t page = 0; page < 100; ++page) {
    std::vector<std::byte> got(static_cast<std::size_t>(shape.page_bytes()));
    std::vector<std::byte> expected = got;
    together->export_page(page, page_tokens, got);
    apart->export_page(page, page_tokens, expected);
    ASSERT_EQ(got, expected) << page;
  }
}

TEST(KvStoreBytes, PagesInFp8TakeHalfOfThoseInBf16) {
  const auto backend = test::make_backend(Numerics::kBF16, 1, test::kernel_paths().front());
  for (const std::int64_t head_dim : {64, 80, 128}) {
    for (const std::int64_t page_tokens : {16, 32}) {
      KvShape shape{2, 4, head_dim, 3, page_tokens, KvFormat::kBF16};
      const std::int64_t bf16 = backend->make_kv_store(shape)->raw_layout().page_bytes();
      shape.format = KvFormat::kFP8;
      const std::int64_t fp8 = backend->make_kv_store(shape)->raw_layout().page_bytes();
      EXPECT_GE(2 * fp8, bf16);
      EXPECT_LE(static_cast<double>(fp8), 0.52 * static_cast<double>(bf16)) << head_dim;
      EXPECT_EQ(shape.page_bytes(), page_tokens * 2 * 2 * 4 * (head_dim + 1));
    }
  }
}

TEST(KvStoreBytes, PagesWhoseValuesAreKeysTakeHalf) {
  const auto backend = test::make_backend(Numerics::kBF16, 1, test::kernel_paths().front());
  for (const KvFormat format : test::kKvFormats) {
    for (const std::int64_t page_tokens : {8, 16, 32}) {
      KvShape shape{2, 1, 576, 3, page_tokens, format};
      const std::int64_t both = backend->make_kv_store(shape)->raw_layout().page_bytes();
      const std::int64_t page_bytes = shape.page_bytes();
      shape.values_are_keys = true;
      EXPECT_EQ(2 * shape.page_bytes(), page_bytes);
      // (CPUs keep V in whole lines, GPUs begin pages on 16 bytes.)
      const std::int64_t keys = backend->make_kv_store(shape)->raw_layout().page_bytes();
      EXPECT_LE(2 * keys, both + 2 * shape.layers * 64) << name_of(format);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, KvStoreTest,
                         ::testing::Combine(::testing::ValuesIn(test::kKvFormats),
                                            ::testing::Values(64, 80, 6, 7),
                                            ::testing::Values(8, 16, 32), ::testing::Bool()));

}  // namespace
}  // namespace dendrite
