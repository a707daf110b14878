// Ranks that compute together: what each has, and what they make of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/group/group_backend.h"
#include "backend/group/group_weight.h"
#include "held_matrix.h"
#include "host_exchange.h"
#include "support/f32_matrix.h"
#include "test_support.h"

namespace dendrite {
namespace {

using test::f32_matrix;
using testing_support::Owned;
using testing_support::Random;
using Matrix = std::vector<float>;

constexpr std::int64_t kRows = 96;
constexpr std::int64_t kCols = 128;

/// Ranks, and the device that each is on.
using Ranks = std::vector<std::size_t>;

std::unique_ptr<Backend> make_group(Numerics numerics, const Ranks& device_of,
                                    bool writes_to_first = false) {
  std::vector<std::unique_ptr<Backend>> devices(std::ranges::max(device_of) + 1);
  for (auto& device : devices) device = make_cpu_backend(numerics, 1);
  return std::make_unique<group::GroupBackend>(
      std::move(devices), device_of, std::make_unique<test::HostExchange>(writes_to_first));
}

class Group : public ::testing::TestWithParam<Ranks> {
 protected:
  std::int64_t ranks() const { return std::ssize(GetParam()); }
  std::int64_t devices() const {
    return static_cast<std::int64_t>(std::ranges::max(GetParam())) + 1;
  }

  /// x [tokens, cols of the weight] * W^T + bias on a backend.
  static Matrix product(Backend& backend, const Weight& weight, const Matrix& x,
                        const Matrix& bias) {
    const std::int64_t tokens = std::ssize(x) / weight.cols();
    Owned in(backend, tokens, weight.cols());
    in.set(backend, x);
    Owned out(backend, tokens, weight.rows());
    const auto biases = backend.make_buffer(std::ssize(bias));
    backend.upload(biases->data(), bias);
    backend.matmul(out.tensor, in.tensor, weight, bias.empty() ? nullptr : biases->data(),
                   Backend::Store::kOverwrite);
    return out.get(backend);
  }

  Random random_{5};
  std::unique_ptr<Backend> one_ = make_cpu_backend(Numerics::kF32, 1);
  std::unique_ptr<Backend> group_ = make_group(Numerics::kF32, GetParam());
  Matrix w_ = random_.normal(kRows * kCols);
  Matrix x_ = random_.normal(5 * kCols);
  Matrix bias_ = random_.normal(kRows);
};

TEST_P(Group, ComputesWhatIsNotSharedOnEveryDevice) {
  const StoredMatrix matrix = f32_matrix(w_, kRows, kCols);
  const auto alone = one_->pack({&matrix, 1});
  const auto all = group_->pack({&matrix, 1});
  EXPECT_EQ(all->rows(), kRows);
  EXPECT_EQ(all->cols(), kCols);
  EXPECT_EQ(all->size_bytes(), devices() * alone->size_bytes());
  EXPECT_EQ(product(*group_, *all, x_, bias_), product(*one_, *alone, x_, bias_));
}

TEST_P(Group, BringsLogitsTogetherWithTheBitsOfOneDevice) {
  const StoredMatrix matrix = f32_matrix(w_, kRows, kCols);
  const Matrix expected = product(*one_, *one_->pack({&matrix, 1}), x_, {});
  for (const bool writes_to_first : {false, true}) {
    const auto group = make_group(Numerics::kF32, GetParam(), writes_to_first);
    const auto shared = group->pack_split({&matrix, 1}, {Split::Of::kLogits, {kRows}});
    EXPECT_EQ(shared->rows(), kRows);
    EXPECT_EQ(product(*group, *shared, x_, {}), expected);
  }
  const StoredMatrix odd = f32_matrix(w_, kRows - 1, kCols);  // which all devices compute
  const auto uneven = group_->pack_split({&odd, 1}, {Split::Of::kLogits, {kRows - 1}});
  EXPECT_EQ(product(*group_, *uneven, x_, {}), product(*one_, *one_->pack({&odd, 1}), x_, {}));
}

/// Over shared inputs: to what was there the ranks' sums are added in their order, the first with
/// the bias.
TEST_P(Group, AddsWhatRanksGiveInTheirOrder) {
  const StoredMatrix matrix = f32_matrix(w_, kRows, kCols);
  const auto shared = group_->pack_split({&matrix, 1}, {Split::Of::kInputs});
  EXPECT_EQ(shared->rows(), kRows);
  EXPECT_EQ(shared->cols(), kCols);
  const std::int64_t each = kCols / ranks();
  const auto expected = [&](Matrix sums, bool add) {
    for (std::int64_t rank = 0; rank < ranks(); ++rank) {
      Matrix w, x;
      const auto columns = [&](const Matrix& from, Matrix& to) {
        for (auto row = from.begin(); row != from.end(); row += kCols) {
          to.insert(to.end(), row + rank * each, row + (rank + 1) * each);
        }
      };
      columns(w_, w);
      columns(x_, x);
      const StoredMatrix part = f32_matrix(w, kRows, each);
      const Matrix of_rank =
          product(*one_, *one_->pack({&part, 1}), x, rank == 0 ? bias_ : Matrix{});
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] = rank == 0 && !add ? of_rank[i] : sums[i] + of_rank[i];
      }
    }
    return sums;
  };
  // Rows of x lie as the ranks have them: each its own columns, packed.
  const auto run = [&](const Matrix& there, bool add) {
    Owned in(*group_, 5, kCols);
    group_->upload_split(in.tensor.data, x_,
                         {Split::Of::kOutputs, std::vector<std::int64_t>(5, kCols)});
    Owned out(*group_, 5, kRows);
    out.set(*group_, there);
    const auto bias = group_->make_buffer(kRows);
    group_->upload(bias->data(), bias_);
    group_->matmul(out.tensor, in.tensor, *shared, bias->data(),
                   add ? Backend::Store::kAdd : Backend::Store::kOverwrite);
    return out.get(*group_);
  };
  const Matrix there = random_.normal(5 * kRows);
  EXPECT_EQ(run(there, false), expected(there, false));
  EXPECT_EQ(run(there, true), expected(there, true));
}

