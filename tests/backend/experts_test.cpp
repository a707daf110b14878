#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "experts_fixture.h"
#include "support/paths.h"
#include "test_support.h"

// Mixtures of experts against double precision, and the bits of their rows in any company.

namespace dendrite {
namespace {

using test::ExpertsShape;
using test::Mixture;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::Random;
using testing_support::relative_error;
using testing_support::rounds_activations;

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

/// Sigmoids that weigh what experts read.
Routing by_inputs(std::int64_t experts, std::int64_t chosen, SharedExpert shared) {
  Routing routing{.experts = experts, .chosen = chosen, .shared = shared};
  routing.score = RouterScore::kSigmoid;
  routing.weighs_inputs = true;
  return routing;
}

constexpr Activation kClamped{Activation::Kind::kClamped, 0.8F, 1.7F};

const std::vector<ExpertsShape> kShapes = {
    {64, 32, 0, {4, 1, false}},
    {48, 24, 0, {7, 3, true}},
    {32, 20, 56, {5, 5, true, SharedExpert::kPlain}},
    {50, 33, 17, {19, 6, false, SharedExpert::kGated}},
    {48, 24, 24, by_sigmoids(9, 3, SharedExpert::kPlain), true},
    {32, 16, 0, by_sigmoids(24, 4, SharedExpert::kNone, 6, 2), true},
    {64, 40, 0, {8, 4, true}, false, true, kClamped},
    {40, 24, 0, {5, 2, false}, false, false, {Activation::Kind::kGelu}},
    {48, 24, 0, {6, 2, true}, false, false, {Activation::Kind::kGelu}, true},
    {48, 24, 24, by_inputs(5, 1, SharedExpert::kPlain)},
    {40, 32, 0, by_inputs(6, 2, SharedExpert::kNone)},
    {48, 40, 24, by_sigmoids(9, 3, SharedExpert::kPlain), true, false, {}, false, true},
    {50, 33, 70, {19, 6, false, SharedExpert::kGated}, false, true, {}, false, true},
    {40, 97, 0, by_inputs(6, 2, SharedExpert::kNone), false, false, {}, true, true},
};

/// Of matrices of bf16.
Mixture plain_mixture(Backend& backend, const ExpertsShape& shape) {
  Random random(31);
  return Mixture(backend, shape, [&](std::int64_t rows, std::int64_t cols, std::int64_t) {
    return test::plain_matrix(rows, cols, random);
  });
}
/// Of matrices in blocks.
Mixture mixture_of(Backend& backend, const ExpertsShape& shape,
                   const testing_support::Blocks& blocks) {
  Random random(32);
  return Mixture(backend, shape, [&](std::int64_t rows, std::int64_t cols, std::int64_t) {
    return test::matrix_of({rows, cols, *blocks.format, blocks.halves, random});
  });
}

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
    for (const ExpertsShape& shape : kShapes) {
      SCOPED_TRACE(text_of(shape));
      const Mixture mixture = plain_mixture(*backend, shape);
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
    const auto backend = test::make_backend(numerics, 1, GetParam());
    const auto other = test::make_backend(numerics, 3, GetParam());
    for (const ExpertsShape& shape : kShapes) {
      SCOPED_TRACE(text_of(shape));
      const Mixture mixture = plain_mixture(*backend, shape);
      const Mixture on_threads = plain_mixture(*other, shape);
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
    const ExpertsShape shape{256, 256, 0, {3, 2, true}};
    Random random(7);
    const std::int64_t rows = 5;
    const auto x = random.normal(rows * shape.dim);
    const auto logits = random.normal(rows * shape.routing.logits());
    if (!test::on_cuda()) {
      const auto exact = test::make_backend(Numerics::kF32, 1, GetParam());
      const Mixture mixture = mixture_of(*exact, shape, blocks);
      EXPECT_LE(relative_error(mixture.run(x, logits), mixture.reference(x, logits)), 1e-4);
    }
    const auto packed = test::make_backend(Numerics::kBF16, 2, GetParam());
    const Mixture of_groups = mixture_of(*packed, shape, blocks);
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

TEST(Sanitized, ProductsOfExperts) {
  if (!test::on_cuda()) GTEST_SKIP() << "for a GPU";
  const auto backend = test::make_backend(Numerics::kBF16, 1, "cuda");
  for (const bool squared_relu : {false, true}) {
    const ExpertsShape shape{
        200, 100, 67, {4, 2, true, SharedExpert::kPlain}, false, true, {}, false, squared_relu};
    const Mixture mixture = plain_mixture(*backend, shape);
    Random random(4);
    for (const std::int64_t rows : {1, 8, 20, 140}) {
      mixture.run(random.normal(rows * shape.dim), random.normal(rows * shape.routing.logits()));
    }
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
