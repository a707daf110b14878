// Many prompts in one call: the bits of one after the other, whoever waits, ends or fails.
#include "dendrite/generate.h"

#include <atomic>

#include "chat/chat_support.h"

namespace dendrite::test {
namespace {

using Ids = std::vector<Token>;

const std::string kPrompt = "S 24: 4 9 10 13\n";
const std::vector<Prompt> kPrompts = {"S 24: 4 6\n",      kPrompt, "S 24: 3 8\n", kPrompt,
                                      "S 24: 4 5 6 10\n", kPrompt};
const DecodeParams kHot{.max_tokens = 20, .temperature = 5.0};

std::vector<std::vector<Ids>> ids_of(const std::vector<PromptResult>& results) {
  std::vector<std::vector<Ids>> ids;
  for (const PromptResult& result : results) {
    auto& of_one = ids.emplace_back();
    for (const Generation& each : result.generations) of_one.push_back(each.ids);
  }
  return ids;
}

class GenerateTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = new Engine(load("dendrite-24")); }
  static void TearDownTestSuite() { delete engine_; }
  Engine& engine() { return *engine_; }
  static Engine* engine_;
};
Engine* GenerateTest::engine_ = nullptr;

TEST_F(GenerateTest, BitsAreThoseOfOneAfterTheOther) {
  Session alone(engine(), {.seed = 3});
  std::vector<std::vector<Ids>> wanted;
  for (const Prompt& prompt : kPrompts) {
    Branch branch = alone.prefill(std::get<std::string>(prompt));
    wanted.push_back({alone.decode(branch, kHot).ids});
  }
  EXPECT_NE(wanted[1], wanted[3]);  // equal prompts draw apart
  for (const std::optional<int> at_once : {std::optional<int>(), {1}, {2}, {100}}) {
    Session session(engine(), {.seed = 3});
    const auto results = generate(session, kPrompts, {.decode = kHot, .at_once = at_once});
    EXPECT_EQ(ids_of(results), wanted);
    EXPECT_EQ(results[1].ids, engine().encode(kPrompt));
    EXPECT_EQ(session.stats().branches_live, 0);
  }
}

TEST_F(GenerateTest, SamplesAreForks) {
  Session alone(engine(), {.seed = 3});
  std::vector<std::vector<Ids>> wanted;
  for (const Prompt& prompt : kPrompts) {
    Branch root = alone.prefill(std::get<std::string>(prompt));
    std::vector<Branch> forks = root.fork(3);
    auto& of_one = wanted.emplace_back();
    for (const Generation& each : alone.decode(forks, kHot)) of_one.push_back(each.ids);
  }
  Session session(engine(), {.seed = 3});
  EXPECT_EQ(ids_of(generate(session, kPrompts, {.decode = kHot, .n = 3, .at_once = 2})), wanted);
}

TEST_F(GenerateTest, TextsAndIdsAreTheSamePrompt) {
  Session session(engine());
  const GenerateParams greedy{.decode = {.max_tokens = 8, .temperature = 0}};
  const auto text = generate(session, Prompt("S 24: 4 6\n"), greedy);
  const auto ids = generate(session, Prompt(engine().encode("S 24: 4 6\n")), greedy);
  EXPECT_EQ(text.generations[0].ids, ids.generations[0].ids);
  EXPECT_TRUE(generate(session, std::vector<Prompt>(), greedy).empty());
}

TEST_F(GenerateTest, APromptWithASeedDependsOnNothingElse) {
  Session one(engine(), {.seed = 11});
  Session other(engine(), {.seed = 4});
  GenerateParams params{.decode = kHot, .n = 2, .seeds = {5, 5}};
  const std::vector<Prompt> twice = {kPrompt, kPrompt};
  const auto wanted = ids_of(generate(one, twice, params));
  EXPECT_EQ(wanted[0], wanted[1]);
  EXPECT_NE(wanted[0][0], wanted[0][1]);
  params.at_once = 1;
  EXPECT_EQ(ids_of(generate(other, twice, params)), wanted);
  params.seeds = {6, 5};
  const auto changed = ids_of(generate(one, twice, params));
  EXPECT_NE(changed[0], wanted[0]);
  EXPECT_EQ(changed[1], wanted[1]);
  params.seeds.clear();
  params.decode.seed = 5;
  EXPECT_EQ(ids_of(generate(one, twice, params)), wanted);

  // It shifts nobody else's draws.
  Session plain(engine(), {.seed = 3});
  const auto without = ids_of(generate(plain, kPrompts, {.decode = kHot}));
  std::vector<Prompt> more = kPrompts;
  more.insert(more.begin(), kPrompt);
  std::vector<std::optional<std::uint64_t>> seeds(more.size());
  seeds[0] = 5;
  Session mixed(engine(), {.seed = 3});
  auto with = ids_of(generate(mixed, more, {.decode = kHot, .seeds = seeds}));
  with.erase(with.begin());
  EXPECT_EQ(with, without);
}

