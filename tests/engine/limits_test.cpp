// Running out of pages, tokens or time, and being cancelled: a status, never a loss.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::greedy;
using test::joined;
using test::load;
using test::Random;
using test::replay;
using test::same_bits;
using test::Tokens;

Tokens prompt_of(std::int64_t count) {
  return Random(5).tokens(count, 256);
}

/// What greedy decoding gives when nothing is short.
Tokens unlimited(const Tokens& prompt, std::int64_t count) {
  Session session(load("tinyllama", {.prefix_index = false}));
  Branch branch = session.prefill(std::span(prompt));
  return session.decode(branch, greedy(count)).ids;
}

TEST(Pages, RunningOutEndsABranchAndLeavesItsSiblingsRight) {
  const Tokens prompt = prompt_of(40);
  const Tokens expected = unlimited(prompt, 400);
  const Engine e = load("tinyllama", {.kv_tokens = 160, .prefix_index = false});
  Session session(e);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(3);
  EXPECT_FALSE(session.shortage().has_value());
  const std::vector<Generation> out = session.decode(branches, greedy(400));
  for (std::size_t i = 0; i < branches.size(); ++i) {
    EXPECT_EQ(out[i].finish, Finish::kBudget);
    EXPECT_EQ(branches[i].finish(), Finish::kBudget);
    // 9 pages of its own and the fork's half page of the root, plus what the last one predicts.
    EXPECT_EQ(out[i].ids.size(), 105u);
    EXPECT_EQ(out[i].ids, Tokens(expected.begin(), expected.begin() + std::ssize(out[i].ids)));
    EXPECT_EQ(branches[i].tokens(), joined(prompt, out[i].ids));
  }
  EXPECT_TRUE(test::tree_is_sound(e, {std::span(branches), std::span(&root, 1)}));
  const std::optional<KvShortage> shortage = session.shortage();
  ASSERT_TRUE(shortage.has_value());
  EXPECT_EQ(shortage->pages_total, 10);
  EXPECT_EQ(shortage->pages_held + shortage->pages_of_branches + shortage->pages_free, 10);
  EXPECT_EQ(shortage->tokens, 145);
  EXPECT_NE(shortage->message().find("make the pool larger (kv_tokens >= 176)"), std::string::npos);
  const Engine larger = load("tinyllama", {.prefix_index = false});
  for (Branch& branch : branches) {
    branch = branch.at(100);
    EXPECT_TRUE(same_bits(bits_of(branch), replay(larger, branch.tokens())));
  }
}

TEST(Pages, OneThatNeedsTooManyDoesNotStopTheOthers) {
  const Tokens prompt = prompt_of(20);
  const Engine e = load("tinyllama", {.kv_tokens = 256, .prefix_index = false});
  Session session(e);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(2);
  branches[0].append(prompt_of(1000));  // can never fit
  const std::vector<Generation> out = session.decode(branches, greedy(30));
  EXPECT_EQ(out[0].finish, Finish::kBudget);
  EXPECT_TRUE(out[0].ids.empty());
  EXPECT_EQ(branches[0].length(), 1020);
  EXPECT_EQ(out[1].finish, Finish::kLength);
  EXPECT_EQ(out[1].ids, unlimited(prompt, 30));
}

TEST(Pages, OneThatFitsAloneOnlyIsScoredAsAStatus) {
  const Engine e = load("tinyllama", {.kv_tokens = 128, .prefix_index = false});
  Session session(e);
  const Tokens prompt = prompt_of(120);
  Branch first = session.prefill(std::span(prompt));
  const std::vector<Score> scores = first.score_tokens({prompt_of(60)});
  EXPECT_TRUE(std::isnan(scores[0].logprob));
  first.append(prompt_of(20));
  EXPECT_TRUE(session.expand(std::span(&first, 1), {.top = 2})[0].empty());
  EXPECT_FALSE(session.decode_step(first, greedy(1)).has_value());
  EXPECT_EQ(first.finish(), Finish::kBudget);
  EXPECT_EQ(first.length(), 140);
  Branch second = first.at(50);
  EXPECT_EQ(session.decode(second, greedy(8)).ids,
            unlimited(Tokens(prompt.begin(), prompt.begin() + 50), 8));
}

