// rope_and_store on every path: heads are rotated, normed and stored as double precision says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::Owned;
using testing_support::Random;
using testing_support::relative_error;

class RopeOnPath : public testing::TestWithParam<std::string> {};

TEST_P(RopeOnPath, RopeRotatesNormsAndStores) {
  struct Case {
    std::int64_t heads, kv_heads, dim, rotary, page_tokens;
    bool norm, value_norm = false, values_are_keys = false;
  };
  for (const Case c :
       {Case{4, 2, 64, 64, 16, false}, Case{3, 1, 24, 24, 8, true}, Case{7, 1, 80, 40, 32, true},
        Case{2, 2, 25, 12, 16, false}, Case{2, 1, 128, 128, 16, true},
        Case{2, 2, 48, 48, 16, true, true}, Case{4, 1, 72, 8, 16, false, false, true},
        Case{3, 2, 25, 24, 8, true, false, true}}) {
    for (const KvFormat format : test::kKvFormats) {
      const std::int64_t rows = 20;
      const std::int64_t width = (c.heads + (c.values_are_keys ? 1 : 2) * c.kv_heads) * c.dim;
      Random random(static_cast<std::uint32_t>(c.dim));
      const auto x = random.normal(rows * width);
      const auto q_norm = random.normal(c.dim);
      const auto k_norm = random.normal(c.dim);
      std::vector<float> cos_sin;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto angles = random.normal(c.rotary / 2, 3.0f);
        for (const float angle : angles) cos_sin.push_back(std::cos(angle));
        for (const float angle : angles) cos_sin.push_back(std::sin(angle));
      }
      const auto backend = test::make_backend(Numerics::kF32, 2, GetParam());
      const auto store = backend->make_kv_store(
          {3, c.kv_heads, c.dim, 6, c.page_tokens, format, false, c.values_are_keys});
      std::vector<std::int64_t> slots;
      for (std::int64_t r = 0; r < rows; ++r) slots.push_back(2 * c.page_tokens + 3 + r);
      slots[4] = -1;
      const std::vector<ExtraStore> extra = {{7, 1}, {7, 2}, {19, 5}};
      Owned qkv(*backend, rows, width, width + 2);
      qkv.set(*backend, x);
      Owned table(*backend, rows, c.rotary);
      table.set(*backend, cos_sin);
      Owned q_weight(*backend, 1, c.dim);
      q_weight.set(*backend, q_norm);
      Owned k_weight(*backend, 1, c.dim);
      k_weight.set(*backend, k_norm);
      const auto v_norm = random.normal(c.dim);
      Owned v_weight(*backend, 1, c.dim);
      v_weight.set(*backend, v_norm);
      RopeStore args;
      args.qkv = qkv.tensor;
      args.heads = c.heads;
      args.kv_heads = c.kv_heads;
      args.head_dim = c.dim;
      args.rotary_dim = c.rotary;
      args.cos_sin = table.tensor.data;
      args.q_norm = c.norm ? q_weight.tensor.data : nullptr;
      args.k_norm = c.norm ? k_weight.tensor.data : nullptr;
      args.v_norm = c.value_norm ? v_weight.tensor.data : nullptr;
      args.norm_eps = 1e-6f;
      args.slots = slots;
      args.extra_stores = extra;
      args.kv = store.get();
      args.layer = 1;
      backend->rope_and_store(args);

      const auto expected_head = [&](std::int64_t row, std::int64_t head,
                                     const std::vector<float>& norm) {
        std::vector<double> y;
        double square = 0;
        for (std::int64_t i = 0; i < c.dim; ++i) {
          y.push_back(
              static_cast<double>(x[static_cast<std::size_t>(row * width + head * c.dim + i)]));
          square += y.back() * y.back();
        }
        if (c.norm) {
          const double factor = 1.0 / std::sqrt(square / static_cast<double>(c.dim) + 1e-6);
          for (std::size_t i = 0; i < y.size(); ++i) y[i] *= factor * static_cast<double>(norm[i]);
        }
        for (std::int64_t i = 0; i < c.rotary / 2; ++i) {
          const auto a = static_cast<std::size_t>(i);
          const auto b = static_cast<std::size_t>(i + c.rotary / 2);
          const double cosine =
              static_cast<double>(cos_sin[static_cast<std::size_t>(row * c.rotary + i)]);
          const double sine = static_cast<double>(
              cos_sin[static_cast<std::size_t>(row * c.rotary + c.rotary / 2 + i)]);
          const double first = y[a] * cosine - y[b] * sine;
          y[b] = y[b] * cosine + y[a] * sine;
          y[a] = first;
        }
        return y;
      };
      const auto got = qkv.get(*backend);
      const double stored_tolerance = format == KvFormat::kF32    ? 1e-5
                                      : format == KvFormat::kBF16 ? 1.5e-2
                                                                  : 0.24;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t h = 0; h < c.heads; ++h) {
          const auto head = std::span(got).subspan(static_cast<std::size_t>(r * width + h * c.dim),
                                                   static_cast<std::size_t>(c.dim));
          EXPECT_LE(relative_error(head, expected_head(r, h, q_norm)), 1e-5);
        }
        std::vector<std::int64_t> places;
        if (slots[static_cast<std::size_t>(r)] >= 0)
          places.push_back(slots[static_cast<std::size_t>(r)]);
        for (const ExtraStore& e : extra) {
          if (e.row == r) places.push_back(e.slot);
        }
        for (const std::int64_t slot : places) {
          const std::int64_t offset = slot % c.page_tokens;
          std::vector<float> k(static_cast<std::size_t>((offset + 1) * c.kv_heads * c.dim));
          std::vector<float> v(k.size());
          store->read(static_cast<std::int32_t>(slot / c.page_tokens), 1,
                      static_cast<std::int32_t>(offset + 1), k, v);
          for (std::int64_t h = 0; h < c.kv_heads; ++h) {
            const auto at = static_cast<std::size_t>((offset * c.kv_heads + h) * c.dim);
            const auto size = static_cast<std::size_t>(c.dim);
            EXPECT_LE(relative_error(std::span(k).subspan(at, size),
                                     expected_head(r, c.heads + h, k_norm)),
                      stored_tolerance);
            if (c.values_are_keys) {
              EXPECT_EQ(v, k);
              continue;
            }
            std::vector<double> value;
            double square = 0;
            for (std::int64_t i = 0; i < c.dim; ++i) {
              value.push_back(static_cast<double>(
                  x[static_cast<std::size_t>(r * width + (c.heads + c.kv_heads + h) * c.dim + i)]));
              square += value.back() * value.back();
            }
            if (c.value_norm) {
              const double factor = 1.0 / std::sqrt(square / static_cast<double>(c.dim) + 1e-6);
              for (std::size_t i = 0; i < value.size(); ++i) {
                value[i] *= factor * static_cast<double>(v_norm[i]);
              }
            }
            EXPECT_LE(relative_error(std::span(v).subspan(at, size), value), stored_tolerance);
          }
        }
      }
    }
  }
}

