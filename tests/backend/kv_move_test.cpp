// K and V that are moved to other pages and positions (Backend::move_kv): the bits of the formula
// on every device, and what they are worth beside K that is computed there afresh.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "kv_move_support.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::Angles;
using testing_support::fill;
using testing_support::Image;
using testing_support::Random;
using testing_support::runs_of;

struct NamedRope {
  const char* name;
  RopeConfig rope;
};
const std::vector<NamedRope> kRopes = {
    {"default", {}},
    {"default, 5e5", {.theta = 5e5}},
    {"linear", {.type = RopeType::kLinear, .factor = 2.5}},
    {"dynamic", {.type = RopeType::kDynamic, .factor = 2.0, .max_positions = 1 << 17}},
    {"llama3",
     {.type = RopeType::kLlama3, .theta = 5e5, .factor = 8.0, .original_positions = 8192}},
    {"yarn", {.type = RopeType::kYarn, .theta = 1e6, .factor = 4.0, .original_positions = 32768}},
};

/// Moves that go forward, backward, by nothing and far, over borders of blocks of angles; all
/// sources are in the first half of the pages, all targets in the second.
std::vector<KvMove> some_runs(const KvShape& shape) {
  const auto tokens = static_cast<std::int32_t>(shape.page_tokens);
  const std::int64_t half = shape.pages / 2 * shape.page_tokens;
  return {
      {0, half, tokens, 0, 17},
      {tokens, half + tokens, tokens, 1000, 250},
      {2 * tokens, half + 2 * tokens, tokens, 77, 77},
      {3 * tokens + 1, half + 3 * tokens + 4, 3, 255, 99'999},
      {3 * tokens + 4, half + 4 * tokens, 1, 100'000, 3},
      {3 * tokens + 5, half + 5 * tokens + 7, 1, 5, 6},
  };
}

struct KindOfPages {
  KvFormat format;
  bool values_are_keys;
};
std::vector<KindOfPages> kinds_of_pages() {
  std::vector<KindOfPages> kinds;
  for (const KvFormat format : test::kKvFormats) {
    for (const bool values_are_keys : {false, true}) kinds.push_back({format, values_are_keys});
  }
  return kinds;
}

/// Of a value, over it, at most.
double rounding_of(KvFormat format) {
  return format == KvFormat::kF32 ? 6e-8 : format == KvFormat::kBF16 ? 1.0 / 256 : 1.0 / 16;
}

class KvMoveOnPath : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend(int threads = 2) const {
    return test::make_backend(Numerics::kF32, threads, GetParam());
  }
};

TEST_P(KvMoveOnPath, HasTheBitsOfTheFormula) {
  struct Heads {
    std::int64_t head_dim, rotary_dim, kv_heads;
  };
  const std::vector<Heads> heads = {{64, 64, 2},  {128, 128, 3}, {80, 80, 1}, {128, 32, 2},
                                    {96, 48, 1},  {25, 24, 2},   {7, 6, 3},   {7, 4, 1},
                                    {40, 0, 2},   {256, 256, 1}, {72, 20, 2}, {10, 10, 2},
                                    {512, 64, 1}, {72, 64, 2}};
  const auto backend = this->backend();
  for (const NamedRope& named : kRopes) {
    for (const Heads& h : heads) {
      if (h.rotary_dim == 0 && named.rope.theta != 5e5) continue;
      Angles angles(*backend, named.rope, std::max<std::int64_t>(4, h.rotary_dim));
      for (const auto& [format, values_are_keys] : kinds_of_pages()) {
        SCOPED_TRACE(std::string(named.name) + ", head_dim " + std::to_string(h.head_dim) +
                     ", rotary_dim " + std::to_string(h.rotary_dim) + ", " + name_of(format) +
                     (values_are_keys ? ", values are keys" : ""));
        const auto store = backend->make_kv_store(
            {3, h.kv_heads, h.head_dim, 12, 8, format, false, values_are_keys});
        fill(*store, 7);
        const std::vector<KvMove> runs = some_runs(store->shape());
        KvMoves moves = angles.moves(*store, runs);
        moves.rotary_dim = h.rotary_dim;
        Image expected(*store);
        expected.apply(moves, angles);
        backend->move_kv(moves);
        EXPECT_TRUE(Image(*store) == expected);
        if (HasFailure()) return;
      }
    }
  }
}

/// Distance of what was moved from rotating back and on exactly, over the size of the pair.
TEST_P(KvMoveOnPath, IsWithinOneRoundingOfDoublePrecision) {
  const auto backend = this->backend();
  for (const NamedRope& named : kRopes) {
    for (const std::int64_t dim : {64, 128}) {
      for (const KvFormat format : test::kKvFormats) {
        SCOPED_TRACE(std::string(named.name) + ", " + name_of(format));
        const std::int64_t half = dim / 2;
        Angles angles(*backend, named.rope, dim);
        const auto store = backend->make_kv_store({2, 2, dim, 12, 16, format});
        fill(*store, 3);
        const Image before(*store);
        const std::vector<KvMove> runs = some_runs(store->shape());
        backend->move_kv(angles.moves(*store, runs));
        const Image after(*store);
        const double rounding = rounding_of(format);
        double worst = 0;
        for (const KvMove& run : runs) {
          for (std::int64_t i = 0; i < half; ++i) {
            const std::int64_t t = run.count - 1;
            const double a = static_cast<double>(before.get(run.from_slot + t, 1, 1, 0, i));
            const double b = static_cast<double>(before.get(run.from_slot + t, 1, 1, 0, half + i));
            const double by =
                angles.angle(run.new_position + t, i) - angles.angle(run.old_position + t, i);
            const double da = a * std::cos(by) - b * std::sin(by) -
                              static_cast<double>(after.get(run.to_slot + t, 1, 1, 0, i));
            const double db = b * std::cos(by) + a * std::sin(by) -
                              static_cast<double>(after.get(run.to_slot + t, 1, 1, 0, half + i));
            worst = std::max(worst, std::hypot(da, db) / std::hypot(a, b));
          }
        }
        // f32: the tables' and the operations' own roundings beside it.
        EXPECT_LE(worst, format == KvFormat::kF32 ? 6e-7 : rounding + 1e-6);
      }
    }
  }
}

TEST_P(KvMoveOnPath, GoesFromEveryOffsetToEveryOffset) {
  const auto backend = this->backend();
  Angles angles(*backend, {}, 16);
  for (const std::int64_t page_tokens : {8, 16, 32}) {
    for (const auto& [format, values_are_keys] : kinds_of_pages()) {
      const auto store =
          backend->make_kv_store({2, 2, 16, 8, page_tokens, format, false, values_are_keys});
      const std::int64_t step = page_tokens == 32 ? 3 : 1;
      for (std::int64_t from = 0; from < page_tokens; ++from) {
        for (std::int64_t to = from % step; to < page_tokens; to += step) {
          fill(*store, 5);
          // Over two borders of pages, with slots before and behind that are not part of it.
          const KvMove span{from, 4 * page_tokens + to, 0, 40 + from, 240 + to};
          const std::vector<KvMove> runs = runs_of(span, 2 * page_tokens + 3, page_tokens);
          const KvMoves moves = angles.moves(*store, runs);
          Image expected(*store);
          expected.apply(moves, angles);
          backend->move_kv(moves);
          ASSERT_TRUE(Image(*store) == expected)
              << from << " to " << to << " of " << page_tokens << ", " << name_of(format)
              << (values_are_keys ? ", values are keys" : "");
        }
      }
    }
  }
}

TEST_P(KvMoveOnPath, ThreadsAndCompanyChangeNoBit) {
  std::vector<Image> images;
  for (const int threads : {1, 2, 5}) {
    const auto backend = this->backend(threads);
    Angles angles(*backend, {}, 64);
    const auto store = backend->make_kv_store({5, 3, 64, 12, 16, KvFormat::kBF16});
    fill(*store, 11);
    const std::vector<KvMove> runs = some_runs(store->shape());
    if (threads == 2) {
      for (const KvMove& run : runs) backend->move_kv(angles.moves(*store, {&run, 1}));
    } else {
      backend->move_kv(angles.moves(*store, runs));
    }
    images.emplace_back(*store);
  }
  EXPECT_TRUE(images[1] == images[0]);
  EXPECT_TRUE(images[2] == images[0]);
}

/// Keys as rope_and_store leaves them at the positions from `first` on, in the pages from `page`
/// on.
void store_keys(Backend& backend, Angles& angles, KvStore& store, std::span<const float> keys,
                std::int64_t rows, std::int64_t first, std::int64_t page) {
  const KvShape& shape = store.shape();
  const std::int64_t width = 3 * shape.kv_heads * shape.head_dim;  // one query head each
  testing_support::Owned qkv(backend, rows, width);
  testing_support::Owned cos_sin(backend, rows, shape.head_dim);
  std::vector<float> values(static_cast<std::size_t>(rows * width));
  std::vector<float> rotation;
  std::vector<std::int64_t> slots;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t part = width / 3;
    std::copy_n(keys.begin() + row * part, part, values.begin() + row * width + part);
    std::copy_n(keys.begin() + row * part, part, values.begin() + row * width + 2 * part);
    const std::vector<float> angle = angles.at(first + row);
    rotation.insert(rotation.end(), angle.begin(), angle.end());
    slots.push_back(page * shape.page_tokens + row);
  }
  qkv.set(backend, values);
  cos_sin.set(backend, rotation);
  RopeStore rope;
  rope.qkv = qkv.tensor;
  rope.heads = shape.kv_heads;
  rope.kv_heads = shape.kv_heads;
  rope.head_dim = shape.head_dim;
  rope.rotary_dim = shape.head_dim;
  rope.cos_sin = cos_sin.tensor.data;
  rope.slots = slots;
  rope.kv = &store;
  for (rope.layer = 0; rope.layer < shape.layers; ++rope.layer) {
    qkv.set(backend, values);  // the op rewrites q
    backend.rope_and_store(rope);
  }
}