TEST(Pages, RememberedPromptsGiveWay) {
  const Engine e = load("tinyllama", {.kv_tokens = 512, .prefix_index = true});
  Session session(e);
  Random random(8);
  for (int i = 0; i < 20; ++i) {
    const Tokens prompt = random.tokens(random.in(50, 300), 256);
    Branch branch = session.prefill(std::span(prompt));
    ASSERT_EQ(branch.finish(), Finish::kRunning) << i;
    EXPECT_EQ(session.decode(branch, greedy(5)).ids, unlimited(prompt, 5));
  }
  test::expect_all_pages_free(e);
}

TEST(Pages, ABranchThatFitsIsNotHinderedByTheMemoryOfItsOwnPrompt) {
  Session session(load("tinyllama", {.kv_tokens = 64, .prefix_index = true}));
  const Tokens prompt = prompt_of(21);  // its second page is partly filled, and remembered
  Branch branch = session.prefill(std::span(prompt));
  const Generation out = session.decode(branch, greedy(44));  // 64 computed: every slot of the pool
  EXPECT_EQ(out.finish, Finish::kLength);
  EXPECT_EQ(out.ids, unlimited(prompt, 44));
}

TEST(Pages, APromptThatCanNeverFitIsAnError) {
  Session session(load("tinyllama", {.kv_tokens = 128}));
  const Tokens prompt = prompt_of(129);
  EXPECT_ERROR(session.prefill(std::span(prompt)), "129 tokens; the KV pool holds 128");
  EXPECT_EQ(session.stats().branches_live, 0);
}

TEST(Pages, DroppingEverythingFreesEverything) {
  const Engine e = load("tinyllama");
  {
    Session session(e);
    const Tokens prompt = prompt_of(100);
    Branch root = session.prefill(std::span(prompt));
    std::vector<Branch> branches = root.fork(10);
    session.decode(branches, greedy(20));
    EXPECT_GT(session.stats().pages_used, 10);
    const std::int64_t before = session.stats().pages_used;
    for (std::size_t i = 0; i < 10; i += 2) branches[i].prune();
    EXPECT_LT(session.stats().pages_used, before);
  }
  test::expect_all_pages_free(e);
}

TEST(Pages, PruningGivesBackWhatOnlyThatBranchHeld) {
  const Engine e = load("tinyllama", {.prefix_index = false});
  Session session(e);
  const Tokens prompt = prompt_of(100);
  Branch root = session.prefill(std::span(prompt));
  EXPECT_EQ(session.stats().pages_used, 7);
  Branch child = root.fork();
  EXPECT_EQ(session.stats().pages_used, 7);
  child.append(prompt_of(30));
  session.decode(child, greedy(1));
  EXPECT_EQ(session.stats().pages_used, 7 + 3);  // its own copy of the last page, and two more
  Branch back = child.at(104);
  child.prune();
  EXPECT_EQ(session.stats().pages_used, 7 + 1);
  back.prune();
  EXPECT_EQ(session.stats().pages_used, 7);
  root.prune();
  EXPECT_EQ(session.stats().pages_used, 0);
}

TEST(Pages, PruningManyAtOnceLeavesTheOthersAsTheyWere) {
  const Engine e = load("tinyllama", {.prefix_index = false});
  Session session(e);
  Branch root = session.prefill(std::span<const Token>(prompt_of(30)));
  Branch kept = root.fork();
  const Tokens expected = session.decode(root, greedy(20)).ids;
  const std::int64_t pages = session.stats().pages_used;
  std::int64_t told = 0;
  const EventSubscription events =
      e.on_event(mask_of(EventKind::kPrune), [&](const Event& event) { told += event.pages; });

  std::vector<Branch> nodes;  // each below one before it, some empty, some at the same place
  for (std::size_t i = 0; i < 100; ++i) {
    nodes.push_back((i < 4 ? kept : nodes[i / 4]).fork());
    if (i % 7 > 0) nodes.back().append(prompt_of(1 + static_cast<std::int64_t>(i % 20)));
  }
  session.decode(nodes, greedy(2));
  for (std::size_t i = 0; i < nodes.size(); i += 9) nodes[i].prune();
  const std::int64_t live = session.stats().branches_live;
  const std::int64_t pruned = session.stats().prunes;
  session.prune(nodes);
  for (const Branch& node : nodes) EXPECT_FALSE(node.valid());
  EXPECT_EQ(session.stats().branches_live, 2);
  EXPECT_EQ(session.stats().prunes, pruned + live - 2);
  EXPECT_EQ(session.stats().pages_used, pages);
  EXPECT_GT(told, 100);
  EXPECT_EQ(session.decode(kept, greedy(20)).ids, expected);
  session.prune(nodes);  // empty ones are skipped
  session.prune(std::span<Branch>());
}