/// Packed weights are cut where their groups have no borders, too.
TEST_P(Group, SplitsRowsOfEveryFormat) {
  const auto one = make_cpu_backend(Numerics::kBF16, 1);
  const auto group = make_group(Numerics::kBF16, GetParam());
  for (const std::string& kind : test::packed_kinds()) {
    SCOPED_TRACE(kind);
    constexpr std::int64_t kTall = 192, kWide = 512;
    const test::Held held(kind, 32, kTall, kWide);
    const StoredMatrix& matrix = held.matrix();
    const Matrix x = random_.normal(3 * kWide);
    const Matrix expected = product(*one, *one->pack({&matrix, 1}), x, {});
    const Split logits{Split::Of::kLogits, {kTall}};
    EXPECT_EQ(product(*group, *group->pack_split({&matrix, 1}, logits), x, {}), expected);
    if (matrix.groups != nullptr || kWide / ranks() % 256 != 0) continue;
    const auto split = group->pack_split({&matrix, 1}, {Split::Of::kInputs});
    Owned in(*group, 3, kWide);
    group->upload_split(in.tensor.data, x,
                        {Split::Of::kOutputs, std::vector<std::int64_t>(3, kWide)});
    Owned out(*group, 3, kTall);
    group->matmul(out.tensor, in.tensor, *split, nullptr, Backend::Store::kOverwrite);
    const Matrix got = out.get(*group);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 0.02 * std::sqrt(kWide)) << i;
    }
  }
}

TEST(GroupSplits, AreOfEveryRun) {
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const std::vector<std::int64_t> runs{8, 4, 4};
  EXPECT_EQ(group::rows_on(runs, 0, 2), (Ranges{{0, 4}, {8, 10}, {12, 14}}));
  EXPECT_EQ(group::rows_on(runs, 1, 2), (Ranges{{4, 8}, {10, 12}, {14, 16}}));
  EXPECT_EQ(group::rows_on(runs, 3, 4), (Ranges{{6, 8}, {11, 12}, {15, 16}}));
}

