// Attention over K and V that were put together of two pieces, in each layer: that over the same
// bytes in other pages, that over K computed where it stands, and double precision, which rotates K
// as it walks the pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "kv_move_support.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::Angles;
using testing_support::first_difference;
using testing_support::Image;
using testing_support::Owned;
using testing_support::Random;
using testing_support::relative_error;

constexpr std::int64_t kLayers = 3, kHeads = 4, kKvHeads = 2, kDim = 64, kPageTokens = 16;
constexpr std::int64_t kA = 37, kB = 151, kAll = kA + kB;  // over two blocks, cut inside pages
constexpr std::int64_t kPages = (kAll + kPageTokens - 1) / kPageTokens;
constexpr std::int64_t kRow = kKvHeads * kDim;  // K or V of a token and layer

/// K before RoPE and V of a text.
struct Text {
  std::vector<float> k, v;  // [layers, tokens, kv_heads, head_dim]
};

/// Which page holds which positions.
using Pages = std::vector<std::int32_t>;

class ComposedAttention : public ::testing::TestWithParam<std::string> {
 protected:
  void make(Numerics compute, KvFormat format) {
    backend_ = test::make_backend(compute, 2, GetParam());
    angles_ = std::make_unique<Angles>(*backend_, RopeConfig{.theta = 5e5}, kDim);
    store_ = backend_->make_kv_store({kLayers, kKvHeads, kDim, 4 * kPages, kPageTokens, format});
    testing_support::fill(*store_, 1);  // what is in no text is something else, not zeros
    Random random(2);
    a_ = {random.normal(kLayers * kA * kRow), random.normal(kLayers * kA * kRow)};
    b_ = {random.normal(kLayers * kB * kRow), random.normal(kLayers * kB * kRow)};
    q_ = random.normal(kHeads * kDim);
  }

  static Pages pages(std::int32_t from, std::int32_t step) {
    Pages out;
    for (std::int32_t i = 0; i < kPages; ++i) out.push_back((from + i * step) % (4 * kPages));
    return out;
  }
  static std::int64_t slot(const Pages& pages, std::int64_t position) {
    return pages[static_cast<std::size_t>(position / kPageTokens)] * kPageTokens +
           position % kPageTokens;
  }

