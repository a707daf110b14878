// Statistics of branches and of the engine, as structs, JSON and Prometheus text.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

TEST(BranchStatistics, CountWhatTheBranchDid) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .prefix_index = false});
  Session session(e);
  const Tokens prompt = Random(1).tokens(40, 256);
  Branch root = session.prefill(std::span(prompt));
  EXPECT_EQ(root.stats().tokens_computed, 40);
  EXPECT_EQ(root.stats().steps, 1);
  EXPECT_EQ(root.stats().pages, 3);
  EXPECT_EQ(root.stats().own_pages, 3);
  std::vector<Branch> kids = root.fork(2);
  EXPECT_EQ(kids[0].stats().pages, 3);
  EXPECT_EQ(kids[0].stats().own_pages, 0);
  EXPECT_EQ(root.stats().own_pages, 0);
  session.decode(kids, greedy(5));  // the first is known, the last is not computed
  for (const Branch& kid : kids) {
    const BranchStats stats = kid.stats();
    EXPECT_EQ(stats.tokens_generated, 5);
    EXPECT_EQ(stats.tokens_computed, 4);
    EXPECT_EQ(stats.steps, 4);
    EXPECT_GT(stats.milliseconds, 0);
    EXPECT_EQ(stats.pages, 4);  // the half page that both copied is there twice
    EXPECT_EQ(stats.own_pages, 1);
    EXPECT_EQ(stats.shared_pages, 3);
  }
  EXPECT_EQ(kids[0].fork().stats().steps, 0);  // a child begins afresh
  session.score_tokens(std::span(kids), {{1, 2, 3}, {1, 2, 4}});
  EXPECT_EQ(kids[0].stats().steps, 5);  // once, although it had two requests in it
}

TEST(EngineStatistics, SumOverSessionsThatLiveAndThatAreGone) {
  const Engine e = load("tinyllama", {.page_tokens = 16});
  const Tokens prompt = Random(1).tokens(40, 256);
  {
    Session session(e);
    Branch root = session.prefill(std::span(prompt));
    std::vector<Branch> kids = root.fork(4);
    session.decode(kids, greedy(3));
    EXPECT_EQ(e.stats().branches_live, 5);
    EXPECT_EQ(e.stats().sessions, 1);
  }
  Session session(e);
  Branch root = session.prefill(std::span(prompt));
  Branch back = root.at(20);
  const EngineStats stats = e.stats();
  EXPECT_EQ(stats.sessions, 1);
  EXPECT_EQ(stats.branches_live, 2);
  EXPECT_EQ(stats.forks, 5);
  EXPECT_EQ(stats.prunes, 5);
  EXPECT_EQ(stats.rows, 40 + 2 * 4);
  EXPECT_EQ(stats.steps, 3);
  EXPECT_EQ(stats.tokens_generated, 12);
  EXPECT_EQ(stats.tokens_reused, 40);
  EXPECT_EQ(stats.copies_on_write, 4);
  EXPECT_EQ(stats.copied_tokens, 32);
  EXPECT_DOUBLE_EQ(stats.copy_on_write_rate, 4.0 / 5);
  EXPECT_EQ(stats.pages_acquired, 3 + 4);
  EXPECT_EQ(stats.pages_used + stats.pages_free, stats.pool_pages);
  EXPECT_EQ(stats.segment_splits, 1);
  EXPECT_EQ(stats.prefix_hits, 1);
  EXPECT_EQ(stats.prefix_lookups, 2);
  EXPECT_GT(stats.step_seconds, 0);
  EXPECT_EQ(stats.events, 0);  // nobody listened
}

TEST(EngineStatistics, AreThereWithoutWeights) {
  const Engine e = load("tinyllama", {.weights = false});
  EXPECT_EQ(e.stats().pool_pages, 0);
  EXPECT_NO_THROW(nlohmann::json::parse(to_json(e.stats())));
}

TEST(EngineStatistics, AsJsonHaveEveryFieldOnce) {
  EngineStats stats;
  // Every field another number, so that two that were mixed up show.
  stats.sessions = 1;
  stats.copy_on_write_rate = 2.5;
  stats.naive_bytes = std::int64_t{1} << 40;
  stats.step_seconds = 0.125;
  const nlohmann::json json = nlohmann::json::parse(to_json(stats));
  EXPECT_EQ(json["sessions"], 1);
  EXPECT_EQ(json["copy_on_write_rate"], 2.5);
  EXPECT_EQ(json["naive_bytes"], std::int64_t{1} << 40);
  EXPECT_EQ(json["step_seconds"], 0.125);
  EXPECT_EQ(json["unique_bytes"], 0);
  stats.speculation.drafts = 4;
  stats.speculation.draft_seconds = 0.5;
  stats.speculation.accept_depth_by_position = {3, 2, 1};
  const nlohmann::json drafts = nlohmann::json::parse(to_json(stats))["speculation"];
  EXPECT_EQ(drafts["drafts"], 4);
  EXPECT_EQ(drafts["draft_seconds"], 0.5);
  EXPECT_EQ(drafts["accept_depth"], 1.5);
  EXPECT_EQ(drafts["accept_depth_by_position"][1], 2);
  // No field was forgotten.
  EXPECT_EQ(
      (json.size() - 3) * sizeof(std::int64_t) + 2 * sizeof(KlHistogram) + sizeof(SpeculationStats),
      sizeof(EngineStats));
  EXPECT_EQ((drafts.size() - 2 + kDraftDepth) * sizeof(std::int64_t), sizeof(SpeculationStats));
}

