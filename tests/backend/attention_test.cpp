#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "support/paths.h"
#include "test_support.h"
#include "tree_fixture.h"

namespace dendrite {
namespace {

using testing_support::first_difference;
using testing_support::relative_error;
using testing_support::TreeFixture;

struct Case {
  const char* name;
  std::int64_t head_dim;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t page_tokens;
  AttentionWindow window;
  std::vector<std::int64_t> trunks;
  int forks;
  std::int64_t rows_a_tip;
  float soft_cap = 0;
  bool sinks = false;
  bool values_are_keys = false;
};

const std::vector<Case> kCases = {
    {"one short branch", 64, 1, 1, 16, 0, {5}, 0, 1},
    {"decode on a forked trunk", 64, 8, 2, 16, 0, {300}, 9, 1},
    {"prefill rows and odd head dim", 25, 3, 3, 16, 0, {150, 90}, 4, 20},
    {"head dim 24, pages of 8", 24, 4, 1, 8, 0, {200}, 6, 3},
    {"head dim 32, pages of 32", 32, 7, 1, 32, 0, {257}, 5, 2},
    {"head dim 80, groups of 7", 80, 14, 2, 16, 0, {140}, 5, 4},
    {"head dim 128, pages of 8", 128, 4, 4, 8, 0, {130}, 3, 2},
    {"window of 50", 64, 4, 2, 16, 50, {400}, 6, 30},
    {"window of 1, pages of 32", 32, 2, 1, 32, 1, {100}, 3, 5},
    {"window across super-blocks", 24, 2, 1, 8, 1500, {2700}, 4, 3},
    {"chunks of 31", 64, 4, 2, 16, {31, true}, {400}, 6, 30},
    {"chunks of 200, head dim 24, pages of 8", 24, 2, 1, 8, {200, true}, {2700}, 4, 3},
    {"super-blocks", 32, 4, 2, 16, 0, {5000, 1024, 1025, 1023}, 6, 2},
    {"head dim 96, groups of 5", 96, 10, 2, 16, 0, {140}, 5, 3},
    {"head dim 192, groups of 3, window of 70", 192, 6, 2, 8, 70, {260}, 4, 3},
    {"head dim 256, groups of 12", 256, 12, 1, 16, 0, {150}, 4, 2},
    {"head dim 256, groups of 40", 256, 40, 1, 32, 0, {140}, 2, 2},
    {"head dim 64, groups of 71", 64, 142, 2, 16, 0, {140}, 2, 1},
    {"soft cap", 64, 4, 2, 16, 0, {300}, 5, 3, 1.5F},
    {"soft cap, window of 40, head dim 24", 24, 3, 1, 8, 40, {280}, 4, 20, 0.7F},
    {"sinks", 64, 8, 1, 16, 0, {300}, 9, 1, 0, true},
    {"sinks, window of 128, super-blocks", 64, 16, 2, 16, 128, {900}, 5, 30, 0, true},
    {"sinks, soft cap", 25, 3, 3, 32, 0, {90}, 3, 4, 2, true},
    {"latents of 72", 72, 6, 1, 16, 0, {300}, 6, 2, 0, false, true},
};

/// What the kernels for tensor cores have ways of their own for: many packed rows and few, cells of
/// a prefill, windows, runs and groups.
const std::vector<Case> kCudaCases = {
    {"head dim 128, groups of 3", 128, 6, 2, 16, 0, {700}, 12, 1},
    {"head dim 128, groups of 7, prefill", 128, 7, 1, 32, 0, {600, 300}, 3, 90},
    {"head dim 128, groups of 4, prefill", 128, 8, 2, 16, 0, {650}, 3, 70},
    {"head dim 128, window of 300", 128, 8, 2, 16, 300, {900}, 5, 60},
    {"head dim 128, chunks of 300", 128, 8, 2, 16, {300, true}, {900}, 5, 60},
    {"head dim 64, groups of 5, chunks of 70", 64, 10, 2, 8, {70, true}, {700}, 8, 40},
    {"head dim 64, groups of 5, window of 700", 64, 10, 2, 8, 700, {1500}, 8, 40},
    {"head dim 64, groups of 6, many branches", 64, 6, 1, 16, 0, {1300}, 30, 1},
    {"head dim 64, groups of 2, prefill", 64, 4, 2, 32, 0, {1100}, 2, 100},
    {"head dim 128, groups of 2, long", 128, 2, 1, 16, 0, {9000, 4096, 4100}, 6, 1},
    {"head dim 64, groups of 8", 64, 8, 1, 16, 0, {600}, 8, 2},
    {"head dim 80, groups of 6, prefill", 80, 12, 2, 32, 0, {600, 300}, 3, 90},
    {"head dim 80, groups of 4, many branches", 80, 4, 1, 16, 0, {1300}, 30, 1},
    {"head dim 96, groups of 4, window of 300", 96, 8, 2, 8, 300, {900}, 5, 60},
    {"head dim 96, groups of 2, long", 96, 2, 1, 16, 0, {9000, 4100}, 6, 1},
    {"head dim 128, groups of 100", 128, 100, 1, 16, 0, {700}, 5, 2},
    {"head dim 192, groups of 7, prefill", 192, 14, 2, 16, 0, {650}, 3, 70},
    {"head dim 192, groups of 8, many branches", 192, 8, 1, 8, 0, {1300}, 20, 1},
    {"head dim 256, groups of 4, prefill", 256, 8, 2, 32, 0, {600, 300}, 3, 70},
    {"head dim 256, groups of 8, window of 700", 256, 8, 1, 8, 700, {1500}, 6, 30},
    {"head dim 256, groups of 2, long", 256, 2, 1, 16, 0, {9000, 4096}, 5, 1},
    {"head dim 320, groups of 8, prefill", 320, 8, 1, 16, 0, {600}, 3, 40},
    {"head dim 512, groups of 4, prefill", 512, 8, 2, 32, 0, {300, 150}, 3, 40},
    {"head dim 512, groups of 8, long", 512, 8, 1, 16, 0, {9000, 4096}, 4, 1},
    {"head dim 576, groups of 20, many branches", 576, 20, 1, 16, 0, {700}, 20, 1},
    {"head dim 576, groups of 3, window of 700", 576, 3, 1, 8, 700, {900}, 3, 20},
    {"latents of 576, groups of 20", 576, 20, 1, 16, 0, {700}, 20, 1, 0, false, true},
    {"latents of 320, prefill", 320, 8, 1, 8, 0, {600}, 3, 40, 0, false, true},
    {"latents of 96", 96, 5, 1, 32, 0, {600}, 3, 40, 0, false, true},
    {"sinks, head dim 64, prefill", 64, 8, 1, 16, 0, {1100}, 3, 100, 0, true},
    {"sinks, head dim 128, groups of 4, long", 128, 8, 2, 16, 0, {9000, 4100}, 6, 1, 0, true},
    {"sinks, head dim 256, groups of 8", 256, 8, 1, 16, 0, {700}, 6, 2, 0, true},
    {"soft cap, head dim 64, many branches", 64, 6, 1, 16, 0, {700}, 30, 1, 0.7F},
    {"soft cap, head dim 64, groups of 2, prefill", 64, 4, 2, 32, 0, {600}, 2, 60, 50},
    {"soft cap, head dim 80, window of 300", 80, 8, 2, 8, 300, {700}, 3, 40, 1.5F},
    {"soft cap, head dim 96, chunks of 70", 96, 4, 1, 16, {70, true}, {300}, 4, 40, 2},
    {"soft cap, head dim 128, groups of 2, prefill", 128, 4, 2, 16, 0, {400}, 2, 70, 1.5F},
    {"soft cap, head dim 128, groups of 2, long", 128, 2, 1, 16, 0, {4500}, 4, 1, 50},
    {"soft cap, head dim 192, groups of 7", 192, 7, 1, 16, 0, {300}, 2, 30, 0.7F},
    {"soft cap, head dim 256, groups of 2, window of 700", 256, 2, 1, 8, 700, {900}, 3, 20, 1.5F},
    {"soft cap, head dim 256, groups of 2, long", 256, 2, 1, 16, 0, {4500}, 3, 1, 50},
    {"sinks, soft cap, head dim 512, groups of 2", 512, 4, 2, 16, 0, {300}, 5, 2, 1.5F, true},
    {"sinks, soft cap, head dim 128, groups of 4", 128, 8, 2, 16, 0, {300}, 12, 1, 2, true},
};

std::vector<Case> cases() {
  std::vector<Case> cases = kCases;
  if (test::on_cuda()) cases.insert(cases.end(), kCudaCases.begin(), kCudaCases.end());
  return cases;
}

std::unique_ptr<TreeFixture> make_fixture(Backend& backend, const Case& c, KvFormat format) {
  TreeFixture::Options options;
  options.shape = {2, c.kv_heads, c.head_dim, 0, c.page_tokens, format, false, c.values_are_keys};
  std::int64_t tokens = 0;
  for (const std::int64_t trunk : c.trunks) tokens += trunk;
  options.shape.pages = tokens / c.page_tokens + 8 * (c.forks + 2) + 8;
  options.heads = c.heads;
  options.window = c.window;
  options.trunk_tokens = c.trunks;
  options.forks = c.forks;
  options.rows_a_tip = c.rows_a_tip;
  options.soft_cap = c.soft_cap;
  options.sinks = c.sinks;
  return std::make_unique<TreeFixture>(backend, options, 17);
}

/// The worst row's error, each over its own rms: rows of few tokens have larger values.
double worst_row_error(std::span<const float> got, std::span<const double> expected,
                       std::int64_t rows) {
  const std::size_t width = got.size() / static_cast<std::size_t>(rows);
  double worst = 0;
  for (std::size_t at = 0; at < got.size(); at += width) {
    worst = std::max(worst, relative_error(got.subspan(at, width), expected.subspan(at, width)));
  }
  return worst;
}

class AttentionOnPath : public testing::TestWithParam<std::string> {};

TEST_P(AttentionOnPath, EqualsDoublePrecisionOverRandomTreesWithStaleNaN) {
  struct Types {
    Numerics compute;
    KvFormat pages;
    double tolerance;
  };
  constexpr double kExact = 2e-5;  // heads of 256 dims 1.1e-5
  for (const Types types : {Types{Numerics::kF32, KvFormat::kF32, kExact},
                            Types{Numerics::kBF16, KvFormat::kBF16, 3e-2},
                            Types{Numerics::kF32, KvFormat::kBF16, kExact},
                            Types{Numerics::kBF16, KvFormat::kFP8, 3e-2}}) {
    const auto backend = test::make_backend(types.compute, 2, GetParam());
    // Where the path has no bf16 dot, products of bf16 pages are as exact as f32.
    const bool exact =
        types.compute == Numerics::kF32 || !testing_support::rounds_activations(GetParam());
    for (const Case& c : cases()) {
      const auto fixture = make_fixture(*backend, c, types.pages);
      const auto got = fixture->run(*backend, 0, fixture->rows(), 3);
      EXPECT_LE(worst_row_error(got, fixture->reference(), fixture->rows()),
                exact ? kExact : types.tolerance)
          << c.name << ", compute " << name_of(types.compute) << ", pages " << name_of(types.pages);
    }
  }
}

TEST_P(AttentionOnPath, RowsHaveTheSameBitsAloneAndInAnyCompanyPlanAndThreadCount) {
  const std::string path = GetParam();
  for (const KvFormat format : test::kKvFormats) {
    const Numerics compute = format == KvFormat::kF32 ? Numerics::kF32 : Numerics::kBF16;
    const auto one = test::make_backend(compute, 1, path);
    for (const Case& c : cases()) {
      const auto fixture = make_fixture(*one, c, format);
      const auto together = fixture->run(*one, 0, fixture->rows(), 1);
      const auto width = together.size() / static_cast<std::size_t>(fixture->rows());
      std::vector<float> alone;
      for (std::int64_t r = 0; r < fixture->rows(); ++r) {
        const auto row = fixture->run(*one, r, r + 1, 2);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      const std::int64_t at = first_difference(together, alone);
      EXPECT_EQ(at, -1) << c.name << " " << name_of(format) << ": alone, row "
                        << at / static_cast<std::int64_t>(width);
      for (std::uint32_t cut = 3; cut < 8; ++cut) {
        EXPECT_EQ(first_difference(together, fixture->run(*one, 0, fixture->rows(), cut)), -1)
            << c.name << " " << name_of(format) << ": cuts " << cut;
      }
      // One pool at a time: oneTBB runs no more threads than the smallest pool alive allows.
      for (const int threads : {2, 3}) {
        const auto several = test::make_backend(compute, threads, path);
        EXPECT_EQ(first_difference(together, fixture->run(*several, 0, fixture->rows(), 8)), -1)
            << c.name << " " << name_of(format) << ": " << threads << " threads";
      }
    }
  }
}

/// The codes of pages in FP8 are widened exactly, all of them and with any scale: attention gives
/// the bits that it gives over pages in bf16 of the same values.
TEST_P(AttentionOnPath, PagesInFp8HaveTheBitsOfTheirValuesInBf16) {
  std::vector<std::int64_t> dims = {25, 64, 80, 128};
  if (test::on_cuda()) dims.insert(dims.end(), {16, 96, 192, 256, 320, 512, 576});
  for (const Numerics& compute : {Numerics::kF32, Numerics::kBF16}) {
    const auto backend = test::make_backend(compute, 1, GetParam());
    for (const std::int64_t page_tokens : {8, 16, 32}) {
      for (const std::int64_t dim : dims) {
        KvShape shape{1, 2, dim, 20, page_tokens, KvFormat::kFP8};
        const auto stored = backend->make_kv_store(shape);
        shape.format = KvFormat::kBF16;
        const auto widened = backend->make_kv_store(shape);
        testing_support::Random random(static_cast<std::uint32_t>(dim));
        std::vector<std::byte> page(static_cast<std::size_t>(stored->shape().page_bytes()));
        std::vector<float> k(static_cast<std::size_t>(page_tokens * 2 * dim));
        std::vector<float> v(k.size());
        for (std::int32_t p = 0; p < shape.pages; ++p) {
          for (std::size_t i = 0; i < page.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i) % (dim + 1);
            page[i] = at < dim ? random.byte() : static_cast<std::byte>(random.in(112, 122));
            if ((page[i] & std::byte{127}) == std::byte{127}) page[i] = std::byte{0};  // NaN
          }
          stored->import_page(p, page);
          stored->read(p, 0, static_cast<std::int32_t>(page_tokens), k, v);
          widened->write(p, 0, static_cast<std::int32_t>(page_tokens), k, v);
        }
        AttentionPlan plan;
        plan.positions = {0, 70, 140, 141};
        for (std::int32_t p = 0; p * page_tokens < 142; ++p) plan.pages.push_back((p + 7) % 20);
        plan.items = {{0, 142, 0, 0, 4}};
        plan.super_blocks = {{0, 1}};
        testing_support::Owned q(*backend, 4, 6 * dim);
        q.set(*backend, random.normal(4 * 6 * dim, 0.01F));
        std::vector<std::vector<float>> results;
        for (const KvStore* store : {stored.get(), widened.get()}) {
          testing_support::Owned out(*backend, 4, 6 * dim);
          AttentionArgs args;
          args.out = out.tensor;
          args.q = q.tensor;
          args.heads = 6;
          args.scale = 0.1F;
          args.kv = store;
          args.plan = &plan;
          backend->attention(args);
          results.push_back(out.get(*backend));
        }
        for (const float value : results[0]) ASSERT_TRUE(std::isfinite(value));
        EXPECT_EQ(first_difference(results[0], results[1]), -1)
            << "pages of " << page_tokens << ", head dim " << dim << ", " << name_of(compute);
      }
    }
  }
}

/// Over trees, with NaN in all other slots.
TEST_P(AttentionOnPath, TreesOfPagesInFp8HaveTheBitsOfTheirValuesInBf16) {
  const auto backend = test::make_backend(Numerics::kBF16, 2, GetParam());
  for (const Case& c : cases()) {
    const auto fixture = make_fixture(*backend, c, KvFormat::kFP8);
    const auto widened = fixture->copied(*backend, KvFormat::kBF16);
    for (const std::uint32_t cut : {1U, 2U}) {
      EXPECT_EQ(first_difference(fixture->run(*backend, 0, fixture->rows(), cut),
                                 fixture->run(*backend, 0, fixture->rows(), cut, widened.get())),
                -1)
          << c.name;
    }
  }
}

/// Where values are keys, attention has the bits that it has over pages with V that is K.
TEST_P(AttentionOnPath, ValuesThatAreKeysHaveTheBitsOfValuesThatEqualThem) {
  for (const KvFormat format : test::kKvFormats) {
    const Numerics compute = format == KvFormat::kF32 ? Numerics::kF32 : Numerics::kBF16;
    const auto backend = test::make_backend(compute, 2, GetParam());
    for (Case c : cases()) {
      c.values_are_keys = true;
      const auto fixture = make_fixture(*backend, c, format);
      const auto with_values = fixture->copied(*backend, format);
      for (const std::uint32_t cut : {1U, 2U}) {
        EXPECT_EQ(
            first_difference(fixture->run(*backend, 0, fixture->rows(), cut),
                             fixture->run(*backend, 0, fixture->rows(), cut, with_values.get())),
            -1)
            << c.name << ", " << name_of(format);
      }
    }
  }
}

TEST_P(AttentionOnPath, RowsOfAPassSeeWhatItStores) {
  const auto backend = test::make_backend(Numerics::kBF16, 2, GetParam());
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kFP8}) {
    for (const Case& c : cases()) {
      const auto fixture = make_fixture(*backend, c, format);
      const auto expected = fixture->run(*backend, 0, fixture->rows(), 1);
      const auto results = fixture->run_passes(*backend, 3, 1);
      for (std::size_t pass = 0; pass < results.size(); ++pass) {
        EXPECT_EQ(first_difference(expected, results[pass]), -1)
            << c.name << ", " << name_of(format) << ", pass " << pass;
      }
    }
  }
}

