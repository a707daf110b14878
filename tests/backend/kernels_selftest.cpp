// The backend's numeric checks without a test framework or threads, for machines that are emulated
// or have nothing but a compiler. Covers every path the machine can run: each op against double
// precision, and rows alone against rows in company, bit for bit.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "coded_fixture.h"
#include "delta_fixture.h"
#include "mamba_fixture.h"
#include "short_conv_fixture.h"
#include "test_support.h"
#include "tree_fixture.h"

namespace dendrite {
namespace {

using testing_support::all_blocks;
using testing_support::Blocks;
using testing_support::Coded;
using testing_support::DeltaFixture;
using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::kDeltaTolerance;
using testing_support::kMambaTolerance;
using testing_support::MambaFixture;
using testing_support::Owned;
using testing_support::product;
using testing_support::Random;
using testing_support::RecurrentBranch;
using testing_support::reference_matmul;
using testing_support::relative_error;
using testing_support::rounded_in_groups;
using testing_support::rounds_activations;
using testing_support::Share;
using testing_support::ShortConvFixture;
using testing_support::TreeFixture;
using testing_support::widened;

int failures = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

void check_matmul(const std::string& path, Numerics compute, DType stored) {
  const auto backend = make_cpu_backend(compute, 1, path);
  const bool rounded = compute == Numerics::kBF16 && rounds_activations(path);
  for (const std::int64_t k : {1, 63, 130, 333}) {
    const std::int64_t n = 100;
    const std::int64_t rows = 20;
    Random random(static_cast<std::uint32_t>(k));
    const FileMatrix w(n, k, stored, random.normal(n * k));
    const auto x = random.normal(rows * k);
    const auto weight = backend->pack({&w.host, 1});
    Owned in(*backend, rows, k, k + 3);
    in.set(*backend, x);
    std::vector<float> alone;
    for (std::int64_t r = 0; r < rows; ++r) {
      Owned out(*backend, 1, n);
      backend->matmul(out.tensor, {in.tensor.data + r * in.tensor.stride, 1, k, k}, *weight,
                      nullptr, Backend::Store::kOverwrite);
      const auto values = out.get(*backend);
      alone.insert(alone.end(), values.begin(), values.end());
    }
    const std::string name =
        path + " matmul " + name_of(compute) + " " + name_of(stored) + " k " + std::to_string(k);
    expect(
        relative_error(alone, reference_matmul(x, w.values, rows, n, k)) <= (rounded ? 1e-2 : 1e-5),
        name);
    for (std::int64_t m = 1; m <= rows; ++m) {
      Owned out(*backend, m, n);
      backend->matmul(out.tensor, in.tensor.first_rows(m), *weight, nullptr,
                      Backend::Store::kOverwrite);
      const auto got = out.get(*backend);
      expect(first_difference(got, std::span(alone).first(got.size())) == -1,
             name + ": bits of " + std::to_string(m) + " rows");
    }
  }
}

void check_groups(const std::string& path) {
  const auto backend = make_cpu_backend(Numerics::kBF16, 1, path);
  for (const Blocks& blocks : all_blocks()) {
    const std::int64_t k = 768;
    const std::int64_t n = 100;
    const std::int64_t rows = 20;
    Random random(3);
    const FileMatrix w(n, k, *blocks.format, blocks.halves, random);
    const auto x = random.normal(rows * k);
    const auto weight = backend->pack({&w.host, 1});
    Owned in(*backend, rows, k);
    in.set(*backend, x);
    Owned all(*backend, rows, n);
    backend->matmul(all.tensor, in.tensor, *weight, nullptr, Backend::Store::kOverwrite);
    const auto got = all.get(*backend);
    const std::string name = path + " matmul " + std::string(blocks.format->name());
    expect(relative_error(got, reference_matmul(rounded_in_groups(x, k), w.values, rows, n, k)) <=
               1e-5,
           name);
    for (std::int64_t r = 0; r < rows; ++r) {
      Owned out(*backend, 1, n);
      backend->matmul(out.tensor, {in.tensor.data + r * k, 1, k, k}, *weight, nullptr,
                      Backend::Store::kOverwrite);
      const auto alone = out.get(*backend);
      expect(first_difference(alone, std::span(got).subspan(static_cast<std::size_t>(r * n),
                                                            static_cast<std::size_t>(n))) == -1,
             name + ": bits of row " + std::to_string(r));
    }
  }
}

void check_codes(const std::string& path) {
  const auto backend = make_cpu_backend(Numerics::kBF16, 1, path);
  for (const Share share : testing_support::kShares) {
    const std::int64_t k = 352;
    const std::int64_t n = 100;
    Random random(3);
    const Coded coded(n, k, share, random);
    const FileMatrix wide(n, k, DType::kBF16, widened(coded.matrix));
    for (const std::int64_t rows : {1, 20}) {
      Owned in(*backend, rows, k);
      in.set(*backend, random.normal(rows * k));
      const auto of = [&](const StoredMatrix& matrix) {
        return product(*backend, *backend->pack({&matrix, 1}), in.tensor);
      };
      expect(first_difference(of(coded.matrix), of(wide.host)) == -1,
             path + " matmul " + std::string(coded.matrix.format->name()) + ": bits of " +
                 std::to_string(rows) + " rows");
    }
  }
}

void check_attention(const std::string& path, Numerics compute, KvFormat pages) {
  const auto backend = make_cpu_backend(compute, 1, path);
  const bool rounded = compute == Numerics::kBF16 && rounds_activations(path);
  for (const std::int64_t page_tokens : {8, 16, 32}) {
    for (const std::int64_t head_dim : {24, 64, 80}) {
      TreeFixture::Options options;
      options.shape = {1, 2, head_dim, 400, page_tokens, pages};
      options.heads = 8;
      options.window = head_dim == 80 ? 70 : 0;
      options.trunk_tokens = {page_tokens == 16 ? 1100 : 150};
      options.forks = 4;
      options.rows_a_tip = 2;
      const TreeFixture fixture(*backend, options, 3);
      const auto together = fixture.run(*backend, 0, fixture.rows(), 1);
      std::vector<float> alone;
      for (std::int64_t r = 0; r < fixture.rows(); ++r) {
        const auto row = fixture.run(*backend, r, r + 1, 2);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      const std::string name = path + " attention " + name_of(compute) + ", pages of " +
                               std::to_string(page_tokens) + " " + name_of(pages) + ", d " +
                               std::to_string(head_dim);
      expect(relative_error(together, fixture.reference()) <= (rounded ? 2e-2 : 1e-5), name);
      expect(first_difference(together, alone) == -1, name + ": bits alone");
    }
  }
}

void check_rows(const std::string& path) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1, path);
  const std::int64_t rows = 5;
  const std::int64_t dim = 77;
  Random random(4);
  const auto x = random.normal(rows * 2 * dim, 3.0f);
  const auto w = random.normal(2 * dim);
  Owned weight(*backend, 1, 2 * dim);
  weight.set(*backend, w);
  Owned in(*backend, rows, 2 * dim);
  in.set(*backend, x);
  Owned out(*backend, rows, 2 * dim);
  backend->rms_norm(out.tensor, in.tensor, weight.tensor.data, 1e-5f);
  std::vector<double> norm;
  std::vector<double> silu;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = &x[static_cast<std::size_t>(r * 2 * dim)];
    double square = 0;
    for (std::int64_t i = 0; i < 2 * dim; ++i) square += static_cast<double>(row[i]) * row[i];
    for (std::int64_t i = 0; i < 2 * dim; ++i) {
      norm.push_back(row[i] / std::sqrt(square / (2.0 * static_cast<double>(dim)) + 1e-5) *
                     static_cast<double>(w[static_cast<std::size_t>(i)]));
    }
    for (std::int64_t i = 0; i < dim; ++i) {
      silu.push_back(row[i] / (1.0 + std::exp(-static_cast<double>(row[i]))) *
                     static_cast<double>(row[dim + i]));
    }
  }
  expect(relative_error(out.get(*backend), norm) <= 1e-5, path + " rms_norm");
  Owned half(*backend, rows, dim);
  backend->silu_mul(half.tensor, in.tensor);
  expect(relative_error(half.get(*backend), silu) <= 1e-5, path + " silu_mul");
}

