// What is done about the errors of compositions: moves are checked before the first, the worst
// groups are computed, exact twins behind, and what estimates are times to be taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "dendrite/compose.h"
#include "engine/branches/kl_record.h"
#include "kv/lineage.h"
#include "step/stepper.h"
#include "support/engine_support.h"
#include "support/sampling_backend.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::kv_of;
using test::load;
using test::Random;
using test::same_bits;
using test::Tokens;

/// A device that rotates K by angles that are not the model's, or copies V wrongly.
class WrongMoves final : public test::SamplingBackend {
 public:
  enum class What : std::uint8_t { kNothing, kScale, kAngles, kPlace };
  WrongMoves(Numerics type, What what) : SamplingBackend(type, 1, ""), what_(what) {}
  void move_kv(const KvMoves& args) override {
    KvMoves wrong = args;
    std::vector<KvMove> runs(args.runs.begin(), args.runs.end());
    wrong.runs = runs;
    if (what_ == What::kScale) wrong.inverse_scale2 *= 1.01F;
    for (KvMove& run : runs) {
      if (what_ == What::kAngles) ++run.new_position;
      if (what_ == What::kPlace && run.from_slot % 8 + run.count < 8) ++run.from_slot;
    }
    SamplingBackend::move_kv(wrong);
  }

 private:
  What what_;
};

Engine with_moves(WrongMoves::What what, const char* dtype) {
  EngineOptions options{.dtype = dtype, .page_tokens = 8, .kv_tokens = 4096};
  return handle_of(
      load_core(test::model_path("tinyllama").string(), options,
                [&](Numerics type, int) { return std::make_unique<WrongMoves>(type, what); }));
}

TEST(MoveCheck, RefusesADeviceThatRotatesOrCopiesWrongly) {
  using What = WrongMoves::What;
  for (const char* dtype : {"bf16", "f32"}) {
    for (const What what : {What::kNothing, What::kScale, What::kAngles, What::kPlace}) {
      const Engine e = with_moves(what, dtype);
      Session session(e);
      Random random(1);
      Branch a = session.prefill(random.tokens(40, 256));
      const std::int64_t pages = e.stats().pages_used;
      const std::int64_t rows = e.stats().rows;
      const std::vector<Piece> pieces = {Piece::tokens({1, 2, 3}), Piece::span(a, 0, 40)};
      if (what == What::kNothing) {
        EXPECT_EQ(session.compose(pieces).report.moved, 7);
        EXPECT_TRUE(core_of(e)->moves_checked);
        continue;
      }
      EXPECT_ERROR(session.compose(pieces), "tinyllama can't be moved: in the first layer, K");
      EXPECT_ERROR(session.edit(a, std::vector<Edit>{{{0, 4}, {}}}), "edit: K and V of");
      EXPECT_EQ(e.stats().pages_used, pages);  // it has pages of its own
      EXPECT_EQ(e.stats().rows, rows);
      // What moves nothing is not refused.
      EXPECT_EQ(session.compose(pieces, {.mode = ComposeParams::Mode::kExact}).report.computed, 43);
    }
  }
}

/// Positions that were moved, of a branch.
std::vector<bool> moved_of(const Branch& branch) {
  const std::int64_t length = branch.length();
  std::vector<bool> out(static_cast<std::size_t>(length));
  EngineCore& core = *state_of(branch)->session->engine;
  const TreeLock lock(core.tree_mutex);
  const Lineage lineage = core.tree->lineage(state_of(branch)->tip, length);
  for (const MovedSpan& span : lineage.moved()) {
    std::fill_n(out.begin() + span.at, span.count, true);
  }
  return out;
}