/// A stack of three tensors and one tensor of all their rows have the same shares.
TEST(GroupSplits, DoNotDependOnHowTensorsAreCut) {
  const Matrix values = Random(3).normal(16 * 8);
  const Split split{Split::Of::kOutputs, {8, 4, 4}};
  const StoredMatrix whole = f32_matrix(values, 16, 8);
  std::vector<StoredMatrix> cut(3, whole);
  cut[0].rows = 8;
  cut[1].rows = cut[2].rows = 4;
  cut[1].data = whole.row(8);
  cut[2].data = whole.row(12);
  const auto rows_of = [](std::span<const StoredMatrix> parts) {
    std::vector<const std::byte*> rows;
    for (const StoredMatrix& part : parts) {
      for (std::int64_t row = 0; row < part.rows; ++row) rows.push_back(part.row(row));
    }
    return rows;
  };
  for (const std::size_t rank : {0, 1}) {
    const group::SharedParts of_whole({&whole, 1}, split, rank, 2);
    const group::SharedParts of_cut(cut, split, rank, 2);
    EXPECT_EQ(rows_of(of_whole.views()), rows_of(of_cut.views()));
    EXPECT_EQ(rows_of(of_whole.views()).size(), 8u);
  }
}

/// Pages of ranks are, to everybody else, those of one store.
TEST_P(Group, PagesAreThoseOfOneStore) {
  for (const auto& [format, values_are_keys] : {std::pair{KvFormat::kF32, false},
                                                {KvFormat::kBF16, false},
                                                {KvFormat::kFP8, false},
                                                {KvFormat::kBF16, true},
                                                {KvFormat::kFP8, true}}) {
    SCOPED_TRACE(std::string(name_of(format)) + (values_are_keys ? ", values are keys" : ""));
    const KvShape shape{.layers = 3,
                        .kv_heads = 4,
                        .head_dim = 16,
                        .pages = 3,
                        .page_tokens = 16,
                        .format = format,
                        .guarded = true,
                        .values_are_keys = values_are_keys};
    const auto alone = one_->make_kv_store(shape);
    const auto shared = group_->make_kv_store(shape);
    EXPECT_EQ(shared->shape().kv_heads, 4);
    const std::int64_t count = 11 * 4 * 16;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const Matrix k = random_.normal(count), v = random_.normal(count);
      const std::span<const float> given = values_are_keys ? std::span<const float>() : v;
      alone->write(1, layer, 11, k, given);
      shared->write(1, layer, 11, k, given);
    }
    for (const auto* store : {&alone, &shared}) (*store)->copy_slots(1, 2, 7);
    const auto bytes_of = [&](const KvStore& store, std::int32_t page, std::int32_t tokens) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(shape.page_bytes()));
      store.export_page(page, tokens, bytes);
      return bytes;
    };
    EXPECT_EQ(bytes_of(*shared, 1, 11), bytes_of(*alone, 1, 11));
    EXPECT_EQ(bytes_of(*shared, 2, 7), bytes_of(*alone, 2, 7));
    shared->import_page(0, bytes_of(*alone, 1, 11));
    EXPECT_EQ(bytes_of(*shared, 0, 11), bytes_of(*alone, 1, 11));
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      Matrix k(count), v(count), expected_k(count), expected_v(count);
      shared->read(0, layer, 11, k, v);
      alone->read(1, layer, 11, expected_k, expected_v);
      EXPECT_EQ(k, expected_k);
      EXPECT_EQ(v, expected_v);
    }
    const KvStore::RawLayout raw = shared->raw_layout();
    EXPECT_EQ(raw.parts, ranks() * alone->raw_layout().parts);
    std::vector<std::byte> bytes(static_cast<std::size_t>(raw.page_bytes()));
    shared->read_raw(1, bytes);
    shared->write_raw(2, bytes);
    EXPECT_EQ(bytes_of(*shared, 2, 11), bytes_of(*alone, 1, 11));
  }
}

TEST_P(Group, AnswersForAllOfItsRanks) {
  EXPECT_EQ(group_->ranks(), ranks());
  EXPECT_EQ(group_->info().numerics_key,
            one_->info().numerics_key + "/" + std::to_string(ranks()) + "_ranks");
  const DeviceMemory memory = group_->memory();
  EXPECT_EQ(memory.total, devices() * one_->memory().total);
  EXPECT_EQ(memory.free % ranks(), 0);  // each gets as much
  EXPECT_LE(memory.free, memory.total);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Group,
                         ::testing::Values(Ranks{0, 0}, Ranks{0, 1}, Ranks{0, 0, 0, 0},
                                           Ranks{1, 0, 0, 1}));

}  // namespace
}  // namespace dendrite
