// How large the pool of pages is, by the memory that is free: on paper, and in engines whose device
// says that it has so much.
#include "engine/kv_pool_size.h"

#include "support/engine_support.h"

namespace dendrite {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// A model of 16 GiB with 128 KiB a token, on a device of 80 GiB.
KvPoolWish wish_of(std::int64_t free_bytes, bool taken_at_once) {
  KvPoolWish wish;
  wish.token_bytes = 128 << 10;
  wish.weight_bytes = 16 * kGiB;
  wish.max_positions = 131072;
  wish.device = "a device";
  wish.memory = {80 * kGiB, free_bytes};
  wish.taken_at_once = taken_at_once;
  wish.pass_bytes = taken_at_once ? kGiB : 0;
  return wish;
}
std::int64_t bytes_of(const KvPoolWish& wish) {
  return pool_pages(wish) * wish.page_tokens * wish.token_bytes;
}

TEST(KvPoolSize, IsTwiceTheWeightsWhereThatIsFree) {
  EXPECT_EQ(bytes_of(wish_of(64 * kGiB, true)), 32 * kGiB);
  EXPECT_EQ(bytes_of(wish_of(64 * kGiB, false)), 32 * kGiB);
}

TEST(KvPoolSize, OfASmallModelIsTwoContextsOrHalfAGiBAndMoreOnAHost) {
  for (const bool at_once : {true, false}) {
    KvPoolWish wish = wish_of(64 * kGiB, at_once);
    wish.weight_bytes = 1 << 20;
    EXPECT_EQ(bytes_of(wish), 8 * kGiB);  // 2 x 32768 tokens
    wish.max_positions = 1024;
    EXPECT_EQ(bytes_of(wish), at_once ? kGiB / 2 : 4 * kGiB);
  }
}

TEST(KvPoolSize, LeavesPassesTheirMemoryAndAHostHalfOfIt) {
  EXPECT_EQ(bytes_of(wish_of(21 * kGiB, true)), 20 * kGiB);
  EXPECT_EQ(bytes_of(wish_of(21 * kGiB, false)), 21 * kGiB / 2);
}

TEST(KvPoolSize, NeverTakesMoreThanIsFree) {
  for (std::int64_t free_bytes = 0; free_bytes < 4 * kGiB; free_bytes += 37 << 20) {
    for (const bool at_once : {false, true}) {
      for (const std::int64_t page_tokens : {8, 16, 32}) {
        KvPoolWish wish = wish_of(free_bytes, at_once);
        wish.page_tokens = page_tokens;
        const std::int64_t left = free_bytes - wish.pass_bytes;
        if (left < 1024 * wish.token_bytes) {
          EXPECT_THROW(pool_pages(wish), Error) << free_bytes;
        } else {
          EXPECT_LE(bytes_of(wish), left);
          EXPECT_GE(pool_pages(wish) * page_tokens, 1024);
        }
      }
    }
  }
}

TEST(KvPoolSize, AskedForIsAsAskedUpToWhatIsFree) {
  KvPoolWish wish = wish_of(kGiB, true);  // all of which passes might take
  for (const std::int64_t tokens : {1, 17, 8192}) {
    wish.kv_tokens = tokens;
    EXPECT_EQ(pool_pages(wish), (tokens + 15) / 16);
  }
  for (const std::int64_t tokens : {std::int64_t{8193}, std::int64_t{1} << 62}) {
    wish.kv_tokens = tokens;
    EXPECT_ERROR(pool_pages(wish), "kv_tokens is " + std::to_string(tokens));
    EXPECT_ERROR(pool_pages(wish), "1.0 GiB of 80.0 GiB of a device are free beside the weights");
    EXPECT_ERROR(pool_pages(wish), "room for 8192 tokens, expected a kv_tokens (--kv-tokens) of");
  }
}

TEST(KvPoolSize, OfAFullDeviceIsAnErrorThatSaysWhatHelps) {
  const KvPoolWish wish = wish_of(kGiB, true);
  EXPECT_ERROR(pool_pages(wish), "kv_tokens is automatic: a token takes 131072 bytes");
  EXPECT_ERROR(pool_pages(wish), "of which passes may take 1.0 GiB");
  EXPECT_ERROR(pool_pages(wish), "a smaller model");
}

/// An engine on a device of 80 GiB, this much of which is free, and which takes pages at once.
Engine load_where_free(std::int64_t free_bytes, std::int64_t kv_tokens) {
  EngineOptions options;
  options.kv_tokens = kv_tokens;
  options.threads = 1;
  return handle_of(
      load_core(test::model_path("tinyllama").string(), options, [&](Numerics type, int threads) {
        auto backend = std::make_unique<test::SamplingBackend>(type, threads, "");
        backend->has = {80 * kGiB, free_bytes};
        return backend;
      }));
}

TEST(KvPoolSize, OfAnEngineIsThatOfItsDevicesFreeMemory) {
  const EngineInfo much = load_where_free(8 * kGiB, 0).info();
  EXPECT_LE(much.kv_tokens * much.kv_token_bytes, kGiB / 2);  // whole pages
  EXPECT_GT((much.kv_tokens + 16) * much.kv_token_bytes, kGiB / 2);
  const EngineInfo little = load_where_free(100 << 20, 0).info();
  EXPECT_LE(little.kv_tokens * little.kv_token_bytes, 100 << 20);
  EXPECT_GT(little.kv_tokens * little.kv_token_bytes, 99 << 20);
  EXPECT_ERROR(load_where_free(1 << 10, 0), "kv_tokens is automatic");
  EXPECT_ERROR(load_where_free(kGiB, std::int64_t{1} << 40), "kv_tokens is 1099511627776");
}

TEST(OutOfMemory, SaysWhatWasWantedWhatIsFreeAndWhatHelps) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1);
  const auto ask = [&] { return backend->make_buffer(std::int64_t{1} << 58); };  // 2^60 bytes
  EXPECT_ERROR(ask(), "1073741824.0 GiB of memory wanted");
  EXPECT_ERROR(ask(), "free (Cannot allocate memory)");
  EXPECT_ERROR(ask(), "--kv-tokens");
}

TEST(OutOfMemory, OfTheHostAtLoadIsAnError) {
  const auto load = [] {
    return load_core(test::model_path("tinyllama").string(), {},
                     [](Numerics, int) -> std::unique_ptr<Backend> { throw std::bad_alloc(); });
  };
  EXPECT_ERROR(load(), "the host is out of memory");
  EXPECT_ERROR(load(), "--kv-tokens");
}

}  // namespace
}  // namespace dendrite
