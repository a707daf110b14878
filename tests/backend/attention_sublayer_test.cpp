#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/rounding.h"
#include "support/paths.h"
#include "support/sublayers.h"
#include "test_support.h"

// A device may join RoPE and the store of K and V to a product of few rows: results and pages must
// have the same bits either way.

namespace dendrite {
namespace {

using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::Random;

constexpr std::int64_t kMost = 100;  // rows of one causal sequence, all in one block of attention
constexpr std::int64_t kPadding = 3;
constexpr std::int64_t kPageTokens = 16;
constexpr std::int64_t kPages = 12;  // the sequence, then room for extra stores
constexpr std::int64_t kLayers = 2;  // the second is used
constexpr float kPoison = 7;

struct Sizes {
  std::int64_t dim, heads, kv_heads, head_dim;
  bool bias;
  WeightRounding rounding = WeightRounding::kNone;
};
/// On a GPU also numbers of heads for which a block takes 16, 24, ..., 192 outputs.
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> sizes = {{256, 4, 2, 64, false},
                              {192, 3, 1, 128, true},
                              {64, 2, 2, 40, true},
                              {256, 32, 8, 64, true, WeightRounding::kFp8}};
  if (!test::on_cuda()) return sizes;
  for (const Sizes& more :
       {Sizes{192, 32, 8, 64, true}, Sizes{192, 32, 8, 128, false}, Sizes{64, 64, 8, 128, true},
        Sizes{64, 64, 1, 128, false}, Sizes{64, 128, 2, 128, false}, Sizes{64, 209, 11, 64, false},
        Sizes{128, 162, 18, 128, true}}) {
    sizes.push_back(more);
  }
  return sizes;
}

/// With pages in FP8 K and V are not stored by the product, on a GPU.
std::vector<std::pair<Sizes, KvFormat>> all_sizes_and_pages() {
  std::vector<std::pair<Sizes, KvFormat>> all;
  for (const Sizes& sizes : all_sizes()) {
    all.emplace_back(sizes, KvFormat::kBF16);
    if (test::on_cuda()) all.emplace_back(sizes, KvFormat::kFP8);
  }
  return all;
}

class AttentionRows {
 public:
  AttentionRows(Backend& backend, const Sizes& sizes, KvFormat pages = KvFormat::kBF16)
      : b_(backend), s_(sizes), width_((s_.heads + 2 * s_.kv_heads) * s_.head_dim) {
    const auto pack = [&](std::int64_t rows, std::int64_t cols) {
      const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
      const FileMatrix matrix(rows, cols, DType::kBF16, random_.normal(rows * cols, deviation));
      return b_.pack({&RoundedMatrix(matrix.host, s_.rounding).matrix(), 1});
    };
    qkv_ = pack(width_, s_.dim);
    out_ = pack(s_.dim, s_.heads * s_.head_dim);
    hidden_ = random_.normal((kMost + kPadding) * s_.dim);
    norm_ = Owned(b_, 1, s_.dim);
    norm_.set(b_, random_.normal(s_.dim));
    bias_ = Owned(b_, 1, width_);
    bias_.set(b_, random_.normal(width_));
    for (std::int64_t r = 0; r < kMost + kPadding; ++r) {
      const auto angles = random_.normal(s_.head_dim / 2, 3.0f);
      for (const float angle : angles) cos_sin_.push_back(std::cos(angle));
      for (const float angle : angles) cos_sin_.push_back(std::sin(angle));
    }
    store_ = b_.make_kv_store({kLayers, s_.kv_heads, s_.head_dim, kPages, kPageTokens, pages});
    pages_.assign(static_cast<std::size_t>(kLayers * kPages * page_values()), kPoison);
    plan_.pages = {0, 1, 2, 3, 4, 5, 6};
    plan_.items = {{0, kMost, 0, 0, 0}};
    plan_.super_blocks = {{0, 1}};
  }

  /// Makes all values of rows 1 or -1, and norms exact: the same bits by any order of operations.
  void make_norms_exact() {
    for (float& value : hidden_) value = value < 0 ? -1.0f : 1.0f;
    eps_ = 0;
  }