/// Of a layer whose K and V are another's.
TEST_P(RopeOnPath, RopeWithoutKeysRotatesAsWithThemAndStoresNothing) {
  const std::int64_t rows = 3, heads = 2, dim = 16;
  const auto backend = test::make_backend(Numerics::kF32, 1, GetParam());
  const auto store = backend->make_kv_store({1, 1, dim, 1, 8, KvFormat::kF32});
  Random random(8);
  const auto queries = random.normal(rows * heads * dim);
  const auto angles = random.normal(rows * dim);
  Owned table(*backend, rows, dim);
  table.set(*backend, angles);
  const std::vector<std::int64_t> slots = {0, 1, 2};
  const auto rotated = [&](std::int64_t kv_heads) {
    const std::int64_t width = (heads + 2 * kv_heads) * dim;
    std::vector<float> x(static_cast<std::size_t>(rows * width), 7.0F);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(queries.begin() + row * heads * dim, heads * dim, x.begin() + row * width);
    }
    Owned qkv(*backend, rows, width);
    qkv.set(*backend, x);
    RopeStore args;
    args.qkv = qkv.tensor;
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.head_dim = args.rotary_dim = dim;
    args.cos_sin = table.tensor.data;
    args.slots = slots;
    args.kv = store.get();
    backend->rope_and_store(args);
    const auto all = qkv.get(*backend);
    std::vector<float> out;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = all.begin() + row * width;
      out.insert(out.end(), begin, begin + heads * dim);
    }
    return out;
  };
  const auto kept = [&] {
    std::vector<float> k(3 * dim), v(3 * dim);
    store->read(0, 0, 3, k, v);
    k.insert(k.end(), v.begin(), v.end());
    return k;
  };
  const auto with = rotated(1);
  const auto before = kept();
  EXPECT_NE(before.back(), 0.0F);
  EXPECT_EQ(rotated(0), with);
  EXPECT_EQ(kept(), before);
}

TEST_P(RopeOnPath, RowsOfExtraStoresMustAscend) {
  const auto backend = test::make_backend(Numerics::kF32, 1, GetParam());
  const auto store = backend->make_kv_store({1, 1, 16, 1, 8, KvFormat::kF32});
  Owned qkv(*backend, 3, 3 * 16);
  Owned table(*backend, 3, 16);
  const std::vector<std::int64_t> slots = {0, 1, 2};
  std::vector<ExtraStore> extra = {{0, 5}, {2, 4}, {2, 3}};
  RopeStore args;
  args.qkv = qkv.tensor;
  args.heads = args.kv_heads = 1;
  args.head_dim = args.rotary_dim = 16;
  args.cos_sin = table.tensor.data;
  args.slots = slots;
  args.extra_stores = extra;
  args.kv = store.get();
  EXPECT_NO_THROW(backend->rope_and_store(args));
  extra.push_back({1, 6});
  args.extra_stores = extra;
  EXPECT_THROW(backend->rope_and_store(args), Error);
}

TEST_P(RopeOnPath, StoresTheCodesOfFp8) {
  EXPECT_TRUE(
      testing_support::stores_fp8_as_the_host(*test::make_backend(Numerics::kBF16, 1, GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Paths, RopeOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dendrite