TEST_F(GenerateTest, PromptsAreToldAsTheyEndAndReturnedInOrder) {
  Session session(engine());
  GenerateParams params;
  for (const std::int64_t size : {60, 30, 3}) {
    params.decode_each.push_back({.max_tokens = size, .ignore_eos = true});
  }
  std::vector<std::size_t> order;
  std::vector<Branch> kept;
  params.on_done = [&](std::size_t index, const PromptResult& result, std::span<Branch> branches) {
    order.push_back(index);
    EXPECT_EQ(std::ssize(result.generations[0].ids), params.decode_each[index].max_tokens);
    ASSERT_EQ(branches.size(), 1u);
    if (index == 1) kept.push_back(std::move(branches[0]));
  };
  const auto results = generate(session, std::span(kPrompts).first(3), params);
  EXPECT_EQ(order, (std::vector<std::size_t>{2, 1, 0}));
  EXPECT_EQ(results[0].generations[0].ids.size(), 60u);
  EXPECT_EQ(session.stats().branches_live, 1);
  EXPECT_EQ(kept[0].length(), std::ssize(results[1].ids) + 30);
}

TEST_F(GenerateTest, EchoTellsOfThePromptAndChangesNothing) {
  Session plain(engine(), {.seed = 3});
  const auto wanted = ids_of(generate(plain, kPrompts, {.decode = kHot}));
  Session session(engine(), {.seed = 3});
  const auto results = generate(session, kPrompts, {.decode = kHot, .echo = true});
  EXPECT_EQ(ids_of(results), wanted);
  const Ids ids = engine().encode(kPrompt);
  Branch first = session.prefill(std::span(ids).first(1));
  const Score score = first.score_tokens({{ids.begin() + 1, ids.end()}}).front();
  ASSERT_EQ(results[1].prompt_logprobs.size(), ids.size());
  EXPECT_TRUE(std::isnan(results[1].prompt_logprobs[0]));
  EXPECT_TRUE(
      std::equal(score.tokens.begin(), score.tokens.end(), results[1].prompt_logprobs.begin() + 1));
  EXPECT_TRUE(results[1].prompt_top.empty());
  const auto told = generate(session, Prompt(ids), {.decode = kHot, .echo = true, .echo_top = 2});
  EXPECT_EQ(told.prompt_logprobs.size(), ids.size());
  ASSERT_EQ(told.prompt_top.size(), ids.size());
  EXPECT_TRUE(told.prompt_top[0].empty());
  for (std::size_t i = 1; i < ids.size(); ++i) {
    ASSERT_EQ(told.prompt_top[i].size(), 2u);
    const TokenLogprob& best = told.prompt_top[i][0];
    EXPECT_GE(best.logprob, told.prompt_top[i][1].logprob);
    EXPECT_EQ(best.id == ids[i], best.logprob == told.prompt_logprobs[i]);
  }
  const Prompt one(Ids(ids.begin(), ids.begin() + 1));
  EXPECT_EQ(generate(session, one, {.decode = kHot, .echo = true}).prompt_logprobs.size(), 1u);
}