  /// A text computed at `first` and the positions behind, into `pages` from `at` on.
  void compute(const Text& text, std::int64_t first, const Pages& pages, std::int64_t at) {
    const std::int64_t tokens = std::ssize(text.k) / (kLayers * kRow);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t to = slot(pages, at + t);
        const auto page = static_cast<std::int32_t>(to / kPageTokens);
        const std::int64_t count = to % kPageTokens + 1;
        std::vector<float> k(static_cast<std::size_t>(count * kRow)), v(k.size());
        if (count > 1) {  // what stands before it in its page stays
          store_->read(page, layer, static_cast<std::int32_t>(count), k, v);
        }
        const std::vector<float> row = angles_->at(first + t);
        const float* from = text.k.data() + (layer * tokens + t) * kRow;
        float* into = k.data() + (count - 1) * kRow;
        constexpr std::int64_t kHalf = kDim / 2;
        for (std::int64_t head = 0; head < kKvHeads; ++head, from += kDim, into += kDim) {
          for (std::int64_t i = 0; i < kHalf; ++i) {
            const float c = row[static_cast<std::size_t>(i)];
            const float s = row[static_cast<std::size_t>(kHalf + i)];
            into[i] = from[i] * c - from[kHalf + i] * s;
            into[kHalf + i] = from[kHalf + i] * c + from[i] * s;
          }
        }
        std::copy_n(text.v.data() + (layer * tokens + t) * kRow, kRow,
                    v.data() + (count - 1) * kRow);
        store_->write(page, layer, static_cast<std::int32_t>(count), k, v);
      }
    }
  }

  /// K and V of the second text, computed behind nothing in `source`, behind the first in `pages`.
  void combine(const Pages& source, const Pages& pages) {
    std::vector<KvMove> runs;
    for (std::int64_t t = 0; t < kB; ++t) {
      runs.push_back({slot(source, t), slot(pages, kA + t), 1, t, kA + t});
    }
    backend_->move_kv(angles_->moves(*store_, runs));
  }

  std::vector<float> attend(const Pages& pages, std::int64_t layer) {
    AttentionPlan plan;
    plan.positions = {kAll - 1};
    plan.items = {{.begin = 0, .end = kAll, .first_page = 0, .row_begin = 0, .row_end = 1}};
    plan.super_blocks = {{0, 1}};
    plan.pages = pages;
    Owned q(*backend_, 1, kHeads * kDim);
    const Owned out(*backend_, 1, kHeads * kDim);
    q.set(*backend_, q_);
    AttentionArgs args;
    args.out = out.tensor;
    args.q = q.tensor;
    args.heads = kHeads;
    args.scale = 1 / std::sqrt(static_cast<float>(kDim));
    args.kv = store_.get();
    args.layer = layer;
    args.plan = &plan;
    backend_->attention(args);
    return out.get(*backend_);
  }

  /// One walk over the pieces where they were computed: K is rotated from its position to that in
  /// the composition as it is read, and one softmax runs over both.
  std::vector<double> fused(const Image& image, const Pages& first, const Pages& second,
                            std::int64_t layer) {
    std::vector<double> out;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t kv_head = head / (kHeads / kKvHeads);
      double most = -INFINITY, sum = 0;
      std::vector<double> weighted(kDim, 0.0);
      for (std::int64_t position = 0; position < kAll; ++position) {
        const bool moved = position >= kA;
        const std::int64_t from = moved ? slot(second, position - kA) : slot(first, position);
        double score = 0;
        for (std::int64_t i = 0; i < kDim / 2; ++i) {
          const double by =
              moved ? angles_->angle(position, i) - angles_->angle(position - kA, i) : 0;
          const double x = static_cast<double>(image.get(from, layer, kv_head, 0, i));
          const double y = static_cast<double>(image.get(from, layer, kv_head, 0, kDim / 2 + i));
          const float* q = q_.data() + head * kDim + i;
          score += static_cast<double>(q[0]) * (x * std::cos(by) - y * std::sin(by)) +
                   static_cast<double>(q[kDim / 2]) * (y * std::cos(by) + x * std::sin(by));
        }
        score /= std::sqrt(static_cast<double>(kDim));
        const double higher = std::max(most, score);
        const double keep = std::exp(most - higher), weight = std::exp(score - higher);
        most = higher;
        sum = sum * keep + weight;
        for (std::int64_t i = 0; i < kDim; ++i) {
          double& value = weighted[static_cast<std::size_t>(i)];
          value =
              value * keep + weight * static_cast<double>(image.get(from, layer, kv_head, 1, i));
        }
      }
      for (const double value : weighted) out.push_back(value / sum);
    }
    return out;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Angles> angles_;
  std::unique_ptr<KvStore> store_;
  Text a_, b_;
  std::vector<float> q_;
};

TEST_P(ComposedAttention, OfTwoPiecesIsThatOfTheWholeInEachLayer) {
  struct Types {
    Numerics compute;
    KvFormat pages;
    double tolerance;
  };
  for (const Types types : {Types{Numerics::kF32, KvFormat::kF32, 1e-5},
                            Types{Numerics::kBF16, KvFormat::kBF16, 3e-2}}) {
    SCOPED_TRACE(name_of(types.pages));
    make(types.compute, types.pages);
    const Pages source = pages(0, 1), whole = pages(kPages, 1);
    const Pages composed = pages(3 * kPages - 1, -1);  // backwards
    const Pages again = pages(3 * kPages, 1);
    compute(b_, 0, source, 0);
    compute(a_, 0, whole, 0);
    compute(b_, kA, whole, kA);
    for (const Pages& target : {composed, again}) {
      compute(a_, 0, target, 0);
      combine(source, target);
    }
    const Image image(*store_);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE("layer " + std::to_string(layer));
      const std::vector<float> got = attend(composed, layer);
      EXPECT_EQ(first_difference(got, attend(again, layer)), -1);
      const std::vector<float> fresh = attend(whole, layer);
      EXPECT_LE(relative_error(got, std::vector<double>(fresh.begin(), fresh.end())),
                types.tolerance);
      EXPECT_LE(relative_error(got, fused(image, whole, source, layer)), types.tolerance);
      // Another text behind the first gives something else.
      EXPECT_GT(relative_error(got, fused(image, whole, whole, layer)), 0.1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, ComposedAttention, ::testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dendrite