void check_passes(Backend& backend, const Case& c, KvFormat format) {
  const auto fixture = make_fixture(backend, c, format);
  const auto expected = fixture->run(backend, 0, fixture->rows(), 1);
  for (const auto& result : fixture->run_passes(backend, 3, 1)) {
    EXPECT_EQ(first_difference(expected, result), -1) << c.name;
  }
}

// Few layers, and the numbers of heads that models have: what is copied before earlier kernels are
// done, what is cut apart and merged, recorded and replayed. Small enough for a sanitizer:
// scripts/gpu_check.sh.
TEST(Sanitized, AttentionOfPassesOverALongTrunk) {
  const auto backend = test::make_backend(Numerics::kBF16, 2, test::kernel_paths().front());
  for (const Case& c : {Case{"head dim 128", 128, 32, 8, 16, 0, {1700}, 5, 1},
                        Case{"head dim 64", 64, 32, 8, 16, 0, {1300}, 5, 1},
                        Case{"head dim 128, window", 128, 16, 2, 16, 700, {1500}, 3, 2},
                        Case{"head dim 128, soft cap", 128, 8, 4, 16, 0, {700}, 3, 1, 50},
                        Case{"head dim 256, soft cap", 256, 8, 4, 16, 300, {700}, 3, 1, 50},
                        Case{"head dim 576", 576, 20, 1, 16, 0, {700}, 3, 1},
                        Case{"latents of 576", 576, 20, 1, 16, 0, {1300}, 5, 1, 0, false, true}}) {
    check_passes(*backend, c, KvFormat::kBF16);
  }
}

TEST(Sanitized, AttentionOfPassesOverPagesInFp8) {
  const auto backend = test::make_backend(Numerics::kBF16, 2, test::kernel_paths().front());
  for (const Case& c : {Case{"head dim 128, fp8", 128, 16, 4, 16, 0, {900}, 5, 1},
                        Case{"head dim 80, fp8", 80, 8, 2, 8, 0, {700}, 3, 1},
                        Case{"head dim 256, fp8", 256, 4, 2, 32, 300, {500}, 3, 2}}) {
    check_passes(*backend, c, KvFormat::kFP8);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, AttentionOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dendrite