TEST_F(GenerateTest, WhatIsWrongIsNamedBeforeAnythingIsComputed) {
  Session session(engine());
  const auto says = [&](const Prompt& bad, const GenerateParams& params = {}) {
    return error_of([&] { generate(session, std::vector<Prompt>{kPrompt, bad}, params); });
  };
  EXPECT_EQ(says(Ids()), "generate: prompt 1 has no tokens; expected at least one");
  EXPECT_EQ(says(Ids{5, 9999}), "generate: prompt 1: token 1 is 9999; expected 0 to 319");
  EXPECT_TRUE(says(Ids(2000, 0)).starts_with("generate: prompt 1: ")) << says(Ids(2000, 0));
  EXPECT_EQ(says(kPrompt, {.n = 0}), "generate: n is 0; expected >= 1");
  EXPECT_EQ(says(kPrompt, {.at_once = 0}), "generate: at_once is 0; expected >= 1");
  EXPECT_EQ(says(kPrompt, {.seeds = {1}}),
            "generate: got 1 seeds and 2 prompts; expected one each");
  EXPECT_NE(says(kPrompt, {.decode_each = {{}, {.max_tokens = -1}}}).find("max_tokens is -1"),
            std::string::npos);
  EXPECT_THROW(generate(session, kPrompts, {.decode = {.constraint = Constraint::regex("(")}}),
               ConstraintError);
  EXPECT_EQ(session.stats().tokens_computed, 0);
}

TEST_F(GenerateTest, CancelGivesWhatThereIs) {
  Session session(engine());
  std::stop_source stop;
  GenerateParams params{.decode = {.max_tokens = 900, .ignore_eos = true}, .at_once = 2};
  params.decode.cancel = stop.get_token();
  std::atomic<int> tokens = 0;
  params.decode.on_token = [&](const TokenEvent&) {
    if (++tokens == 10) stop.request_stop();
  };
  const auto results = generate(session, kPrompts, params);
  for (const PromptResult& result : results) {
    ASSERT_EQ(result.generations.size(), 1u);
    EXPECT_EQ(result.generations[0].finish, Finish::kCancelled);
  }
  EXPECT_FALSE(results[0].generations[0].ids.empty());
  EXPECT_EQ(session.stats().branches_live, 0);

  params.decode.cancel = {};
  params.n = 2;
  params.decode.on_token = {};
  params.poll = [] { return false; };
  for (const PromptResult& result : generate(session, kPrompts, params)) {
    ASSERT_EQ(result.generations.size(), 2u);
    EXPECT_EQ(result.generations[1].finish, Finish::kCancelled);
  }
  EXPECT_EQ(session.stats().branches_live, 0);
}

TEST_F(GenerateTest, WhatACallbackThrowsComesOut) {
  Session session(engine());
  GenerateParams params{.decode = {.max_tokens = 200, .ignore_eos = true}};
  params.decode_each.assign(kPrompts.size(), params.decode);
  params.decode_each[0].max_tokens = 1;
  params.on_done = [](std::size_t, const PromptResult&, std::span<Branch>) {
    throw std::runtime_error("enough");
  };
  EXPECT_THROW(generate(session, kPrompts, params), std::runtime_error);
  EXPECT_EQ(session.stats().branches_live, 0);
  params.on_done = {};
  params.decode_each[2].on_token = [](const TokenEvent&) { throw std::logic_error("no"); };
  EXPECT_THROW(generate(session, kPrompts, params), std::logic_error);
  EXPECT_EQ(session.stats().branches_live, 0);
}

TEST_F(GenerateTest, NotInACallback) {
  Session session(engine());
  Branch branch = session.prefill(kPrompt);
  DecodeParams params{.max_tokens = 3};
  params.on_token = [&](const TokenEvent&) { generate(session, Prompt(kPrompt)); };
  EXPECT_THROW(session.decode(branch, params), BranchBusy);
}

TEST_F(GenerateTest, ARunIsWokenByWhoDrives) {
  Session alone(engine(), {.seed = 3});
  const auto wanted = ids_of(generate(alone, kPrompts, {.decode = kHot, .n = 2}));
  const EngineThread driver = engine().start();
  std::atomic<int> woken = 0;
  Session session(engine(), {.seed = 3});
  GenerateRun run(session, kPrompts, {.decode = kHot, .n = 2, .at_once = 3}, [&] {
    ++woken;
    woken.notify_one();
  });
  std::vector<PromptResult> results(kPrompts.size());
  for (int seen = 0; run.running();) {
    woken.wait(seen);
    seen = woken;
    for (auto& [index, result] : run.take()) results[index] = std::move(result);
  }
  EXPECT_EQ(ids_of(results), wanted);
  EXPECT_FALSE(run.ready());

  GenerateRun left(session, kPrompts, {.decode = {.max_tokens = 900, .ignore_eos = true}});
  left.take();
  left = GenerateRun(session, {}, {});  // it ends with its handle
  EXPECT_FALSE(left.running());
  EXPECT_EQ(session.stats().branches_live, 0);
}

}  // namespace
}  // namespace dendrite::test
