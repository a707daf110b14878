// Debug mode finds what wrote where it must not, and what it may write it leaves alone.
#include "kv/kv_debug.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "kv/kv_tree.h"
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
          .dtype = DType::kF32,
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

  void write(std::span<std::byte> memory, std::size_t at) { memory[at] ^= std::byte{1}; }
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
  const auto memory = store.page_memory(index_of(page));
  ASSERT_EQ(memory.before.size(), 64u);
  ASSERT_GE(memory.after.size(), 64u);
  debug.check_memory();
  for (const std::size_t at : {std::size_t{0}, std::size_t{63}}) {
    write(memory.before, at);
    const std::string found = violation_of([&] { debug.check_memory(); });
    EXPECT_NE(found.find(std::to_string(64 - at) + " bytes before its begin"), std::string::npos)
        << found;
    write(memory.before, at);
  }
  for (const std::size_t at : {std::size_t{0}, memory.after.size() - 1}) {
    write(memory.after, at);
    const std::string found = violation_of([&] { debug.check_memory(); });
    EXPECT_NE(found.find(std::to_string(at) + " bytes past its end"), std::string::npos) << found;
    write(memory.after, at);
  }
  debug.check_memory();
}

TEST_F(KvDebugTest, FindsALateWriteToAFreePageWhenItIsTaken) {
  const PageId page = *pool.try_acquire();
  pool.release(page);
  const auto memory = store.page_memory(index_of(page));
  EXPECT_EQ(std::to_integer<int>(memory.page[0]), 0xEF);  // 0xDEADBEEF, little end first
  EXPECT_EQ(std::to_integer<int>(memory.page[3]), 0xDE);
  write(memory.page, 17);
  const std::string found = violation_of([&] { (void)pool.try_acquire(); });
  EXPECT_NE(found.find("at byte 17 while it was free"), std::string::npos) << found;
}

TEST(KvDebugStore, TheCpuStoreHasRoomAroundItsPagesOnlyWhenItIsGuarded) {
  const auto backend = make_cpu_backend(ComputeType::kF32, 1);
  KvShape shape = guarded_shape();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    shape.dtype = dtype;
    shape.guarded = false;
    EXPECT_TRUE(backend->make_kv_store(shape)->page_memory(3).after.empty());
    shape.guarded = true;
    const auto store = backend->make_kv_store(shape);
    KvDebug debug(*store);
    PagePool pool(8, &debug);
    while (pool.try_acquire()) {
    }
    // All slots of all pages: reads, writes and copies stay within them.
    std::vector<float> k(8 * 4), v(8 * 4);
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = v[i] = static_cast<float>(i);
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
    for (std::int32_t page = 0; page + 1 < 8; ++page) {  // no two pages overlap
      const auto here = store->page_memory(page);
      const auto next = store->page_memory(page + 1);
      EXPECT_EQ(here.after.data() + here.after.size(), next.before.data());
      EXPECT_EQ(here.page.size(), next.page.size());
    }
  }
}

}  // namespace
}  // namespace dendrite