/// |dK|^2 / |K|^2 + |dV|^2 / |V|^2 of the second layer, by position.
std::vector<double> deviations(Branch& right, Branch& of) {
  const EngineCore& core = *state_of(right)->session->engine;
  const KvShape& shape = core.store->shape();
  const auto slot = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  const auto length = static_cast<std::size_t>(right.length());
  const std::vector<float> a = kv_of(right);
  const std::vector<float> b = kv_of(of);
  std::vector<double> out(length);
  for (std::size_t p = 0; p < length; ++p) {
    for (const std::size_t part : {std::size_t{0}, slot}) {
      double error = 0;
      double size = 0;
      for (std::size_t i = 0; i < slot; ++i) {
        const std::size_t at = (length + p) * 2 * slot + part + i;
        error += std::pow(static_cast<double>(b[at]) - a[at], 2);
        size += std::pow(static_cast<double>(a[at]), 2);
      }
      out[p] += error / size;
    }
  }
  return out;
}

class TopRepair : public ::testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  Engine engine(EngineOptions options = {}) const {
    options.dtype = GetParam().second;
    return load(GetParam().first, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Models, TopRepair,
                         ::testing::Values(std::pair("llama_f32", "f32"),
                                           std::pair("tinyllama", "bf16"),
                                           std::pair("mistral_swa", "f32"),
                                           std::pair("qwen3", "bf16")));

TEST_P(TopRepair, ComputesTheGroupsThatDifferMost) {
  const Engine e = engine();
  Session session(e);
  Random random(2);
  Branch a = session.prefill(random.tokens(50, 256));
  Branch b = session.prefill(random.tokens(170, 256));
  const std::vector<Piece> pieces = {Piece::span(a, 0, 45), Piece::span(b, 5, 170),
                                     Piece::tokens({1, 2, 3})};
  Composed plain = session.compose(pieces, {.repair = {.first = 3}});
  Branch exact = session.settle(plain.branch);
  const std::vector<double> by_position = deviations(exact, plain.branch);
  // Of 162 moved tokens: 11 groups, of which 3 are 0.2 or a little more.
  std::vector<std::pair<double, std::int64_t>> groups;
  for (std::int64_t begin = 48; begin < 210; begin += 16) {
    double sum = 0;
    for (std::int64_t p = begin; p < std::min<std::int64_t>(begin + 16, 210); ++p) {
      sum -= by_position[static_cast<std::size_t>(p)];
    }
    groups.emplace_back(sum, begin);
  }
  std::ranges::sort(groups);
  Composed top = session.compose(pieces, {.repair = {.first = 3, .top = 0.2}});
  std::vector<bool> expected = moved_of(plain.branch);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t begin = groups[i].second;
    std::fill(expected.begin() + begin, expected.begin() + std::min<std::int64_t>(begin + 16, 210),
              false);
  }
  EXPECT_EQ(moved_of(top.branch), expected);
  EXPECT_EQ(top.report.moved, std::ranges::count(expected, true));
  EXPECT_EQ(top.report.kept + top.report.moved + top.report.repaired + top.report.computed, 213);
  // All of it is prefill.
  Composed all = session.compose(pieces, {.repair = {.first = 3, .top = 1}});
  EXPECT_EQ(all.report.exactness, Exactness::kExactPrefix);
  EXPECT_TRUE(same_bits(bits_of(all.branch), bits_of(exact)));
}

TEST_P(TopRepair, ChoosesTheSameWhateverElseTheEngineHolds) {
  Random random(3);
  const Tokens one = random.tokens(90, 256);
  const Tokens two = random.tokens(120, 256);
  const auto make = [&](Session& session, bool twice) {
    Branch a = session.prefill(std::span(one));
    Branch b = session.prefill(std::span(two));
    // A source that was composed itself.
    Branch inner = session
                       .compose(std::vector<Piece>{Piece::span(b, 0, 60), Piece::span(a, 10, 80)},
                                {.repair = {.first = 4, .top = 0.3}})
                       .branch;
    const std::vector<Piece> pieces = {Piece::span(a, 0, 20), Piece::span(inner, 30, 130),
                                       Piece::span(b, 50, 120).with({.first = 0, .top = 0.5})};
    Branch out = session.compose(pieces, {.repair = {.first = 2, .top = 0.25}}).branch;
    if (twice) {
      const std::int64_t rows = session.stats().tokens_computed;
      EXPECT_EQ(session.compose(pieces, {.repair = {.first = 2, .top = 0.25}}).branch.length(),
                out.length());
      EXPECT_EQ(session.stats().tokens_computed, rows);
    }
    return out;
  };
  const Engine roomy = engine();
  Session alone(roomy);
  Branch right = make(alone, true);
  const std::vector<bool> moved = moved_of(right);
  const test::Bits bits = bits_of(right);
  Engine small = engine({.page_tokens = 8, .kv_tokens = 560, .kv_debug = true});
  core_of(small)->step_rows = 11;
  Session session(small);
  Branch other = session.prefill(random.tokens(200, 256));
  Branch again = make(session, false);
  EXPECT_EQ(moved_of(again), moved);
  EXPECT_TRUE(same_bits(bits_of(again), bits));
}

