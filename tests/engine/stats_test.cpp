// Statistics of branches and of the engine, as structs, JSON and Prometheus text.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/branches/session_core.h"
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

TEST(SessionStatistics, ForkTimesAreOfForksAlone) {
  Session session(load("tinyllama"));
  const Tokens prompt = Random(1).tokens(40, 256);
  Branch root = session.prefill(std::span(prompt));
  const std::vector<std::vector<Branch>> children = session.expand(std::span(&root, 1), {.top = 3});
  EXPECT_EQ(children[0].size(), 3u);
  EXPECT_EQ(session.stats().fork_ns, 0);
  EXPECT_TRUE(core_of(session)->fork_samples.empty());
  const std::int64_t before = session.stats().forks;
  const std::vector<Branch> kids =
      root.fork(16);  // one in 16 forks is timed, and the call it is in
  EXPECT_EQ(session.stats().forks, before + 16);
  ASSERT_EQ(core_of(session)->fork_samples.size(), 1u);
  EXPECT_EQ(core_of(session)->fork_samples[0].forks, 16);
  EXPECT_GT(session.stats().fork_ns, 0);
}

TEST(SessionStatistics, EachForkWeighsTheSame) {
  Session session(load("tinyllama"));
  core_of(session)->fork_samples = {{900, 1}, {40, 8}, {800, 2}, {700, 3}};
  EXPECT_EQ(session.stats().fork_ns, 40);  // of 14 forks, 8; of 4 calls, one
  core_of(session)->fork_samples = {{900, 5}, {40, 4}};
  EXPECT_EQ(session.stats().fork_ns, 900);
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

/// Slots that hold something, of those of the pages in use: a prompt and branches with tails of
/// their own. What cuts of pages cost is known by counting.
void expect_utilisation(std::int64_t page_tokens, std::int64_t prompt, std::int64_t tail) {
  SCOPED_TRACE(testing::Message() << page_tokens << " " << prompt << " " << tail);
  constexpr int kBranches = 16;
  const Engine e = load("tinyllama", {.page_tokens = static_cast<int>(page_tokens)});
  Session session(e);
  Branch root = session.prefill(std::span<const Token>(Random(1).tokens(prompt, 256)));
  std::vector<Branch> kids = root.fork(kBranches);
  session.decode(kids, greedy(tail + 1));  // the last token has no K and V
  const auto pages = [&](std::int64_t tokens) { return (tokens + page_tokens - 1) / page_tokens; };
  const std::int64_t of_branch = prompt % page_tokens + tail;
  const std::int64_t slots = prompt + kBranches * of_branch;
  const std::int64_t held = (pages(prompt) + kBranches * pages(of_branch)) * page_tokens;
  const EngineStats stats = e.stats();
  ASSERT_EQ(stats.pages_used, held / page_tokens);
  EXPECT_EQ(stats.slots_used, slots);
  EXPECT_DOUBLE_EQ(stats.pool_utilisation, static_cast<double>(slots) / static_cast<double>(held));
  EXPECT_GT(stats.pool_utilisation_peak, 0);
  EXPECT_LE(stats.pool_utilisation_peak, 1);
  kids.clear();  // ... and the prompt's own slots are left, in its own pages
  EXPECT_EQ(e.stats().slots_used, prompt);
  EXPECT_EQ(e.stats().pool_utilisation_peak, stats.pool_utilisation_peak);
}

TEST(EngineStatistics, UtilisationIsWhatPagesHold) {
  for (const std::int64_t page_tokens : {8, 16, 32}) {
    for (const std::int64_t prompt : {64, 70, 200, 512}) {
      for (const std::int64_t tail : {1, 12, 24, 36, 100}) {
        expect_utilisation(page_tokens, prompt, tail);
      }
    }
  }
}

/// A rewind leaves slots in a page that nobody reads; both halves of a cut page count it once.
TEST(EngineStatistics, UtilisationCountsSlotsThatAreReadOnce) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .prefix_index = false});
  Session session(e);
  Branch root = session.prefill(std::span<const Token>(Random(1).tokens(40, 256)));
  EXPECT_EQ(e.stats().slots_used, 40);
  Branch back = root.at(20);  // [16, 32) lies across the cut
  EXPECT_EQ(e.stats().slots_used, 40);
  root.prune();
  EXPECT_EQ(e.stats().slots_used, 20);
  EXPECT_DOUBLE_EQ(e.stats().pool_utilisation, 20.0 / 32);
  back.prune();
  EXPECT_EQ(e.stats().pool_utilisation, 0);
}

TEST(EngineStatistics, RatesAreOfTheTimeThatWasSpent) {
  const Engine e = load("tinyllama", {.page_tokens = 16, .prefix_index = false});
  EXPECT_EQ(e.stats().tokens_per_second, 0);
  Session session(e);
  Branch root = session.prefill(std::span<const Token>(Random(1).tokens(256, 256)));
  const EngineStats before = e.stats();
  std::vector<Branch> kids = root.fork(4);
  session.decode(kids, greedy(30));
  const EngineStats after = e.stats();
  // (No order between the two: where a device samples, steps overlap, and each counts as it took.)
  EXPECT_GT(after.busy_seconds, 0);
  EXPECT_GT(after.step_seconds, 0);
  // Fewer turns than the window has: the rates are those of all so far.
  EXPECT_NEAR(after.tokens_per_second, 120 / after.busy_seconds, 1e-6 * after.tokens_per_second);
  EXPECT_NEAR(after.read_bandwidth, static_cast<double>(after.bytes_read) / after.step_seconds,
              1e-6 * after.read_bandwidth);
  // Each of 29 steps read the weights, the prompt's positions once for all, and of each branch its
  // own.
  const EngineInfo& info = e.info();
  const std::int64_t bytes = after.bytes_read - before.bytes_read;
  std::int64_t positions = 0;
  for (std::int64_t step = 1; step <= 29; ++step) positions += 256 + 4 * step;
  const auto& model = *core_of(e)->model;
  const std::int64_t embedding =
      &model.embedding() == &model.output_matrix() ? 0 : model.embedding().size_bytes();
  EXPECT_EQ(bytes, 29 * (info.weight_bytes - embedding) + positions * info.kv_token_bytes);
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
