// What is done about the errors of compositions: moves are checked before the first, the worst
// groups are computed, exact twins behind, and what estimates are times to be taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dendrite/compose.h"
#include "engine/kl_record.h"
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

TEST(KlRecord, TakesAQuantileOfWhatAuditsFound) {
  KlRecord record;
  EXPECT_EQ(record.factor(), 3);
  for (int i = 1; i <= 15; ++i) record.add_audit(0.01 * i, 0.01);
  record.add_audit(5, 0);  // of a branch without an estimate
  EXPECT_EQ(record.factor(), 3);
  record.add_audit(0.16, 0.01);
  EXPECT_NEAR(record.factor(), 15, 1e-9);  // of 1 to 16
  for (int i = 0; i < 64; ++i) record.add_audit(0.02, 0.04);
  EXPECT_NEAR(record.factor(), 0.5, 1e-9);
  EXPECT_EQ(record.audits().counts.back(), 1);
  EXPECT_EQ(record.audits().counts[4], 64 + 2);  // above 0.01, up to 0.03
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
    ASSERT_EQ(e.stats().estimate_factor == 3, i < 15) << i;
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
  EXPECT_EQ(after.tokens_moved - before.tokens_moved, 43);
  // (The slots of a head page that it shares with what is before it may be written twice.)
  EXPECT_GE(after.bytes_moved - before.bytes_moved, 43 * token_bytes);
  EXPECT_LE(after.bytes_moved - before.bytes_moved, (43 + before.page_tokens) * token_bytes);
  EXPECT_GT(after.move_seconds, before.move_seconds);
  EXPECT_NEAR(after.move_bandwidth,
              2.0 * static_cast<double>(after.bytes_moved) / after.move_seconds, 1);
}

}  // namespace
}  // namespace dendrite