constexpr std::size_t kHistogramSamples = KlHistogram::kBounds.size() + 3;

/// What the text exposition format 0.0.4 asks of a family: HELP, TYPE, then samples, once each.
std::map<std::string, double> checked_metrics(const std::string& text) {
  std::map<std::string, double> values;
  std::set<std::string> families;
  std::istringstream lines(text);
  std::string line, helped, typed, type;
  EXPECT_TRUE(text.ends_with('\n'));
  const auto is_name = [](const std::string& name) {
    return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '_' || c == ':';
           });
  };
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string hash, keyword, name;
    if (line.starts_with("# ")) {
      words >> hash >> keyword >> name;
      EXPECT_TRUE(is_name(name)) << line;
      if (keyword == "HELP") {
        helped = name;
        EXPECT_TRUE(families.insert(name).second) << "a family twice: " << name;
        EXPECT_GT(line.size(), hash.size() + keyword.size() + name.size() + 3) << line;
      } else {
        EXPECT_EQ(keyword, "TYPE") << line;
        EXPECT_EQ(name, helped) << line;
        words >> type;
        EXPECT_TRUE(type == "counter" || type == "gauge" || type == "histogram") << line;
        typed = name;
      }
      continue;
    }
    std::string value, rest;
    words >> name >> value >> rest;
    std::string family = name.substr(0, name.find('{'));
    if (type == "histogram") family = family.substr(0, family.rfind('_'));
    EXPECT_EQ(family, typed) << line;
    EXPECT_EQ(family.ends_with("_total"), type == "counter") << line;
    EXPECT_EQ(rest, "") << line;
    std::size_t used = 0;
    const double number = std::stod(value, &used);
    EXPECT_EQ(used, value.size()) << line;
    EXPECT_TRUE(values.emplace(name, number).second) << "a sample twice: " << name;
  }
  // Three families have more than one.
  EXPECT_EQ(values.size(), families.size() - 3 + kDraftDepth + 2 * kHistogramSamples);
  return values;
}

TEST(EngineStatistics, AsPrometheusTextAreWellFormed) {
  const Engine e = load("tinyllama");
  Session session(e);
  Branch root = session.prefill(Random(1).tokens(40, 256));
  session.decode(root, greedy(5));
  const std::map<std::string, double> metrics = checked_metrics(to_prometheus(e.stats()));
  EXPECT_EQ(metrics.at("dendrite_rows_total"), 44);
  EXPECT_EQ(metrics.at("dendrite_branches_live"), 1);
  EXPECT_GT(metrics.at("dendrite_step_seconds_total"), 0);
  EXPECT_EQ(metrics.at("dendrite_speculation_drafts_total"), 0);
  EXPECT_EQ(metrics.at("dendrite_speculation_accept_depth_by_position_total{position=\"32\"}"), 0);
  EXPECT_EQ((metrics.size() - 2 * kHistogramSamples) * sizeof(std::int64_t),
            sizeof(EngineStats) - 2 * sizeof(KlHistogram));
}

TEST(RedundantRows, APrefillFindsWhatALiveBranchOfAnySessionHasComputed) {
  Engine engine = load("tinyllama", {});
  Session one(engine, {.seed = 1});
  Session other(engine, {.seed = 2});
  Branch branch = one.prefill(Random(3).tokens(20, 256));
  one.decode(branch, {.max_tokens = 12, .ignore_eos = true});
  const Tokens tokens = branch.tokens();  // the last one was drawn, and is pending
  Branch again = other.prefill(tokens);
  EXPECT_EQ(other.stats().tokens_reused, std::ssize(tokens) - 1);
  EXPECT_EQ(other.stats().tokens_computed, 1);
  EXPECT_EQ(other.stats().tokens_redundant, 0);
  Branch third = one.prefill(std::span(tokens).first(27));
  EXPECT_EQ(one.stats().tokens_redundant, 1);  // the distribution there is nobody's
  EXPECT_EQ(one.stats().tokens_computed, 20 + 11 + 1);
}

TEST(RedundantRows, CountWhatAnotherBranchHeldAsTheStepWasPlanned) {
  Engine engine = load("tinyllama", {});
  Session session(engine, {.seed = 1});
  Branch root = session.prefill(Random(3).tokens(20, 256));
  std::vector<Branch> forks = root.fork(3);
  const Tokens same = {7, 8, 9};
  for (Branch& fork : forks) fork.append(same);
  session.expand(std::span(forks).first(2), {.top = 1});
  EXPECT_EQ(session.stats().tokens_redundant, 0);  // in one step
  session.expand(std::span(forks).last(1), {.top = 1});
  EXPECT_EQ(session.stats().tokens_redundant, 3);
}

}  // namespace
}  // namespace dendrite
