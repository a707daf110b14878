// The amx_bf16 path and its model in plain C++: the instruction's sums, written down here once
// more, and the path's bits by the model's, op by op.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/paths.h"
#include "test_support.h"
#include "tree_fixture.h"

namespace dendrite {
namespace {

using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::Random;
using testing_support::TreeFixture;

bool has_amx() {
  const std::vector<std::string> paths = cpu_kernel_paths();
  return std::find(paths.begin(), paths.end(), "amx_bf16") != paths.end();
}

/// The model, and the path itself where this machine has it.
std::vector<std::string> tile_paths() {
  std::vector<std::string> paths = {"amx_bf16_model"};
  if (has_amx()) paths.emplace_back("amx_bf16");
  return paths;
}

/// bf16 values of either sign, exponents in [low, high).
std::vector<float> values(std::mt19937& random, std::int64_t count, std::uint32_t low,
                          std::uint32_t high) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) {
    const std::uint32_t bits = random();
    const std::uint32_t exponent = low + (bits >> 8 & 0xffffu) % (high - low);
    x = std::bit_cast<float>((bits & 0x80000000u) | exponent << 23 | (bits & 0x7fu) << 16);
  }
  return out;
}

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

/// One output of TDPBF16PS after another, as Intel's manual has it.
std::vector<float> by_the_manual(const std::vector<float>& x, const std::vector<float>& w,
                                 std::int64_t rows, std::int64_t n, std::int64_t k) {
  const auto at = [k](const std::vector<float>& values, std::int64_t row, std::int64_t i) {
    return i < k ? flushed(values[static_cast<std::size_t>(row * k + i)]) : 0.0f;
  };
  std::vector<float> out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      float sum = 0.0f;
      for (std::int64_t run = 0; run < k; run += 32) {
        float even = 0.0f;
        float odd = 0.0f;
        for (std::int64_t i = run; i < run + 32; i += 2) {
          even = flushed(std::fma(at(x, r, i), at(w, c, i), even));
          odd = flushed(std::fma(at(x, r, i + 1), at(w, c, i + 1), odd));
        }
        sum = flushed(sum + flushed(even + odd));
      }
      out.push_back(sum);
    }
  }
  return out;
}

std::vector<float> product(Backend& backend, const std::vector<float>& x,
                           const std::vector<float>& w, std::int64_t rows, std::int64_t n,
                           std::int64_t k) {
  const FileMatrix stored(n, k, DType::kBF16, w);
  const auto weight = backend.pack({&stored.host, 1});
  Owned in(backend, rows, k);
  in.set(backend, x);
  Owned out(backend, rows, n);
  backend.matmul(out.tensor, in.tensor, *weight, nullptr, Backend::Store::kOverwrite);
  return out.get(backend);
}

struct Exponents {
  const char* name;
  std::uint32_t x_low, x_high, w_low, w_high;
};
// Biased by 127. Products around the smallest normal number, 2^-126, and sums that run over.
constexpr Exponents kExponents[] = {{"usual", 120, 130, 115, 128},
                                    {"wide", 60, 190, 60, 190},
                                    {"tiny products", 60, 68, 58, 66},
                                    {"subnormal inputs", 0, 3, 120, 200},
                                    {"overflow", 185, 195, 185, 195}};

TEST(Tiles, SumAsTheManualSays) {
  for (const std::string& path : tile_paths()) {
    const auto backend = make_cpu_backend(Numerics::kBF16, 1, path);
    for (const Exponents& e : kExponents) {
      for (const std::int64_t k : {2, 32, 33, 100, 192}) {
        std::mt19937 random(static_cast<std::uint32_t>(k));
        const std::int64_t rows = 19;
        const std::int64_t n = 70;
        const auto x = values(random, rows * k, e.x_low, e.x_high);
        const auto w = values(random, n * k, e.w_low, e.w_high);
        const auto got = product(*backend, x, w, rows, n, k);
        const auto expected = by_the_manual(x, w, rows, n, k);
        for (std::size_t i = 0; i < got.size(); ++i) {
          if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
          ASSERT_EQ(got[i], expected[i])
              << path << ", " << e.name << ", k " << k << ", output " << i;
        }
      }
    }
  }
}

