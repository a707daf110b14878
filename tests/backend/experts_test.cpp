#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "support/paths.h"
#include "test_support.h"

// Mixtures of experts against double precision, and the bits of their rows in any company.

namespace dendrite {
namespace {

using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::relative_error;
using testing_support::rounds_activations;

struct Shape {
  std::int64_t dim, ffn, shared_ffn;
  Routing routing;
  bool corrected = false;
  bool bias = false;
  Activation activation{};
  bool scaled = false;  // weights are, by a factor of each expert
};

/// Sigmoids, of which experts are chosen by others than weigh.
Routing by_sigmoids(std::int64_t experts, std::int64_t chosen, SharedExpert shared,
                    std::int64_t groups = 1, std::int64_t chosen_groups = 1) {
  return {.experts = experts,
          .chosen = chosen,
          .normalised = true,
          .shared = shared,
          .score = RouterScore::kSigmoid,
          .scale = 1.8F,
          .groups = groups,
          .chosen_groups = chosen_groups,
          .sum_bias = groups > 1 ? 0.0F : 0.3F};
}

constexpr Activation kClamped{Activation::Kind::kClamped, 0.8F, 1.7F};

const std::vector<Shape> kShapes = {
    {64, 32, 0, {4, 1, false}},
    {48, 24, 0, {7, 3, true}},
    {32, 20, 56, {5, 5, true, SharedExpert::kPlain}},
    {50, 33, 17, {19, 6, false, SharedExpert::kGated}},
    {48, 24, 24, by_sigmoids(9, 3, SharedExpert::kPlain), true},
    {32, 16, 0, by_sigmoids(24, 4, SharedExpert::kNone, 6, 2), true},
    {64, 40, 0, {8, 4, true}, false, true, kClamped},
    {40, 24, 0, {5, 2, false}, false, false, {Activation::Kind::kGelu}},
    {48, 24, 0, {6, 2, true}, false, false, {Activation::Kind::kGelu}, true},
};

std::string text_of(const Shape& s) {
  return std::to_string(s.routing.experts) + " experts, " + std::to_string(s.routing.chosen) +
         " chosen of " + std::to_string(s.routing.groups) + " groups, dim " +
         std::to_string(s.dim) + ", ffn " + std::to_string(s.ffn) + (s.bias ? ", biases" : "") +
         (s.corrected ? ", corrected" : "") + (s.scaled ? ", scaled" : "");
}

/// A layer's experts with their exact values.
class Mixture {
 public:
  Mixture(Backend& backend, const Shape& shape, DType dtype) : backend_(backend), shape_(shape) {
    Random random(31);
    for (std::int64_t e = 0; e < shape.routing.all_experts(); ++e) {
      const std::int64_t ffn = e < shape.routing.experts ? shape.ffn : shape.shared_ffn;
      add(random, gate_ups_, 2 * ffn, shape.dim, dtype);
      add(random, downs_, shape.dim, ffn, dtype);
    }
    for (const FileMatrix& matrix : gate_ups_) add_bias(random, matrix.host.rows);
    for (const FileMatrix& matrix : downs_) add_bias(random, matrix.host.rows);
    if (shape.corrected) correction_ = random.normal(shape.routing.experts);
    if (shape.scaled) factors_ = random.normal(shape.routing.experts);
    pack();
  }
  /// The same of matrices in blocks.
  Mixture(Backend& backend, const Shape& shape, const testing_support::Blocks& blocks)
      : backend_(backend), shape_(shape) {
    Random random(32);
    for (std::int64_t e = 0; e < shape.routing.all_experts(); ++e) {
      gate_ups_.emplace_back(2 * shape.ffn, shape.dim, *blocks.format, blocks.halves, random);
      downs_.emplace_back(shape.dim, shape.ffn, *blocks.format, blocks.halves, random);
    }
    pack();
  }

  /// What is added to rows of zeros, or of `out`.
  std::vector<float> run(std::span<const float> x, std::span<const float> logits,
                         std::span<const float> out = {}) const {
    const std::int64_t rows = std::ssize(x) / shape_.dim;
    const std::int64_t widest = std::max(shape_.ffn, shape_.shared_ffn);
    Owned rows_in(backend_, rows, shape_.dim, shape_.dim + 3);
    Owned scores(backend_, rows, shape_.routing.logits(), shape_.routing.logits() + 2);
    Owned sums(backend_, rows, shape_.dim);
    Owned in(backend_, rows, shape_.dim);
    Owned gate_up(backend_, rows, 2 * widest);
    Owned act(backend_, rows, widest);
    Owned down(backend_, rows, shape_.dim);
    rows_in.set(backend_, x);
    scores.set(backend_, logits);
    const std::vector<float> zeros(x.size());
    sums.set(backend_, out.empty() ? std::span<const float>(zeros) : out);
    backend_.experts({.x = rows_in.tensor,
                      .logits = scores.tensor,
                      .routing = shape_.routing,
                      .correction = device_correction_ ? device_correction_->tensor.data : nullptr,
                      .factors = device_factors_ ? device_factors_->tensor.data : nullptr,
                      .activation = shape_.activation,
                      .experts = experts_,
                      .out = sums.tensor,
                      .in = in.tensor,
                      .gate_up = gate_up.tensor,
                      .act = act.tensor,
                      .down = down.tensor});
    return sums.get(backend_);
  }