/// Relative root mean square of what differs in K of slots [a, a + rows) and [b, b + rows).
double key_distance(const Image& image, const KvShape& shape, std::int64_t rows, std::int64_t a,
                    std::int64_t b) {
  double error = 0;
  double square = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        for (std::int64_t i = 0; i < shape.head_dim; ++i) {
          const auto x = static_cast<double>(image.get(a + row, layer, head, 0, i));
          const auto y = static_cast<double>(image.get(b + row, layer, head, 0, i));
          error += (x - y) * (x - y);
          square += y * y;
        }
      }
    }
  }
  return std::sqrt(error / square);
}

TEST_P(KvMoveOnPath, IsWhatIsStoredThereAfreshUpToRounding) {
  const auto backend = this->backend();
  constexpr std::int64_t kRows = 64;
  for (const NamedRope& named : kRopes) {
    for (const KvFormat format : test::kKvFormats) {
      SCOPED_TRACE(std::string(named.name) + ", " + name_of(format));
      Angles angles(*backend, named.rope, 128);
      const auto store = backend->make_kv_store({1, 2, 128, 12, 16, format});
      Random random(1);
      const std::vector<float> keys = random.normal(kRows * 2 * 128);
      for (const auto& [from, to] : {std::pair{0, 17}, {99'000, 40}, {123, 100'030}}) {
        store_keys(*backend, angles, *store, keys, kRows, from, 0);
        store_keys(*backend, angles, *store, keys, kRows, to, 4);
        const std::vector<KvMove> runs = runs_of({0, 8 * 16, 0, from, to}, kRows, 16);
        backend->move_kv(angles.moves(*store, runs));
        const Image image(*store);
        // (Two roundings to bf16 are as far from one as 2.35e-3.)
        EXPECT_LE(key_distance(image, store->shape(), kRows, 8 * 16, 4 * 16),
                  format == KvFormat::kF32    ? 2e-7
                  : format == KvFormat::kBF16 ? 3e-3
                                              : 5e-2)
            << from << " to " << to;
        for (std::int64_t i = 0; i < 128; ++i) {
          ASSERT_EQ(image.get(8 * 16 + 63, 0, 1, 1, i), image.get(4 * 16 + 63, 0, 1, 1, i));
        }
      }
    }
  }
}