/// A path row by row, of which reference_of(rows) is what comes out, alone and as one run.
template <class Fixture, typename ReferenceOf>
void check_recurrence(Fixture& net, double tolerance, const std::string& name,
                      ReferenceOf reference_of) {
  const std::int64_t length = 40;
  const std::int64_t first = net.make_rows(length);
  RecurrentBranch alone;
  for (std::int64_t i = 0; i < length; ++i) {
    net.add(alone, first + i, 1, Fixture::Keep::kAll, i < 20);
    net.run();
  }
  const auto got = net.out_of(alone.rows);
  expect(relative_error(got, reference_of(alone.rows)) <= tolerance, name);
  expect(first_difference(got, net.replayed(alone.rows)) == -1, name + " in company");
}

void check_delta_net(const std::string& path) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1, path);
  for (const DeltaNetSizes& shape : {DeltaNetSizes{2, 4, 16, 32, 4}, DeltaNetSizes{1, 3, 21, 13, 3},
                                     DeltaNetSizes{2, 2, 21, 13, 4, true}}) {
    DeltaFixture net(*backend, shape, 1);
    check_recurrence(net, kDeltaTolerance, path + " delta_net " + std::to_string(shape.value_dim),
                     [&](const auto& rows) { return net.reference(rows).out; });
  }
}

void check_short_conv(const std::string& path) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1, path);
  for (const ShortConvSizes& shape : {ShortConvSizes{64, 3}, ShortConvSizes{37, 7}}) {
    ShortConvFixture conv(*backend, shape, 1);
    check_recurrence(conv, 1e-5, path + " short_conv " + std::to_string(shape.channels),
                     [&](const auto& rows) { return conv.reference(rows); });
  }
}

void check_mamba(const std::string& path) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1, path);
  for (const MambaSizes& shape : {MambaSizes{4, 32, 2, 16, 4}, MambaSizes{3, 13, 1, 21, 3}}) {
    MambaFixture net(*backend, shape, 1);
    check_recurrence(net, kMambaTolerance, path + " mamba " + std::to_string(shape.head_dim),
                     [&](const auto& rows) { return net.reference(rows).out; });
  }
}

}  // namespace
}  // namespace dendrite

int main() {
  using namespace dendrite;
  for (const std::string& path : cpu_kernel_paths()) {
    check_rows(path);
    check_delta_net(path);
    check_short_conv(path);
    check_mamba(path);
    check_matmul(path, Numerics::kF32, DType::kF32);
    check_matmul(path, Numerics::kF32, DType::kF16);
    check_matmul(path, Numerics::kBF16, DType::kBF16);
    check_groups(path);
    check_codes(path);
    expect(testing_support::stores_fp8_as_the_host(*make_cpu_backend(Numerics::kBF16, 1, path)),
           path + " codes of FP8");
    check_attention(path, Numerics::kF32, KvFormat::kF32);
    check_attention(path, Numerics::kBF16, KvFormat::kBF16);
    check_attention(path, Numerics::kBF16, KvFormat::kFP8);
    check_attention(path, Numerics::kF32, KvFormat::kFP8);
    std::printf("%s: checked\n", path.c_str());
  }
  std::printf(failures == 0 ? "all good\n" : "%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