  /// Of each row, the experts it takes and how much they weigh.
  std::vector<std::pair<std::size_t, double>> choices(std::span<const float> logits) const {
    const Routing& routing = shape_.routing;
    const auto count = static_cast<std::size_t>(routing.experts);
    const double most = *std::max_element(logits.begin(), logits.begin() + routing.experts);
    double sum = 0;
    for (std::size_t e = 0; e < count; ++e) sum += std::exp(logits[e] - most);
    std::vector<double> scores;
    std::vector<double> ranks;
    for (std::size_t e = 0; e < count; ++e) {
      const auto logit = static_cast<double>(logits[e]);
      const bool sigmoid = routing.score == RouterScore::kSigmoid;
      scores.push_back(sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - most) / sum);
      ranks.push_back(scores.back() + (correction_.empty() ? 0.0 : correction_[e]));
    }
    const std::vector<std::size_t> groups = best_groups(ranks);
    std::vector<std::size_t> order;
    for (std::size_t e = 0; e < count; ++e) {
      const std::size_t of_group = count / static_cast<std::size_t>(routing.groups);
      if (std::ranges::find(groups, e / of_group) != groups.end()) order.push_back(e);
    }
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t e) { return ranks[e]; });
    order.resize(static_cast<std::size_t>(routing.chosen));
    std::vector<std::pair<std::size_t, double>> out;
    double chosen = 0;
    for (const std::size_t e : order) {
      out.emplace_back(e, scores[e]);
      chosen += out.back().second;
    }
    for (auto& [e, weight] : out) {
      weight *= static_cast<double>(routing.scale) /
                (routing.normalised ? chosen + static_cast<double>(routing.sum_bias) : 1);
      if (!factors_.empty()) weight *= static_cast<double>(factors_[e]);
    }
    if (routing.shared == SharedExpert::kPlain) out.emplace_back(count, 1);
    if (routing.shared == SharedExpert::kGated) {
      out.emplace_back(count, 1 / (1 + std::exp(-static_cast<double>(logits[count]))));
    }
    return out;
  }

  std::vector<double> reference(std::span<const float> x, std::span<const float> logits) const {
    const auto dim = static_cast<std::size_t>(shape_.dim);
    const auto width = static_cast<std::size_t>(shape_.routing.logits());
    std::vector<double> out(x.size());
    for (std::size_t row = 0; row < x.size() / dim; ++row) {
      const auto in = x.subspan(row * dim, dim);
      for (const auto& [e, weight] : choices(logits.subspan(row * width, width))) {
        const StoredMatrix& host = gate_ups_[e].host;
        auto gates = reference_matmul(in, gate_ups_[e].values, 1, host.rows, host.cols);
        const auto ffn = static_cast<std::size_t>(host.rows / 2);
        add_to(gates, biases_[e]);
        std::vector<float> act;
        for (std::size_t i = 0; i < ffn; ++i) {
          act.push_back(static_cast<float>(
              testing_support::activated(gates[i], gates[ffn + i], shape_.activation)));
        }
        auto sums = reference_matmul(act, downs_[e].values, 1, shape_.dim, host.rows / 2);
        add_to(sums, biases_[gate_ups_.size() + e]);
        for (std::size_t i = 0; i < dim; ++i) out[row * dim + i] += weight * sums[i];
      }
    }
    return out;
  }

 private:
  static void add(Random& random, std::vector<FileMatrix>& to, std::int64_t rows, std::int64_t cols,
                  DType dtype) {
    to.emplace_back(rows, cols, dtype,
                    random.normal(rows * cols, 1.0F / std::sqrt(static_cast<float>(cols))));
  }
  static void add_to(std::vector<double>& sums, const std::vector<float>& bias) {
    for (std::size_t i = 0; i < bias.size(); ++i) sums[i] += static_cast<double>(bias[i]);
  }
  void add_bias(Random& random, std::int64_t rows) {
    biases_.push_back(shape_.bias ? random.normal(rows) : std::vector<float>{});
  }
  /// The groups that experts are chosen from.
  std::vector<std::size_t> best_groups(const std::vector<double>& ranks) const {
    const auto count = static_cast<std::size_t>(shape_.routing.groups);
    const std::size_t of_group = ranks.size() / count;
    std::vector<double> sums;
    for (std::size_t group = 0; group < count; ++group) {
      const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(group * of_group);
      std::vector<double> sorted(begin, begin + static_cast<std::ptrdiff_t>(of_group));
      std::ranges::sort(sorted, std::greater<>());
      sums.push_back(sorted[0] + (of_group > 1 ? sorted[1] : 0.0));
    }
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::size_t group) { return sums[group]; });
    order.resize(static_cast<std::size_t>(shape_.routing.chosen_groups));
    return order;
  }
  const float* on_device(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    device_biases_.emplace_back(backend_, 1, std::ssize(values));
    device_biases_.back().set(backend_, values);
    return device_biases_.back().tensor.data;
  }
  void pack() {
    biases_.resize(2 * gate_ups_.size());
    for (std::size_t e = 0; e < gate_ups_.size(); ++e) {
      weights_.push_back(backend_.pack_expert({&gate_ups_[e].host, 1}));
      weights_.push_back(backend_.pack_expert({&downs_[e].host, 1}));
      experts_.push_back({weights_[2 * e].get(), weights_[2 * e + 1].get(), on_device(biases_[e]),
                          on_device(biases_[gate_ups_.size() + e])});
    }
    backend_.add_experts(experts_);
    const auto on_device = [&](const std::vector<float>& values) {
      if (values.empty()) return std::unique_ptr<Owned>();
      auto owned = std::make_unique<Owned>(backend_, 1, std::ssize(values));
      owned->set(backend_, values);
      return owned;
    };
    device_correction_ = on_device(correction_);
    device_factors_ = on_device(factors_);
  }

  Backend& backend_;
  Shape shape_;
  std::vector<FileMatrix> gate_ups_, downs_;
  std::vector<std::vector<float>> biases_;  // of all gate_ups_, then of all downs_
  std::vector<float> correction_, factors_;
  std::deque<Owned> device_biases_;
  std::unique_ptr<Owned> device_correction_, device_factors_;
  std::vector<std::unique_ptr<Weight>> weights_;
  std::vector<Expert> experts_;
};