  enum class Way : std::uint8_t { kWhole, kOps };
  /// The result of rows [begin, end), whose K and V are stored. Rows of padding follow.
  std::vector<float> run(std::int64_t begin, std::int64_t end, std::int64_t padding,
                         const std::vector<ExtraStore>& extra, Way way = Way::kWhole) {
    const std::int64_t rows = end - begin + padding;
    Owned hidden = rows_of(hidden_, begin, rows);
    Owned normed(b_, rows, s_.dim);
    Owned qkv(b_, rows, width_);
    Owned attended(b_, rows, s_.heads * s_.head_dim);
    const Owned angles = rows_of(cos_sin_, begin, rows);
    std::vector<std::int64_t> slots;
    plan_.positions.clear();
    for (std::int64_t r = begin; r < end; ++r) {
      slots.push_back(r);
      plan_.positions.push_back(r);
    }
    slots.resize(static_cast<std::size_t>(rows), -1);
    plan_.items[0].end = end;
    plan_.items[0].row_end = static_cast<std::int32_t>(end - begin);
    test::AttentionSublayer sublayer;
    sublayer.hidden = hidden.tensor;
    sublayer.norm = norm_.tensor.data;
    sublayer.norm_eps = eps_;
    sublayer.qkv = qkv_.get();
    sublayer.out = out_.get();
    sublayer.qkv_bias = s_.bias ? bias_.tensor.data : nullptr;
    sublayer.normed = normed.tensor;
    sublayer.rope.qkv = qkv.tensor;
    sublayer.rope.heads = s_.heads;
    sublayer.rope.kv_heads = s_.kv_heads;
    sublayer.rope.head_dim = s_.head_dim;
    sublayer.rope.rotary_dim = s_.head_dim;
    sublayer.rope.cos_sin = angles.tensor.data;
    sublayer.rope.slots = slots;
    sublayer.rope.extra_stores = extra;
    sublayer.rope.kv = store_.get();
    sublayer.rope.layer = 1;
    sublayer.attention.out = attended.tensor;
    sublayer.attention.q = qkv.tensor.columns(0, s_.heads * s_.head_dim);
    sublayer.attention.heads = s_.heads;
    sublayer.attention.scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
    sublayer.attention.kv = store_.get();
    sublayer.attention.layer = 1;
    sublayer.attention.plan = &plan_;
    if (way == Way::kWhole) {
      sublayer.run(b_);
    } else {
      sublayer.run_ops(b_);
    }
    auto result = hidden.get(b_);
    result.resize(static_cast<std::size_t>((end - begin) * s_.dim));
    return result;
  }

  /// All slots, K and V: [layers][pages][K, V][page_tokens][kv_heads][head_dim].
  std::vector<float> stored() const {
    std::vector<float> values(pages_.size());
    for (std::size_t i = 0; i < static_cast<std::size_t>(kLayers * kPages); ++i) {
      const auto [k, v] = halves(values, i);
      store_->read(static_cast<std::int32_t>(i) % kPages, static_cast<std::int64_t>(i) / kPages,
                   kPageTokens, k, v);
    }
    return values;
  }
  void store(std::vector<float> values) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(kLayers * kPages); ++i) {
      const auto [k, v] = halves(values, i);
      store_->write(static_cast<std::int32_t>(i) % kPages, static_cast<std::int64_t>(i) / kPages,
                    kPageTokens, k, v);
    }
  }
  std::vector<float> poison() const { return pages_; }
  /// What is in slot `from` of the layer that is used, also to slot `to`.
  void copy(const std::vector<float>& source, std::int64_t from, std::vector<float>& target,
            std::int64_t to) const {
    const auto count = s_.kv_heads * s_.head_dim;
    for (const std::int64_t value : {0, 1}) {
      const auto begin = [&](std::int64_t slot) {
        return (kPages + slot / kPageTokens) * page_values() +
               (value * kPageTokens + slot % kPageTokens) * count;
      };
      std::copy_n(source.begin() + begin(from), count, target.begin() + begin(to));
    }
  }

 private:
  std::int64_t page_values() const { return 2 * kPageTokens * s_.kv_heads * s_.head_dim; }
  /// K and V of a page.
  std::pair<std::span<float>, std::span<float>> halves(std::vector<float>& values,
                                                       std::size_t page) const {
    const auto half = static_cast<std::size_t>(page_values() / 2);
    return {std::span(values).subspan(2 * page * half, half),
            std::span(values).subspan((2 * page + 1) * half, half)};
  }
  Owned rows_of(const std::vector<float>& values, std::int64_t begin, std::int64_t rows) {
    const auto cols = static_cast<std::int64_t>(values.size()) / (kMost + kPadding);
    Owned owned(b_, rows, cols);
    owned.set(b_, std::span(values).subspan(static_cast<std::size_t>(begin * cols)));
    return owned;
  }

  Backend& b_;
  Sizes s_;
  std::int64_t width_;  // of qkv
  Random random_{17};
  std::unique_ptr<Weight> qkv_, out_;
  std::vector<float> hidden_, cos_sin_, pages_;
  float eps_ = 1e-5f;
  Owned norm_{b_, 1, 1};
  Owned bias_{b_, 1, 1};
  std::unique_ptr<KvStore> store_;
  AttentionPlan plan_;
};

class AttentionSublayerOnPath : public testing::TestWithParam<std::string> {};