TEST(Tiles, RoundActivationsToNearestEvenAndSubnormalOnesToZero) {
  // By the identity: what comes out is what an activation was rounded to.
  const std::int64_t k = 32;
  std::vector<float> identity(static_cast<std::size_t>(k * k), 0.0f);
  for (std::int64_t i = 0; i < k; ++i) identity[static_cast<std::size_t>(i * k + i)] = 1.0f;
  std::vector<float> x(static_cast<std::size_t>(k), 1.0f);
  x[0] = std::bit_cast<float>(0x3f808000u);  // halfway, to even: down
  x[1] = std::bit_cast<float>(0x3f818000u);  // halfway, to even: up
  x[2] = std::bit_cast<float>(0x3f808001u);
  x[3] = std::bit_cast<float>(0x807fffffu);  // subnormal
  x[4] = std::bit_cast<float>(0x00800000u);
  for (const std::string& path : tile_paths()) {
    const auto backend = make_cpu_backend(Numerics::kBF16, 1, path);
    const auto got = product(*backend, x, identity, 1, k, k);
    EXPECT_EQ(got[0], 1.0f) << path;
    EXPECT_EQ(got[1], 1.015625f) << path;
    EXPECT_EQ(got[2], 1.0078125f) << path;
    EXPECT_EQ(got[3], 0.0f) << path;
    EXPECT_EQ(got[4], 0x1p-126f) << path;
    EXPECT_EQ(got[5], 1.0f) << path;
  }
}

/// What a machine with AMX gave; every other one has it from the model.
TEST(Tiles, HaveTheBitsOfTheMachineThatTheyWereRecordedOn) {
  for (const std::string& path : tile_paths()) {
    const auto backend = make_cpu_backend(Numerics::kBF16, 1, path);
    std::uint64_t hash = 0;
    std::mt19937 random(7);
    for (const std::int64_t rows : {1, 16, 40}) {
      const std::int64_t k = 321;
      const std::int64_t n = 96;
      const auto x = values(random, rows * k, 110, 130);
      const auto w = values(random, n * k, 110, 130);
      for (const float value : product(*backend, x, w, rows, n, k)) {
        hash = hash * 0x100000001b3u + std::bit_cast<std::uint32_t>(value);
      }
    }
    EXPECT_EQ(hash, 13342285002800746732ull) << path;
  }
}

TEST(Tiles, OfTheMachineHaveTheModelsBitsInEveryOp) {
  if (!has_amx()) GTEST_SKIP() << "this machine has no AMX, or does not grant it";
  const auto machine = make_cpu_backend(Numerics::kBF16, 1, "amx_bf16");
  const auto model = make_cpu_backend(Numerics::kBF16, 1, "amx_bf16_model");
  EXPECT_EQ(machine->info().numerics_key, model->info().numerics_key);
  Random random(3);
  const std::int64_t rows = 23;
  const std::int64_t dim = 200;
  const auto x = random.normal(rows * dim, 2.0f);
  const auto scale = random.normal(dim);
  const auto ops = [&](Backend& backend) {
    std::vector<float> out;
    Owned in(backend, rows, dim);
    in.set(backend, x);
    Owned weight(backend, 1, dim);
    weight.set(backend, scale);
    Owned normed(backend, rows, dim);
    backend.rms_norm(normed.tensor, in.tensor, weight.tensor.data, 1e-5f);
    Owned act(backend, rows, dim / 2);
    backend.silu_mul(act.tensor, in.tensor);
    for (const auto& part : {normed.get(backend), act.get(backend)}) {
      out.insert(out.end(), part.begin(), part.end());
    }
    for (const std::int64_t page_tokens : {8, 16, 32}) {
      for (const std::int64_t head_dim : {24, 64, 80, 128}) {
        TreeFixture::Options options;
        options.shape = {1, 2, head_dim, 400, page_tokens, KvFormat::kBF16};
        options.heads = 8;
        options.window = head_dim == 80 ? 70 : 0;
        options.trunk_tokens = {page_tokens == 16 ? 1100 : 150};
        options.forks = 4;
        options.rows_a_tip = 3;
        const TreeFixture fixture(backend, options, 5);
        const auto attended = fixture.run(backend, 0, fixture.rows(), 1);
        out.insert(out.end(), attended.begin(), attended.end());
      }
    }
    return out;
  };
  EXPECT_EQ(first_difference(ops(*machine), ops(*model)), -1);
}

}  // namespace
}  // namespace dendrite