/// Of those that the path has: a GPU computes mixtures in bf16 alone.
std::vector<Numerics> all_numerics() {
  if (test::on_cuda()) return {Numerics::kBF16};
  return {Numerics::kF32, Numerics::kBF16};
}

class ExpertsOnPath : public testing::TestWithParam<std::string> {};

TEST_P(ExpertsOnPath, EqualTheirSumInDoublePrecision) {
  for (const Numerics& numerics : all_numerics()) {
    const auto backend = test::make_backend(numerics, 2, GetParam());
    const bool rounds = numerics == Numerics::kBF16 && rounds_activations(GetParam());
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(text_of(shape));
      const Mixture mixture(*backend, shape, DType::kBF16);
      Random random(5);
      for (const std::int64_t rows : {1, 2, 9, 70}) {
        const auto x = random.normal(rows * shape.dim);
        const auto logits = random.normal(rows * shape.routing.logits(), 2);
        EXPECT_LE(relative_error(mixture.run(x, logits), mixture.reference(x, logits)),
                  rounds ? 6e-2 : 1e-5)
            << rows << " rows";
      }
    }
  }
}

TEST_P(ExpertsOnPath, ARowHasTheSameBitsInAnyCompanyAndOnAnyNumberOfThreads) {
  for (const Numerics& numerics : all_numerics()) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(text_of(shape));
      const auto backend = test::make_backend(numerics, 1, GetParam());
      const auto other = test::make_backend(numerics, 3, GetParam());
      const Mixture mixture(*backend, shape, DType::kBF16);
      const Mixture on_threads(*other, shape, DType::kBF16);
      Random random(6);
      const std::int64_t rows = 60;
      const auto x = random.normal(rows * shape.dim);
      const auto logits = random.normal(rows * shape.routing.logits(), 2);
      const auto before = random.normal(rows * shape.dim);
      const auto all = mixture.run(x, logits, before);
      EXPECT_EQ(first_difference(on_threads.run(x, logits, before), all), -1);
      for (std::int64_t begin = 0; begin < rows;) {
        const std::int64_t count = std::min(rows - begin, random.in(1, 9));
        const auto part = [&](std::span<const float> values) {
          const auto width = values.size() / static_cast<std::size_t>(rows);
          return values.subspan(static_cast<std::size_t>(begin) * width,
                                static_cast<std::size_t>(count) * width);
        };
        EXPECT_EQ(first_difference(mixture.run(part(x), part(logits), part(before)), part(all)), -1)
            << "rows from " << begin << " on";
        begin += count;
      }
    }
  }
}

