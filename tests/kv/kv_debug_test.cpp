// Debug mode finds what wrote where it must not, and what it may write it leaves alone.
#include "kv/kv_debug.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "backend/kv_parts.h"
#include "kv/kv_tree.h"
#include "support/paths.h"
#include "support/raw_pages.h"
#include "tests/kv/host_kv_store.h"

namespace dendrite {
namespace {

using testing::HostKvStore;

KvShape guarded_shape() {
  return {.layers = 2,
          .kv_heads = 1,
          .head_dim = 4,
          .pages = 8,
          .page_tokens = 8,
          .format = KvFormat::kF32,
          .guarded = true};
}

std::string violation_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

class KvDebugTest : public ::testing::Test {
 protected:
  HostKvStore store{guarded_shape()};
  KvDebug debug{store};
  PagePool pool{8, &debug};

  /// Changes a byte; once more, and it is as it was.
  void flip(PageId page, std::int64_t at) { test::flip(store, index_of(page), at); }

  KvStore::RawLayout layout = store.raw_layout();
};

TEST_F(KvDebugTest, PagesThatAreUsedAsTheyShouldPass) {
  std::vector<PageId> pages;
  for (int round = 0; round < 3; ++round) {
    while (const auto page = pool.try_acquire()) pages.push_back(*page);
    for (const PageId page : pages) {
      for (std::int64_t slot = 0; slot < 8; ++slot) store.store(index_of(page) * 8 + slot, 5);
    }
    store.copy_slots(0, 1, 8);
    debug.check_memory();
    for (const PageId page : pages) pool.release(page);
    pages.clear();
    debug.check_memory();
  }
}

TEST_F(KvDebugTest, FindsAWriteBesideAPage) {
  const PageId page = *pool.try_acquire();
  ASSERT_EQ(layout.before, 64);
  ASSERT_GE(layout.after, 64);
  debug.check_memory();
  for (const std::int64_t at : {0, 63}) {
    flip(page, at);
    const std::string found = violation_of([&] { debug.check_memory(); });
    EXPECT_NE(found.find(std::to_string(64 - at) + " bytes before its begin"), std::string::npos)
        << found;
    flip(page, at);
  }
  for (const std::int64_t at : {std::int64_t{0}, layout.after - 1}) {
    flip(page, layout.before + layout.bytes + at);
    const std::string found = violation_of([&] { debug.check_memory(); });
    EXPECT_NE(found.find(std::to_string(at) + " bytes past its end"), std::string::npos) << found;
    flip(page, layout.before + layout.bytes + at);
  }
  debug.check_memory();
}

TEST_F(KvDebugTest, FindsALateWriteToAFreePageWhenItIsTaken) {
  const PageId page = *pool.try_acquire();
  pool.release(page);
  std::vector<std::byte> memory(static_cast<std::size_t>(layout.page_bytes()));
  store.read_raw(index_of(page), memory);
  EXPECT_EQ(std::to_integer<int>(memory[64]), 0xEF);  // 0xDEADBEEF, little end first
  EXPECT_EQ(std::to_integer<int>(memory[67]), 0xDE);
  flip(page, layout.before + 17);
  const std::string found = violation_of([&] { (void)pool.try_acquire(); });
  EXPECT_NE(found.find("at byte 17 while it was free"), std::string::npos) << found;
}

TEST(KvDebugStore, ADevicesStoreHasRoomAroundItsPagesOnlyWhenItIsGuarded) {
  const auto backend = test::make_backend(Numerics::kF32, 1, test::kernel_paths().front());
  KvShape shape = guarded_shape();
  for (const KvFormat format : test::kKvFormats) {
    shape.format = format;
    shape.guarded = false;
    EXPECT_EQ(backend->make_kv_store(shape)->raw_layout().after, 0);
    shape.guarded = true;
    const auto store = backend->make_kv_store(shape);
    EXPECT_EQ(store->raw_layout().before, 64);
    KvDebug debug(*store);
    PagePool pool(8, &debug);
    while (pool.try_acquire()) {
    }
    // All slots of all pages: reads, writes and copies stay within them.
    std::vector<float> k(8 * 4), v(8 * 4);
    // (Four bits each, which all formats have.)
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = v[i] = static_cast<float>(i % 15);
    for (std::int32_t page = 0; page < 8; ++page) {
      for (std::int64_t layer = 0; layer < 2; ++layer) store->write(page, layer, 8, k, v);
    }
    store->copy_slots(0, 7, 8);
    store->copy_slots(7, 0, 3);
    debug.check_memory();
    std::vector<float> k_read(k.size()), v_read(v.size());
    store->read(7, 1, 8, k_read, v_read);
    EXPECT_EQ(k_read, k);
    EXPECT_EQ(v_read, v);
  }
}

/// In a store of one part and in each of two.
TEST(KvDebugStore, EveryByteOfADevicesPagesIsWatchedAndBelongsToOnePage) {
  const auto backend = test::make_backend(Numerics::kF32, 1, test::kernel_paths().front());
  for (const std::size_t watched : {0, 1, 2}) {
    KvShape shape = guarded_shape();
    if (watched > 0) shape.wide = {1, 2, 8};
    const auto store = make_kv_stores(*backend, shape);
    KvStore& part_of_store = store->part(watched == 2 ? 1 : 0);
    const KvStore::RawLayout layout = part_of_store.raw_layout();
    KvDebug debug(*store);
    PagePool pool(8, &debug);
    std::vector<PageId> pages;
    while (const auto page = pool.try_acquire()) pages.push_back(*page);
    for (const PageId page : pages) pool.release(page);
    for (std::int64_t part = 0; part < layout.parts; ++part) {
      for (std::int64_t at = 0; at < layout.part_bytes(); at += 13) {
        const std::int64_t byte = part * layout.part_bytes() + at;
        test::flip(part_of_store, 3, byte);
        const std::string found = violation_of([&] { debug.check_memory(); });
        EXPECT_TRUE(found.starts_with("KvDebug: page 3 was written to")) << byte << ": " << found;
        test::flip(part_of_store, 3, byte);
      }
    }
    debug.check_memory();
  }
}

}  // namespace
}  // namespace dendrite