TEST_P(KvMoveOnPath, ThereAndBackIsTwoRoundings) {
  const auto backend = this->backend();
  for (const NamedRope& named : kRopes) {
    for (const KvFormat format : test::kKvFormats) {
      SCOPED_TRACE(std::string(named.name) + ", " + name_of(format));
      Angles angles(*backend, named.rope, 64);
      const auto store = backend->make_kv_store({1, 1, 64, 6, 16, format});
      fill(*store, 9);
      const std::vector<KvMove> there = runs_of({3, 2 * 16 + 8, 0, 50, 99'990}, 16, 16);
      const std::vector<KvMove> back = runs_of({2 * 16 + 8, 4 * 16 + 1, 0, 99'990, 50}, 16, 16);
      backend->move_kv(angles.moves(*store, there));
      backend->move_kv(angles.moves(*store, back));
      const Image image(*store);
      const double rounding = format == KvFormat::kF32 ? 3e-7 : rounding_of(format);
      for (std::int64_t t = 0; t < 16; ++t) {
        for (std::int64_t i = 0; i < 32; ++i) {
          const auto value = [&](std::int64_t slot, std::int64_t dim) {
            return static_cast<double>(image.get(slot + t, 0, 0, 0, dim));
          };
          const double size = std::hypot(value(3, i), value(3, 32 + i));
          const double moved =
              std::hypot(value(65, i) - value(3, i), value(65, 32 + i) - value(3, 32 + i));
          ASSERT_LE(moved, (2 * rounding + rounding * rounding + 1e-6) * size) << t << ", " << i;
        }
      }
    }
  }
}

TEST_P(KvMoveOnPath, SeesTheCopiesBeforeItAndIsSeenByThoseBehind) {
  const auto backend = this->backend();
  Angles angles(*backend, {}, 64);
  const auto store = backend->make_kv_store({2, 2, 64, 8, 16, KvFormat::kBF16});
  fill(*store, 2);
  Image expected(*store);
  const KvMove copied{0, 16, 16, 5, 5};
  const KvMove moved{16, 32, 16, 5, 70};
  const KvMove copied_again{32, 48, 16, 70, 70};
  for (const KvMove* run : {&copied, &moved, &copied_again}) {
    expected.apply(angles.moves(*store, {run, 1}), angles);
  }
  store->copy_slots(0, 1, 16);
  backend->move_kv(angles.moves(*store, {&moved, 1}));
  store->copy_slots(2, 3, 16);
  store->flush_copies();
  EXPECT_TRUE(Image(*store) == expected);
}

TEST_P(KvMoveOnPath, TakesThousandsOfRunsWhoseArrayMayChangeAtOnce) {
  const auto backend = this->backend();
  Angles angles(*backend, {}, 8);
  const auto store = backend->make_kv_store({1, 1, 8, 1024, 8, KvFormat::kBF16});
  fill(*store, 4);
  Image expected(*store);
  std::vector<KvMove> runs;
  for (int pass = 0; pass < 3; ++pass) {
    runs.clear();
    for (std::int64_t i = 0; i < 512 * 8; ++i) {  // a token each, in another order each time
      const std::int64_t target = (i * 5 + pass) % (512 * 8);
      runs.push_back({i, 512 * 8 + target, 1, i, (i * 7 + pass * 1000) % 16384});
    }
    const KvMoves moves = angles.moves(*store, runs);
    expected.apply(moves, angles);
    backend->move_kv(moves);
    for (KvMove& run : runs) run = {};
  }
  EXPECT_TRUE(Image(*store) == expected);
}

TEST_P(KvMoveOnPath, LeavesWhatSurroundsGuardedPages) {
  const auto backend = this->backend();
  for (const std::int64_t dim : {64, 7}) {
    for (const auto& [format, values_are_keys] : kinds_of_pages()) {
      Angles angles(*backend, {}, dim / 2 * 2);
      KvShape shape{3, 2, dim, 12, 8, format, true, values_are_keys};
      const auto store = backend->make_kv_store(shape);
      const KvStore::RawLayout layout = store->raw_layout();
      std::vector<std::byte> raw(static_cast<std::size_t>(layout.page_bytes()), std::byte{0x5a});
      for (std::int32_t page = 0; page < shape.pages; ++page) store->write_raw(page, raw);
      fill(*store, 6);
      const std::vector<KvMove> runs = some_runs(shape);
      const KvMoves moves = angles.moves(*store, runs);
      Image expected(*store);
      expected.apply(moves, angles);
      backend->move_kv(moves);
      EXPECT_TRUE(Image(*store) == expected);
      for (std::int32_t page = 0; page < shape.pages; ++page) {
        store->read_raw(page, raw);
        for (std::int64_t part = 0; part < layout.parts; ++part) {
          for (std::int64_t i = 0; i < layout.part_bytes(); ++i) {
            if (i >= layout.before && i < layout.before + layout.bytes) continue;
            ASSERT_EQ(raw[static_cast<std::size_t>(part * layout.part_bytes() + i)],
                      std::byte{0x5a})
                << "page " << page << ", byte " << i;
          }
        }
      }
    }
  }
}

/// Attention reads words of two dims, and pages hold anything before they are written.
TEST_P(KvMoveOnPath, FillsAllThatAttentionReads) {
  const auto backend = this->backend();
  for (const auto& [dim, format] : {std::pair<std::int64_t, KvFormat>{7, KvFormat::kBF16},
                                    {64, KvFormat::kBF16},
                                    {7, KvFormat::kFP8},
                                    {64, KvFormat::kFP8}}) {
    const auto store = backend->make_kv_store({1, 1, dim, 4, 8, format});
    const std::vector<std::byte> nan(static_cast<std::size_t>(store->raw_layout().page_bytes()),
                                     std::byte{0xff});
    fill(*store, 8);
    store->write_raw(1, nan);
    Angles angles(*backend, {}, dim / 2 * 2);
    const KvMove run{0, 8, 8, 3, 3};
    backend->move_kv(angles.moves(*store, {&run, 1}));
    std::vector<std::vector<float>> results;
    for (const std::int32_t page : {0, 1}) {
      AttentionPlan plan;
      plan.positions = {7};
      plan.pages = {page};
      plan.items = {{0, 8, 0, 0, 1}};
      plan.super_blocks = {{0, 1}};
      testing_support::Owned q(*backend, 1, dim);
      testing_support::Owned out(*backend, 1, dim);
      q.set(*backend, Random(1).normal(dim));
      AttentionArgs args;
      args.out = out.tensor;
      args.q = q.tensor;
      args.heads = 1;
      args.kv = store.get();
      args.plan = &plan;
      backend->attention(args);
      results.push_back(out.get(*backend));
    }
    EXPECT_EQ(testing_support::first_difference(results[0], results[1]), -1) << dim;
  }
}

TEST_P(KvMoveOnPath, RefusesWhatIsNoMove) {
  const auto backend = this->backend();
  Angles angles(*backend, {}, 16);
  const auto store = backend->make_kv_store({1, 1, 16, 4, 8, KvFormat::kF32});
  fill(*store, 1);
  const Image before(*store);
  const std::vector<KvMove> wrong = {
      {0, 1, 1, 0, 1},        // within a page
      {0, 8, 0, 0, 1},        // of nothing
      {0, 8, 9, 0, 1},        // longer than a page
      {3, 8, 6, 0, 1},        // over the source's end
      {0, 11, 6, 0, 1},       // over the target's
      {-1, 8, 1, 0, 1},       // no slot
      {0, 32, 1, 0, 1},       //
      {0, 8, 1, -1, 1},       // no position
      {0, 8, 2, 255, 1},      // no angles
      {0, 8, 2, 1, 100'000},  //
      {0, 8, 1, 0, std::numeric_limits<std::int64_t>::max()},
  };
  for (const KvMove& run : wrong) {
    const std::vector<KvMove> runs = {{0, 8, 1, 0, 1}, run};
    KvMoves moves = angles.moves(*store, {runs.data(), 1});  // angles of positions below 256 alone
    moves.runs = runs;
    EXPECT_THROW(backend->move_kv(moves), Error) << &run - wrong.data();
  }
  for (const std::int64_t rotary_dim : {3, 18, -2}) {
    const KvMove run{0, 8, 1, 0, 1};
    KvMoves moves = angles.moves(*store, {&run, 1});
    moves.rotary_dim = rotary_dim;
    EXPECT_THROW(backend->move_kv(moves), Error) << rotary_dim;
  }
  backend->move_kv(angles.moves(*store, {}));
  EXPECT_TRUE(Image(*store) == before);
}

INSTANTIATE_TEST_SUITE_P(Paths, KvMoveOnPath, ::testing::ValuesIn(test::kernel_paths()));

}  // namespace
}  // namespace dendrite