TEST_P(ExpertsOnPath, MayBePackedInAnyFormat) {
  for (const auto& blocks : testing_support::all_blocks()) {
    SCOPED_TRACE(std::string(blocks.format->name()));
    const Shape shape{256, 256, 0, {3, 2, true}};
    Random random(7);
    const std::int64_t rows = 5;
    const auto x = random.normal(rows * shape.dim);
    const auto logits = random.normal(rows * shape.routing.logits());
    if (!test::on_cuda()) {
      const auto exact = test::make_backend(Numerics::kF32, 1, GetParam());
      const Mixture mixture(*exact, shape, blocks);
      EXPECT_LE(relative_error(mixture.run(x, logits), mixture.reference(x, logits)), 1e-4);
    }
    const auto packed = test::make_backend(Numerics::kBF16, 2, GetParam());
    const Mixture of_groups(*packed, shape, blocks);
    const auto all = of_groups.run(x, logits);
    EXPECT_LE(relative_error(all, of_groups.reference(x, logits)), 0.1);
    const auto dim = static_cast<std::size_t>(shape.dim);
    const auto alone = of_groups.run(std::span(x).first(dim), std::span(logits).first(3));
    EXPECT_EQ(first_difference(alone, std::span<const float>(all).first(dim)), -1);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, ExpertsOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

/// Of one row, on the best path.
std::vector<ExpertChoice> chosen(const std::vector<float>& logits, const Routing& routing) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1);
  Owned scores(*backend, 1, std::ssize(logits));
  scores.set(*backend, logits);
  std::vector<ExpertChoice> out(static_cast<std::size_t>(routing.choices()));
  backend->choose_experts(out, scores.tensor, routing, nullptr, nullptr);
  return out;
}

TEST(ChooseExperts, TakesTheLowerOfEqualsAndTellsThemAscending) {
  const auto equal = chosen({1, 1, 1, 1, 1}, {5, 2, true});
  EXPECT_EQ(equal[0].expert, 0);
  EXPECT_EQ(equal[1].expert, 1);
  EXPECT_EQ(equal[0].weight, 0.5F);
  const auto some = chosen({0, 3, 5, 3, 5, 3}, {6, 3, false});
  EXPECT_EQ(some[0].expert, 1);
  EXPECT_EQ(some[1].expert, 2);
  EXPECT_EQ(some[2].expert, 4);
  EXPECT_LT(some[0].weight + some[1].weight + some[2].weight, 1.0F);
}

TEST(ChooseExperts, ASharedOneIsAlwaysLast) {
  const auto plain = chosen({1, 2, 3}, {3, 1, true, SharedExpert::kPlain});
  EXPECT_EQ(plain[0].expert, 2);
  EXPECT_EQ(plain[1].expert, 3);
  EXPECT_EQ(plain[1].weight, 1.0F);
  const auto gated = chosen({1, 2, 3, 0}, {3, 1, true, SharedExpert::kGated});
  EXPECT_EQ(gated[1].expert, 3);
  EXPECT_EQ(gated[1].weight, 0.5F);
}

TEST(ChooseExperts, GivesDifferentOnesWhateverTheLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       std::vector<std::vector<float>>{{testing_support::kNan, 1, testing_support::kNan, 2},
                                       {-inf, -inf, -inf, -inf},
                                       {inf, inf, 0, 0},
                                       {3e38F, -3e38F, 0, 1}}) {
    const auto out = chosen(logits, {4, 3, true});
    EXPECT_LT(out[0].expert, out[1].expert);
    EXPECT_LT(out[1].expert, out[2].expert);
    EXPECT_GE(out[0].expert, 0);
    EXPECT_LT(out[2].expert, 4);
  }
}

TEST(ExpertsErrors, NameOpGotAndExpected) {
  const auto error_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of([] {
              chosen({1, 2}, {2, 3, true});
            }),
            "choose_experts: chosen is 3, expected 1..2, the experts");
  EXPECT_EQ(error_of([] {
              chosen({1, 2}, {3, 1, true});
            }),
            "choose_experts: logits has shape [1, 2] with stride 2, expected [1, 3]");
  const auto backend = make_cpu_backend(Numerics::kF32, 1);
  const Owned rows(*backend, 2, 4);
  const std::vector<std::int32_t> places{0, 2};
  const std::vector<float> factors{1, 1};
  EXPECT_EQ(error_of([&] { backend->add_rows(rows.tensor, rows.tensor, places, factors); }),
            "add_rows: row is 2, expected 0..1");
}

}  // namespace
}  // namespace dendrite