TEST(TopRepairParams, AreChecked) {
  const Engine e = load("llama_f32");
  Session session(e);
  Branch a = session.prefill(Random(4).tokens(20, 256));
  const std::vector<Piece> pieces = {Piece::tokens({1}), Piece::span(a, 0, 20)};
  EXPECT_ERROR(session.compose(pieces, {.repair = {.top = 1.5}}), "top 1.5");
  EXPECT_ERROR(session.compose(pieces, {.repair = {.top = std::nan("")}}), "expected 0 to 1");
}

/// Two branches, and one composed of them with its exact twin behind.
struct WithTwin {
  explicit WithTwin(const EngineOptions& options = {}, std::int64_t length = 60)
      : engine(load("llama_f32", options)), session(engine) {
    Random random(5);
    a = session.prefill(random.tokens(length, 256));
    b = session.prefill(random.tokens(length, 256));
    composed =
        session.compose(std::vector<Piece>{Piece::span(a, 0, length), Piece::span(b, 0, length),
                                           Piece::tokens({1, 2, 3})},
                        {.repair = {.first = 16}, .exact_behind = true});
  }
  void finish() {
    while (engine.step()) {
    }
  }

  Engine engine;
  Session session;
  Branch a;
  Branch b;
  Composed composed;
};

TEST(ExactBehind, LeavesNothingForSettleToCompute) {
  WithTwin with({.kv_debug = true});
  Branch& branch = with.composed.branch;
  EXPECT_EQ(with.composed.report.exact_behind,
            76);  // with the repair of what was the first to move
  const test::Bits bits = bits_of(branch);
  with.finish();
  EXPECT_EQ(branch.composition().exact_behind, 123);
  EXPECT_EQ(with.session.stats().branches_live, 3);
  const std::int64_t rows = with.session.stats().tokens_computed;
  Branch exact = with.session.settle(branch);
  EXPECT_EQ(with.session.stats().tokens_computed, rows);
  const Engine alone = load("llama_f32", {.prefix_index = false});
  EXPECT_TRUE(same_bits(bits_of(exact), test::replay(alone, branch.tokens())));
  EXPECT_TRUE(same_bits(bits_of(branch), bits));
  // An audit computes the distributions that it compares, and nothing else.
  const std::int64_t before = with.session.stats().tokens_computed;
  with.session.audit(branch);
  EXPECT_EQ(with.session.stats().tokens_computed - before, 2 * 31);
  EXPECT_FALSE(with.engine.step());
}

TEST(ExactBehind, GoesWithItsBranchAndLeavesNoPage) {
  for (const int steps : {0, 1, 3, 100}) {
    WithTwin with({.kv_debug = true}, 100);
    core_of(with.engine)->step_rows = 30;
    for (int i = 0; i < steps; ++i) with.engine.step();
    Branch fork = with.composed.branch.fork();
    EXPECT_EQ(fork.composition().exact_behind, 0);
    with.composed.branch.prune();
    EXPECT_FALSE(with.engine.step());
    with.a.prune();
    with.b.prune();
    fork.prune();
    test::expect_all_pages_free(with.engine);
  }
}

/// Steps of any number of rows take 10 ms up to ten, each further row one more.
class TenRowsAreFree final : public StepTimes {
 public:
  void record(std::int64_t rows, double) override {
    StepTimes::record(rows, rows <= 10 ? 10.0 : static_cast<double>(rows));
  }
};