TEST(Pages, PruningABranchOfAnotherSessionPrunesNone) {
  const Engine e = load("tinyllama", {.prefix_index = false});
  std::vector<Branch> branches;
  Session session(e);
  branches.push_back(session.prefill(std::span<const Token>(prompt_of(30))));
  Session other(e);
  branches.push_back(other.prefill(std::span<const Token>(prompt_of(30))));
  EXPECT_ERROR(session.prune(branches), "branch 1 belongs to another session");
  EXPECT_TRUE(branches[0].valid());
  session.prune(std::span(branches).first(1));
  other.prune(std::span(branches).subspan(1));
  test::expect_all_pages_free(e);
}

TEST(Budget, OfTokensEndsCallsWithAStatus) {
  const Tokens prompt = prompt_of(30);
  const Engine e = load("tinyllama", {.prefix_index = false});
  Session session(e, {.budget = {.tokens = 60}});
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(4);
  const std::vector<Generation> out = session.decode(branches, greedy(100));
  const Tokens expected = unlimited(prompt, 100);
  EXPECT_EQ(session.stats().tokens_computed, 60);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out[i].finish, Finish::kBudget);
    EXPECT_GE(out[i].ids.size(), 7u);  // all got their part
    EXPECT_EQ(out[i].ids, Tokens(expected.begin(), expected.begin() + std::ssize(out[i].ids)));
  }
  EXPECT_FALSE(session.decode_step(branches[0], greedy(1)).has_value());
  Branch late = session.prefill(std::span(prompt));
  EXPECT_EQ(late.finish(), Finish::kBudget);
  EXPECT_EQ(late.tokens(), prompt);
}

TEST(Budget, OfTimeEndsALongCall) {
  Session session(load("tinyllama"), {.budget = {.milliseconds = 50}});
  const Tokens prompt = prompt_of(10);
  Branch branch = session.prefill(std::span(prompt));
  const auto begin = std::chrono::steady_clock::now();
  const Generation out = session.decode(branch, greedy(15000));
  EXPECT_EQ(out.finish, Finish::kBudget);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(branch.length(), 10 + std::ssize(out.ids));
}

TEST(Cancel, StopsADecodeWhichCanGoOn) {
  const Tokens prompt = prompt_of(20);
  Session session(load("tinyllama"));
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(3);
  std::stop_source source;
  DecodeParams params = greedy(60);
  params.cancel = source.get_token();
  int seen = 0;
  params.on_token = [&](const TokenEvent&) {
    if (++seen == 3 * 10) source.request_stop();
  };
  const std::vector<Generation> out = session.decode(branches, params);
  const Tokens expected = unlimited(prompt, 60);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out[i].finish, Finish::kCancelled);
    EXPECT_EQ(out[i].ids, Tokens(expected.begin(), expected.begin() + 10));
    EXPECT_EQ(branches[i].finish(), Finish::kCancelled);
  }
  const std::vector<Generation> rest = session.decode(branches, greedy(50));
  for (const Generation& generation : rest) {
    EXPECT_EQ(generation.ids, Tokens(expected.begin() + 10, expected.end()));
  }
}

TEST(Cancel, BeforeAPrefillLeavesItsTokensToBeComputedLater) {
  const Tokens prompt = prompt_of(700);
  Session session(load("tinyllama"));
  std::stop_source source;
  source.request_stop();
  Branch branch = session.prefill(std::span(prompt), {.cancel = source.get_token()});
  EXPECT_EQ(branch.finish(), Finish::kCancelled);
  EXPECT_EQ(branch.tokens(), prompt);
  EXPECT_EQ(session.stats().tokens_computed, 0);
  EXPECT_EQ(session.decode(branch, greedy(10)).ids, unlimited(prompt, 10));
}