TEST_P(AttentionSublayerOnPath, RowsAndPagesHaveTheSameBitsWhereKernelsChange) {
  const auto backend = test::make_backend(Numerics::kBF16, 2, GetParam());
  for (const auto& [s, format] : all_sizes_and_pages()) {
    AttentionRows attention(*backend, s, format);
    attention.store(attention.poison());
    const auto results = attention.run(0, kMost, 0, {});
    const auto all = attention.stored();
    for (const std::int64_t rows : {1, 7, 8, 9, 16, 29, 32, 33, 61, 64, 65, 81, 98}) {
      for (const std::int64_t padding : {std::int64_t{0}, kPadding}) {
        const std::int64_t begin = kMost + padding - rows;
        if (begin >= kMost) continue;
        std::vector<ExtraStore> extra;
        const auto last = static_cast<std::int32_t>(kMost - 1 - begin);
        if (padding > 0) extra = {{0, 7 * kPageTokens}, {last, 9 * kPageTokens + 5}, {last, 190}};
        auto expected = attention.poison();
        for (std::int64_t r = 0; r < begin; ++r) attention.copy(all, r, expected, r);
        attention.store(expected);
        for (std::int64_t r = begin; r < kMost; ++r) attention.copy(all, r, expected, r);
        for (const ExtraStore& e : extra) attention.copy(all, begin + e.row, expected, e.slot);
        const auto result = attention.run(begin, kMost, padding, extra);
        const auto wanted = std::span(results).subspan(static_cast<std::size_t>(begin * s.dim));
        ASSERT_EQ(first_difference(result, wanted), -1)
            << rows << " rows, " << padding << " of them padding, " << s.heads << "/" << s.kv_heads
            << " heads of " << s.head_dim;
        ASSERT_EQ(first_difference(attention.stored(), expected), -1)
            << "pages in " << name_of(format) << ": " << rows << " rows, " << padding
            << " of them padding, " << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim;
      }
    }
  }
}

TEST(AttentionSublayerOnCuda, HasTheBitsOfItsOps) {
  if (!test::on_cuda()) GTEST_SKIP() << "a CPU runs the ops";
  for (const char* path : {"cuda", "cuda_fast"}) {
    const auto backend = test::make_backend(Numerics::kBF16, 2, path);
    for (const auto& [s, format] : all_sizes_and_pages()) {
      if ((s.dim & (s.dim - 1)) != 0) continue;  // means are exact
      AttentionRows attention(*backend, s, format);
      attention.make_norms_exact();
      attention.store(attention.poison());
      static_cast<void>(attention.run(0, kMost, 0, {}));
      const auto before = attention.stored();
      for (const std::int64_t rows : {1, 3, 8, 9, 40, 72}) {
        const auto last = static_cast<std::int32_t>(rows - 1);
        const std::vector<ExtraStore> extra = {{0, 7 * kPageTokens}, {last, 8 * kPageTokens + 1}};
        const auto with = [&](AttentionRows::Way way) {
          attention.store(before);
          const auto padding = rows > 1 ? 1 : 0;
          auto values = attention.run(kMost - rows, kMost - padding, padding, extra, way);
          const auto pages = attention.stored();
          values.insert(values.end(), pages.begin(), pages.end());
          return values;
        };
        ASSERT_EQ(
            first_difference(with(AttentionRows::Way::kWhole), with(AttentionRows::Way::kOps)), -1)
            << path << " " << rows << " rows, " << s.heads << "/" << s.kv_heads << " heads of "
            << s.head_dim << ", " << name_of(format);
      }
    }
  }
}

// Every way that K, V and rotated queries are stored, at the numbers of heads that models have and
// small enough for a sanitizer: scripts/gpu_check.sh.
TEST(Sanitized, RopeInProductsAndBesideThem) {
  const auto paths =
      test::on_cuda() ? std::vector<std::string>{"cuda", "cuda_fast"} : test::kernel_paths();
  for (const std::string& path : paths) {
    const auto backend = test::make_backend(Numerics::kBF16, 2, path);
    for (const Sizes& s : {Sizes{256, 32, 8, 128, true}, Sizes{256, 32, 8, 64, false},
                           Sizes{256, 32, 8, 128, true, WeightRounding::kFp8}}) {
      AttentionRows attention(*backend, s);
      attention.make_norms_exact();
      attention.store(attention.poison());
      static_cast<void>(attention.run(0, kMost, 0, {}));
      const auto before = attention.stored();
      for (const std::int64_t rows : {1, 8, 9, 33, 64, 65, 100}) {
        const auto last = static_cast<std::int32_t>(rows - 1);
        const std::vector<ExtraStore> extra = {{0, 7 * kPageTokens}, {last, 8 * kPageTokens + 1}};
        const auto with = [&](AttentionRows::Way way) {
          attention.store(before);
          return attention.run(kMost - rows, kMost, 0, extra, way);
        };
        ASSERT_EQ(
            first_difference(with(AttentionRows::Way::kWhole), with(AttentionRows::Way::kOps)), -1)
            << path << " " << rows << " rows, heads of " << s.head_dim;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, AttentionSublayerOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dendrite