TEST(ExactBehind, RunsInTheSlackOfOtherSteps) {
  WithTwin with({}, 200);
  core_of(with.engine)->stepper->times = std::make_unique<TenRowsAreFree>();
  std::vector<std::int64_t> rows;
  const EventSubscription events = with.engine.on_event(
      mask_of(EventKind::kStep), [&](const Event& event) { rows.push_back(event.rows); });
  Branch other = with.a.fork();
  DecodeParams params = test::greedy(60);
  params.slack = std::numeric_limits<double>::infinity();  // of the call; what is behind has less
  const Generation got = with.session.decode(other, params);
  EXPECT_EQ(got.ids.size(), 60U);
  EXPECT_EQ(with.composed.branch.composition().exact_behind, 403);
  EXPECT_GE(std::ranges::count(rows, 10), 15);
  EXPECT_LE(std::ranges::count_if(rows, [](std::int64_t n) { return n > 10; }), 3);
  WithTwin without({}, 200);
  Branch same = without.a.fork();
  without.composed.branch.prune();
  EXPECT_EQ(without.session.decode(same, params).ids, got.ids);
}

TEST(ExactBehind, GivesWayToWhoeverWantsPages) {
  WithTwin with({.kv_tokens = 480, .kv_debug = true});
  with.finish();
  const test::Bits bits = bits_of(with.composed.branch);
  with.a.hold(std::chrono::hours(1));
  with.b.hold(std::chrono::hours(1));
  with.composed.branch.hold(std::chrono::hours(1));
  Branch large = with.session.prefill(Random(7).tokens(200, 256));
  EXPECT_EQ(large.finish(), Finish::kRunning);
  EXPECT_LT(with.composed.branch.composition().exact_behind, 123);
  EXPECT_FALSE(with.engine.step());  // and does not come back by itself
  EXPECT_TRUE(same_bits(bits_of(with.composed.branch), bits));
  // Where there was never room nothing is taken from anybody.
  WithTwin small({.kv_tokens = 272, .kv_debug = true});
  small.finish();
  EXPECT_LT(small.composed.branch.composition().exact_behind, 123);
  EXPECT_EQ(small.session.stats().evictions, 0);
}