TEST(Cancel, InTheMiddleOfAPrefillKeepsWhatIsComputed) {
  const Tokens prompt = prompt_of(3000);
  const Engine e = load("tinyllama");
  Session session(e);
  std::stop_source source;
  Branch branch;
  std::thread prefill(
      [&] { branch = session.prefill(std::span(prompt), {.cancel = source.get_token()}); });
  while (session.stats().tokens_computed == 0) std::this_thread::yield();
  source.request_stop();
  prefill.join();
  // (On a machine where the rest is quicker than this thread it was not cancelled any more.)
  EXPECT_TRUE(branch.finish() == Finish::kCancelled || branch.finish() == Finish::kRunning);
  EXPECT_EQ(branch.length(), 3000);
  const std::int64_t computed = session.stats().tokens_computed;
  Branch begun = branch.at(std::min<std::int64_t>(computed, 600));
  EXPECT_EQ(session.decode(branch, greedy(3)).ids, unlimited(prompt, 3));
  const Tokens beginning = begun.tokens();
  EXPECT_EQ(session.decode(begun, greedy(3)).ids, unlimited(beginning, 3));
  EXPECT_LE(session.stats().tokens_computed, 3000 + 20);  // nothing twice
}

TEST(Dynamic, RopeIsNotComputedPastItsLimit) {
  Session session(load("llama_dynamic", {.kv_tokens = 4096}));
  const std::int64_t limit = session.engine().info().max_positions;
  const Tokens longer = prompt_of(limit + 1);
  EXPECT_ERROR(session.prefill(std::span(longer)), "RoPE is exact for at most");
  Branch branch = session.prefill(std::span(longer).first(static_cast<std::size_t>(limit - 3)));
  const Generation out = session.decode(branch, greedy(10));
  EXPECT_EQ(out.finish, Finish::kLength);
  EXPECT_EQ(out.ids.size(), 3u);
}

TEST(Positions, EndWhatGoesOn) {
  const std::string path = test::model_path("tinyllama").string();
  Session session(Engine::load(path, {.threads = 1, .kv_tokens = 4096}));
  // Who says so goes on.
  Session beyond(Engine::load(path, {.threads = 1, .kv_tokens = 4096, .beyond_positions = true}));
  // To the end, whatever the model says (ignore_eos would go on behind it).
  const auto to_end = [&](std::int64_t count) {
    DecodeParams params = greedy(count);
    params.ignore_eos = false;
    for (const Token eos : session.engine().info().eos) {
      params.logit_bias.emplace_back(eos, -std::numeric_limits<float>::infinity());
    }
    return params;
  };
  const auto unbound = [&](const Tokens& prompt, std::int64_t count) {
    Branch branch = beyond.prefill(std::span(prompt));
    return beyond.decode(branch, to_end(count)).ids;
  };
  const std::int64_t limit = session.engine().info().max_positions;
  const std::string refused = " tokens; this model has positions for at most " +
                              std::to_string(limit) + " (max_position_embeddings";
  const Tokens longer = prompt_of(limit + 1);
  EXPECT_ERROR(session.prefill(std::span(longer)),
               "prefill: " + std::to_string(limit + 1) + refused);
  EXPECT_ERROR(session.compose(std::vector{Piece::tokens(longer)}), refused);
  EXPECT_ERROR(session.register_chunk(longer), refused);
  EXPECT_EQ(session.stats().tokens_computed, 0);

  const Tokens prompt(longer.begin(), longer.end() - 4);  // three positions are left
  Branch branch = session.prefill(std::span(prompt));
  EXPECT_ERROR(branch.append(std::span(longer).first(4)),
               "append: " + std::to_string(limit + 1) + refused);
  EXPECT_EQ(branch.length(), limit - 3);
  EXPECT_ERROR(branch.score_tokens({Tokens(5, 1)}), "score: ");
  EXPECT_EQ(branch.score_tokens({Tokens(4, 1)}).front().tokens.size(), 4u);

  DecodeParams params = to_end(10);
  params.speculate = Speculate::kSuffix;
  std::vector<Branch> both = branch.fork(2);
  for (const Generation& out : session.decode(both, params)) {
    EXPECT_EQ(out.finish, Finish::kLength);
    EXPECT_EQ(out.ids, unbound(prompt, 3));
  }
  // At the end: nothing more, however it is asked for.
  const Generation out = session.decode(both[0], to_end(10));
  EXPECT_EQ(out.finish, Finish::kLength);
  EXPECT_TRUE(out.ids.empty());
  EXPECT_TRUE(session.expand(std::span(both).first(1), {.top = 2}).front().empty());
  EXPECT_EQ(both[0].finish(), Finish::kLength);
  EXPECT_EQ(both[0].length(), limit);
  // Siblings that are shorter go on beside it.
  Branch early = both[1].at(limit - 2);
  Branch* const mixed[] = {&both[1], &early};
  const std::vector<Generation> outs = session.decode(mixed, to_end(10));
  EXPECT_TRUE(outs[0].ids.empty());
  EXPECT_EQ(outs[1].ids.size(), 2u);
  Branch on = both[0].fork();
  EXPECT_EQ(session.decode(on, greedy(5)).ids.size(), 5u);
  on = {};
  EXPECT_NO_THROW(session.engine().restore(session.snapshot()));

  EXPECT_EQ(unbound(longer, 3).size(), 3u);
  Branch past = beyond.prefill(std::span(longer));
  EXPECT_ERROR(session.engine().restore(beyond.snapshot()), "this model takes at most");
}

TEST(Misuse, IsAnErrorThatSaysWhatWasGot) {
  const Engine e = load("tinyllama");
  Session session(e);
  Session stranger(e);
  const Tokens prompt = prompt_of(10);
  Branch branch = session.prefill(std::span(prompt));
  Branch empty;
  const Tokens none;
  const Tokens outside{1, 2, 320};
  EXPECT_ERROR(session.prefill(std::span(none)), "has no tokens");
  EXPECT_ERROR(session.prefill(std::span(outside)), "token id 320");
  EXPECT_ERROR(branch.append(outside), "token id 320");
  EXPECT_ERROR(branch.append(Tokens{-1}), "token id -1");
  EXPECT_ERROR(branch.at(0), "at: length is 0");
  EXPECT_ERROR(branch.at(11), "at: length is 11; expected 1 to 10");
  EXPECT_ERROR(branch.fork(-1), "count is -1");
  EXPECT_ERROR(branch.score_tokens({{}}), "no tokens");
  EXPECT_ERROR(branch.score_tokens({{400}}), "token id 400");
  EXPECT_ERROR(empty.fork(), "the branch is empty");
  EXPECT_ERROR(session.decode(empty, greedy(1)), "is empty");
  EXPECT_ERROR(stranger.decode(branch, greedy(1)), "another session");
  EXPECT_ERROR(stranger.expand(std::span(&branch, 1), {.top = 1}), "another session");
  EXPECT_ERROR(session.expand(std::span(&branch, 1), {}), "neither top nor min_prob");
  EXPECT_ERROR(branch.append("text"), "tokenizer.json");
  EXPECT_ERROR(session.prefill("text"), "tokenizer.json");
  EXPECT_ERROR(session.decode(branch, {.max_tokens = -1}), "max_tokens is -1");
  EXPECT_ERROR(session.decode(branch, {.stop_tokens = {320}}), "token id 320");
  EXPECT_ERROR(session.decode(branch, {.stop = {"x"}}), "tokenizer.json");
  EXPECT_ERROR(Session(Engine::load(test::model_path("tinyllama").string(), {.weights = false})),
               "without weights");
  EXPECT_EQ(branch.tokens(), prompt);  // nothing of all this changed it
}

TEST(Misuse, OptionsOutOfRangeAreRefusedByName) {
  const std::string path = test::model_path("tinyllama").string();
  EXPECT_ERROR(Engine::load(path, {.device = "tpu"}), "device is \"tpu\"");
  EXPECT_ERROR(Engine::load(path, {.dtype = "f8"}), "dtype is \"f8\"");
  EXPECT_ERROR(Engine::load(path, {.threads = -1}), "threads is -1");
  EXPECT_ERROR(Engine::load(path, {.page_tokens = 12}), "page_tokens is 12");
  EXPECT_ERROR(Engine::load(path, {.kv_tokens = -5}), "kv_tokens is -5");
  EXPECT_ERROR(Engine::load(path, {.load_format = "gguf"}), "load_format is \"gguf\"");
  EXPECT_ERROR(Engine::load(path, {.kernels = "sse9"}), "sse9");
}

}  // namespace
}  // namespace dendrite