TEST(ExactBehind, IsComputedByAThreadOfTheEngine) {
  WithTwin with;
  {
    const EngineThread thread = with.engine.start();
    for (int i = 0; i < 1000 && with.composed.branch.composition().exact_behind < 123; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  EXPECT_EQ(with.composed.branch.composition().exact_behind, 123);
}

TEST(KlRecord, TakesAQuantileOfWhatAuditsFound) {
  KlRecord record;
  EXPECT_EQ(record.factor(), 50);
  for (int i = 1; i <= 15; ++i) record.add_audit(0.01 * i, 0.01);
  record.add_audit(5, 0);  // of a branch without an estimate
  EXPECT_EQ(record.factor(), 50);
  record.add_audit(0.16, 0.01);
  EXPECT_NEAR(record.factor(), 15, 1e-9);  // of 1 to 16
  for (int i = 0; i < 64; ++i) record.add_audit(0.02, 0.04);
  EXPECT_NEAR(record.factor(), 0.5, 1e-9);
  EXPECT_EQ(record.audits().counts.back(), 1);
  EXPECT_EQ(record.audits().counts[4], 64 + 2);  // above 0.01, up to 0.03
}

TEST(Estimates, AreAgainstMoreRepairBehindReplacedTextToo) {
  const Engine e = load("llama_f32");
  Session session(e);
  Random random(9);
  Branch branch = session.prefill(random.tokens(90, 256));
  const std::vector<Edit> edits{{{20, 30}, {Piece::tokens(random.tokens(8, 256))}}};
  const Composed composed =
      session.edit(branch, edits, {.repair = {.first = 2}, .target_kl = 1000});
  ASSERT_TRUE(composed.report.estimate.has_value());
  EXPECT_GT(composed.report.estimate->kl_mean, 0);
  EXPECT_EQ(composed.report.repaired,
            4 + 4);  // twice the first, and the last behind what was replaced
}

TEST(KlRecord, IsFedByAuditsOfBranchesThatHadAnEstimate) {
  const Engine e = load("llama_f32");
  Session session(e);
  Random random(8);
  Branch a = session.prefill(random.tokens(60, 256));
  std::vector<double> ratios;
  const auto compose = [&] {
    return session.compose(std::vector<Piece>{Piece::span(a, 0, 60), Piece::span(a, 5, 60),
                                              Piece::tokens(random.tokens(12, 256))},
                           {.repair = {.first = 2}, .target_kl = 1000});
  };
  std::vector<Event> told;
  const EventSubscription events =
      e.on_event(mask_of(EventKind::kCompose), [&](const Event& event) { told.push_back(event); });
  for (int i = 0; i < 20; ++i) {
    Composed composed = compose();
    const double distance = composed.report.estimate->kl_mean / e.stats().estimate_factor;
    const double kl = session.audit(composed.branch).kl_mean;
    session.audit(composed.branch);  // counts, and is not taken for another branch's
    ratios.push_back(kl / distance);
    ASSERT_EQ(e.stats().estimate_factor == 50, i < 15) << i;
  }
  ASSERT_EQ(told.size(), 20U * 5);  // with 2 and 4, the estimate, and two audits
  EXPECT_EQ(told[1].repaired, 4);
  EXPECT_EQ(told[1].moved + told[1].repaired + told[1].kept + told[1].computed, told[1].length);
  EXPECT_EQ(told[1].kl, 0);
  EXPECT_GT(told[2].kl, 0);
  EXPECT_GT(told[2].ms, 0);
  std::ranges::sort(ratios);
  const EngineStats stats = e.stats();
  EXPECT_NEAR(stats.estimate_factor, ratios[17], 1e-9 * ratios[17]);
  const auto count = [](const KlHistogram& histogram) {
    return std::reduce(histogram.counts.begin(), histogram.counts.end());
  };
  EXPECT_EQ(count(stats.estimates), 20);
  EXPECT_EQ(count(stats.audits), 40);
  EXPECT_GT(stats.audits.sum, 0);
  const nlohmann::json json = nlohmann::json::parse(to_json(stats));
  EXPECT_EQ(json["audits"]["counts"].size(), json["audits"]["bounds"].size() + 1);
  EXPECT_NE(to_prometheus(stats).find("\ndendrite_audit_kl_count 40\n"), std::string::npos);
  EXPECT_NE(to_prometheus(stats).find("\ndendrite_audit_kl_bucket{le=\"+Inf\"} 40\n"),
            std::string::npos);
}

TEST(MoveStats, CountBytesAndTime) {
  const Engine e = load("llama_f32");
  Session session(e);
  Random random(9);
  Branch a = session.prefill(random.tokens(60, 256));
  session.compose(std::vector<Piece>{Piece::tokens({1}), Piece::span(a, 0, 60)});
  const EngineStats before = e.stats();
  const std::int64_t token_bytes = before.page_bytes / before.page_tokens;
  EXPECT_GE(before.bytes_moved, before.tokens_moved * token_bytes);
  session.compose(std::vector<Piece>{Piece::tokens({2}), Piece::span(a, 0, 60)});
  const EngineStats after = e.stats();
  EXPECT_EQ(after.tokens_moved - before.tokens_moved, 27);
  // (The slots of a head page that it shares with what is before it may be written twice.)
  EXPECT_GE(after.bytes_moved - before.bytes_moved, 27 * token_bytes);
  EXPECT_LE(after.bytes_moved - before.bytes_moved, (27 + before.page_tokens) * token_bytes);
  EXPECT_GT(after.move_seconds, before.move_seconds);
  EXPECT_NEAR(after.move_bandwidth,
              2.0 * static_cast<double>(after.bytes_moved) / after.move_seconds, 1);
}

}  // namespace
}  // namespace dendrite
