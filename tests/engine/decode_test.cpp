// Decoding from outside: what ends a branch, what is told while it runs, and its log-probs.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::logits_of;
using test::Random;
using test::Tokens;

Tokens prompt_of(std::int64_t count) {
  return Random(21).tokens(count, 256);
}

/// A model with a byte tokenizer, and parameters under which it writes random letters.
class TextDecode : public ::testing::Test {
 protected:
  DecodeParams letters(std::int64_t max_tokens, const std::string& alphabet = "abcdefgh") const {
    DecodeParams params;
    params.max_tokens = max_tokens;
    params.temperature = 1.5;
    params.ignore_eos = true;
    for (const char c : alphabet) {
      params.logit_bias.emplace_back(engine.encode(std::string(1, c), false).front(), 100.0f);
    }
    return params;
  }
  /// The same random text each time.
  Branch start() { return session.prefill(std::span<const Token>(prompt), {.stream = 5}); }

  Engine engine = load("llama2");
  Session session{engine, {.seed = 3}};
  Tokens prompt = engine.encode("Once");
};

TEST_F(TextDecode, TextIsThatOfTheTokens) {
  Branch branch = start();
  const Generation out = session.decode(branch, letters(50));
  EXPECT_EQ(out.finish, Finish::kLength);
  EXPECT_EQ(out.ids.size(), 50u);
  EXPECT_EQ(out.text.size(), 50u);
  EXPECT_EQ(out.text, engine.decode(out.ids, true));
  EXPECT_EQ(branch.text(), out.text);
  EXPECT_EQ(branch.prompt_length(), std::ssize(prompt));
  EXPECT_EQ(branch.length(), std::ssize(prompt) + 50);
}

TEST_F(TextDecode, StopStringsEndABranchAcrossTokenBorders) {
  Branch whole = start();
  const Generation all = session.decode(whole, letters(60));
  for (const std::size_t length : {1u, 2u, 3u, 7u}) {
    const std::string stop = all.text.substr(30, length);
    const std::size_t at = all.text.find(stop);
    SCOPED_TRACE("stop \"" + stop + "\"");
    Branch branch = start();
    DecodeParams params = letters(60);
    params.stop = {"never", stop};
    std::string streamed;
    params.on_token = [&](const TokenEvent& event) {
      streamed += event.text;
      EXPECT_EQ(streamed.find(stop), std::string::npos);
      EXPECT_TRUE(all.text.substr(0, at).starts_with(streamed))
          << "showed a part of the stop string";
    };
    const Generation out = session.decode(branch, params);
    EXPECT_EQ(out.finish, Finish::kStop);
    EXPECT_EQ(out.stop, stop);
    EXPECT_EQ(out.stop_token, std::nullopt);
    EXPECT_EQ(out.text, all.text.substr(0, at));
    EXPECT_EQ(streamed, out.text);
    EXPECT_EQ(out.ids,
              Tokens(all.ids.begin(), all.ids.begin() + static_cast<std::ptrdiff_t>(at + length)));
    EXPECT_EQ(branch.finish(), Finish::kStop);
    // The branch keeps all tokens, and goes on where it was.
    EXPECT_EQ(branch.text(), all.text.substr(0, at + length));
    EXPECT_EQ(session.decode(branch, letters(3)).ids,
              Tokens(all.ids.begin() + static_cast<std::ptrdiff_t>(at + length),
                     all.ids.begin() + static_cast<std::ptrdiff_t>(at + length + 3)));
  }
}

TEST_F(TextDecode, AnyPriorityIsOne) {
  std::vector<Branch> branches = start().fork(2);
  branches[0].set_priority(std::numeric_limits<int>::min());
  branches[1].set_priority(std::numeric_limits<int>::max());
  std::vector<std::size_t> order;
  DecodeParams params = letters(1);
  params.on_token = [&](const TokenEvent& event) { order.push_back(event.index); };
  session.decode(branches, params);
  EXPECT_EQ(order.size(), 2u);
}

TEST_F(TextDecode, EachBranchStopsByItself) {
  Branch root = start();
  std::vector<Branch> branches = root.fork(8);
  DecodeParams params = letters(40, "ab");
  params.stop = {"aaa"};
  const std::vector<Generation> out = session.decode(branches, params);
  std::set<std::size_t> lengths;
  for (std::size_t i = 0; i < out.size(); ++i) {
    lengths.insert(out[i].ids.size());
    EXPECT_EQ(out[i].text.find("aaa"), std::string::npos);
    const std::string text = branches[i].text();
    if (out[i].finish == Finish::kStop) {
      EXPECT_TRUE(text.ends_with("aaa"));
      EXPECT_EQ(out[i].stop, "aaa");
      EXPECT_EQ(out[i].text, text.substr(0, text.size() - 3));
    } else {
      EXPECT_EQ(out[i].finish, Finish::kLength);
      EXPECT_EQ(out[i].text, text);
      EXPECT_EQ(out[i].stop, "");
    }
  }
  EXPECT_GT(lengths.size(), 2u);
}

TEST_F(TextDecode, StreamedTextIsTheTextOfTheGeneration) {
  // Random bytes: characters that are never finished, at the end too.
  for (std::uint64_t stream = 0; stream < 30; ++stream) {
    Branch branch = session.prefill(std::span<const Token>(prompt), {.stream = stream});
    DecodeParams params{.max_tokens = 12, .stop = {"ab"}, .temperature = 3.0, .ignore_eos = true};
    std::string streamed;
    params.on_token = [&](const TokenEvent& event) { streamed += event.text; };
    const Generation out = session.decode(branch, params);
    EXPECT_EQ(streamed, out.text);
    if (out.finish == Finish::kLength) {
      EXPECT_EQ(out.text, engine.decode(out.ids, true));
    }
  }
}

TEST_F(TextDecode, LogProbsComeWithTheirTokens) {
  Branch branch = start();
  DecodeParams params = letters(12);
  std::vector<ChosenToken> told;
  params.on_token = [&](const TokenEvent& event) { told.push_back(*event.chosen); };
  params.top_logprobs = 2;
  const Generation out = session.decode(branch, params);
  PendingDecode call = session.submit_decode(branch.fork(), params);
  std::vector<ChosenToken> streamed;
  while (const std::optional<StreamToken> token = call.next()) streamed.push_back(*token->chosen);
  const auto expect_same = [](const std::vector<ChosenToken>& got,
                              const std::vector<ChosenToken>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].id, expected[i].id);
      EXPECT_EQ(got[i].logprob, expected[i].logprob);
      EXPECT_EQ(got[i].top.size(), 2u);
    }
  };
  const Generation more = call.get().front();
  told.resize(out.logprobs.size());  // then those of the second call
  expect_same(told, out.logprobs);
  expect_same(streamed, more.logprobs);
  params.top_logprobs = -1;
  params.on_token = [&](const TokenEvent& event) { EXPECT_EQ(event.chosen, nullptr); };
  session.decode(branch, params);
}

TEST_F(TextDecode, TextsOfCallsAndAppendsJoinToTheTextOfTheBranch) {
  Branch branch = start();
  std::string expected;
  expected += session.decode(branch, letters(4)).text;
  branch.append("\xc3\xa9 and ");
  expected += "\xc3\xa9 and ";
  expected += session.decode(branch, letters(4)).text;
  EXPECT_EQ(branch.text(), expected);
  Branch fork = branch.fork();
  Branch rewound = branch.at(branch.length());
  EXPECT_EQ(fork.text(), expected);
  EXPECT_EQ(rewound.text(), expected);
  // Bytes of an unfinished character that an appended text finishes are not told again.
  const Tokens e_acute = engine.encode("\xc3\xa9", false);
  ASSERT_EQ(e_acute.size(), 2u);
  branch.append(std::span(e_acute).first(1));
  branch.append(std::span(e_acute).last(1));
  expected += "\xc3\xa9";
  const std::string more = session.decode(branch, letters(3)).text;
  EXPECT_EQ(more.size(), 3u);
  EXPECT_EQ(branch.text(), expected + more);
  // A generated first byte, and the second by hand.
  DecodeParams first = letters(1, "");
  first.logit_bias = {{e_acute[0], 1000.0f}};
  session.decode(branch, first);
  branch.append(std::span(e_acute).last(1));
  EXPECT_EQ(session.decode(branch, letters(2)).text.size(), 2u);
}

TEST_F(TextDecode, AnUnfinishedCharacterOfAnAppendedTextIsFinishedByTheNextToken) {
  const Tokens sun = engine.encode("\xe6\x97\xa5", false);
  ASSERT_EQ(sun.size(), 3u);
  Branch branch = start();
  branch.append(std::span(sun).first(1));
  branch.append(std::span(sun).subspan(1, 1));
  std::vector<Branch> copies = branch.fork(1);
  copies.push_back(branch.at(branch.length()));
  DecodeParams last = letters(1, "");
  last.logit_bias = {{sun[2], 1000.0f}};
  for (Branch& copy : copies) EXPECT_EQ(session.decode(copy, last).text, "\xe6\x97\xa5");
  EXPECT_EQ(session.decode(branch, last).text, "\xe6\x97\xa5");
  EXPECT_EQ(branch.text(), "\xe6\x97\xa5");
}

TEST_F(TextDecode, SelectAppendsTheLikeliestOption) {
  Branch branch = start();
  const std::vector<std::string> options{"first", "second one", "third", "first"};
  const std::vector<Score> scores = branch.score(options);
  std::size_t best = 0;
  for (std::size_t i = 1; i < options.size(); ++i) {
    if (scores[i].logprob > scores[best].logprob) best = i;
  }
  EXPECT_EQ(scores[0].logprob, scores[3].logprob);
  EXPECT_EQ(branch.select(options), std::optional(best));
  EXPECT_EQ(branch.text(), options[best]);
  EXPECT_DOUBLE_EQ(branch.logprob(), scores[best].logprob);
  EXPECT_ERROR(branch.select({}), "no options");
}

TEST(Decode, StopTokensEndABranch) {
  Session session(load("tinyllama"));
  const Tokens prompt = prompt_of(12);
  Branch root = session.prefill(std::span(prompt));
  Branch first = root.fork();
  const Tokens all = session.decode(first, greedy(40)).ids;
  DecodeParams params = greedy(40);
  params.stop_tokens = {all[17]};
  Branch second = root.fork();
  const Generation out = session.decode(second, params);
  const auto end = std::find(all.begin(), all.end(), all[17]) + 1;
  EXPECT_EQ(out.finish, Finish::kStop);
  EXPECT_EQ(out.ids, Tokens(all.begin(), end));
  EXPECT_EQ(out.stop, "");
  EXPECT_EQ(out.stop_token, all[17]);
}

TEST_F(TextDecode, AStopStringGoesBeforeAStopToken) {
  Branch whole = start();
  const Generation all = session.decode(whole, letters(30));
  DecodeParams params = letters(30);
  params.stop_tokens = {all.ids[9]};
  Branch first = start();
  const Generation by_token = session.decode(first, params);
  EXPECT_EQ(by_token.stop_token, all.ids[9]);
  params.stop = {engine.decode(std::span(&all.ids[9], 1), true)};
  Branch second = start();
  const Generation by_text = session.decode(second, params);
  EXPECT_EQ(by_text.ids, by_token.ids);
  EXPECT_EQ(by_text.stop, params.stop.front());
  EXPECT_EQ(by_text.stop_token, std::nullopt);
  EXPECT_EQ(by_text.text + by_text.stop, by_token.text);
}

TEST_F(TextDecode, BytesOfTokensAreTheirText) {
  Branch branch = start();
  const Generation out =
      session.decode(branch, {.max_tokens = 40, .temperature = 5.0, .ignore_eos = true});
  std::string bytes;
  for (const Token token : out.ids) bytes += engine.token_bytes(token);
  EXPECT_EQ(bytes.size() == out.text.size(), bytes == out.text);  // else a character is cut
  for (const std::string text : {"Once", "a é 🌳 b"}) {
    std::string joined;
    for (const Token token : engine.encode(text, false)) joined += engine.token_bytes(token);
    EXPECT_EQ(joined, text);
  }
  EXPECT_ERROR(engine.token_bytes(-1), "token id -1");
  const auto vocab = static_cast<Token>(engine.info().vocab);
  EXPECT_ERROR(engine.token_bytes(vocab), "token id " + std::to_string(vocab));
  EXPECT_ERROR(load("tinyllama").token_bytes(1), "tokenizer.json");
}

TEST(Decode, EndsAtAnyIdOfTheModelsList) {
  const Engine e = load("llama3_tied");  // generation_config.json has a list
  ASSERT_EQ(e.info().eos.size(), 2u);
  Session session(e);
  const Tokens prompt = prompt_of(9);
  for (const Token eos : e.info().eos) {
    Branch branch = session.prefill(std::span(prompt));
    DecodeParams params = greedy(20);
    params.logit_bias = {{eos, 1e6f}};
    params.ignore_eos = false;
    Generation out = session.decode(branch, params);
    EXPECT_EQ(out.finish, Finish::kEos);
    EXPECT_EQ(out.ids, Tokens{eos});
    EXPECT_EQ(out.stop_token, std::nullopt);
    EXPECT_EQ(out.text, e.decode(out.ids, true));
    params.ignore_eos = true;
    out = session.decode(branch, params);
    EXPECT_EQ(out.finish, Finish::kLength);
    EXPECT_EQ(out.ids, Tokens(20, eos));
  }
}

TEST(Decode, OfZeroTokensIsALengthAndChangesNothing) {
  Session session(load("tinyllama"));
  const Tokens prompt = prompt_of(12);
  Branch branch = session.prefill(std::span(prompt));
  const Generation out = session.decode(branch, greedy(0));
  EXPECT_EQ(out.finish, Finish::kLength);
  EXPECT_TRUE(out.ids.empty());
  EXPECT_EQ(branch.tokens(), prompt);
  EXPECT_TRUE(session.decode(std::span<Branch>(), greedy(3)).empty());
}

TEST(Decode, TokensAreToldInBranchOrderWithinAStep) {
  Session session(load("tinyllama"));
  const Tokens prompt = prompt_of(12);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(5);
  branches[3].append(prompt_of(30));
  DecodeParams params{.max_tokens = 6, .temperature = 1.0, .ignore_eos = true};
  std::vector<std::vector<Token>> told(5);
  std::vector<std::size_t> order;
  params.on_token = [&](const TokenEvent& event) {
    EXPECT_EQ(event.branch, branches[event.index].id());
    told[event.index].push_back(event.token);
    order.push_back(event.index);
  };
  const std::vector<Generation> out = session.decode(branches, params);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(told[i], out[i].ids);
  // The span's order in every round of five.
  for (std::size_t begin = 0; begin + 5 <= order.size(); begin += 5) {
    EXPECT_TRUE(std::is_sorted(order.begin() + static_cast<std::ptrdiff_t>(begin),
                               order.begin() + static_cast<std::ptrdiff_t>(begin + 5)));
  }
}

TEST(Decode, LogprobsAreOfTheRawLogitsThatChoseEachToken) {
  Session session(load("tinyllama"));
  const Tokens prompt = prompt_of(20);
  Branch branch = session.prefill(std::span(prompt));
  Branch walker = branch.fork();
  DecodeParams params{.max_tokens = 15,
                      .temperature = 0.6,
                      .top_k = 3,
                      .repetition_penalty = 1.3,
                      .logit_bias = {{7, 2.0f}},
                      .ignore_eos = true,
                      .top_logprobs = 4};
  const Generation out = session.decode(branch, params);
  ASSERT_EQ(out.logprobs.size(), 15u);
  double sum = 0;
  for (std::size_t i = 0; i < 15; ++i) {
    const std::vector<float> logits = logits_of(walker);
    const double max = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const float value : logits) total += std::exp(value - max);
    const double lse = max + std::log(total);
    const ChosenToken& chosen = out.logprobs[i];
    EXPECT_EQ(chosen.id, out.ids[i]);
    EXPECT_NEAR(chosen.logprob, logits[static_cast<std::size_t>(chosen.id)] - lse, 1e-5);
    ASSERT_EQ(chosen.top.size(), 4u);
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (std::size_t j = 0; j < 4; ++j) {
      EXPECT_NEAR(chosen.top[j].logprob, sorted[j] - lse, 1e-5);
      EXPECT_EQ(logits[static_cast<std::size_t>(chosen.top[j].id)], sorted[j]);
    }
    sum += chosen.logprob;
    walker.append(std::span(&chosen.id, 1));
  }
  EXPECT_NEAR(branch.logprob(), sum, 1e-9);
  // Not asked for: none. Asked for 0: the chosen one's alone.
  params.top_logprobs = -1;
  EXPECT_TRUE(session.decode(branch, params).logprobs.empty());
  params.top_logprobs = 0;
  EXPECT_TRUE(session.decode(branch, params).logprobs[0].top.empty());
  params.top_logprobs = 1000;  // more than there are
  EXPECT_EQ(session.decode(branch, params).logprobs[0].top.size(), 320u);
}

TEST(Decode, StepByStepIsTheSameAsAtOnce) {
  Session session(load("tinyllama"), {.seed = 4});
  const Tokens prompt = prompt_of(20);
  const DecodeParams params{.max_tokens = 25, .temperature = 1.0, .ignore_eos = true};
  Branch branch = session.prefill(std::span(prompt), {.stream = 77});
  Branch again = session.prefill(std::span(prompt), {.stream = 77});
  const Tokens expected = session.decode(branch, params).ids;
  Tokens got;
  for (int i = 0; i < 25; ++i) got.push_back(session.decode_step(again, params).value());
  EXPECT_EQ(got, expected);
}

TEST(Decode, ResultsFollowTheSpanWhateverItsOrder) {
  const Tokens prompt = prompt_of(20);
  const DecodeParams params{.max_tokens = 12, .temperature = 1.0, .ignore_eos = true};
  std::vector<Tokens> forward;
  for (const bool reversed : {false, true}) {
    Session session(load("tinyllama"), {.seed = 4});
    Branch root = session.prefill(std::span(prompt));
    std::vector<Branch> branches = root.fork(6);
    if (reversed) std::reverse(branches.begin(), branches.end());
    std::vector<Tokens> ids;
    for (const Generation& out : session.decode(branches, params)) ids.push_back(out.ids);
    if (reversed) {
      std::reverse(ids.begin(), ids.end());
      EXPECT_EQ(ids, forward);
    } else {
      forward = ids;
    }
  }
  for (std::size_t i = 1; i < forward.size(); ++i) EXPECT_NE(forward[i], forward[0]);
}

TEST(Decode, MoreBranchesThanFitInOneStepAllGetTheirTokens) {
  const Engine e = load("tinyllama", {.kv_tokens = 1 << 16});
  const std::int64_t step_rows = core_of(e)->model->max_rows();
  Session session(e);
  const Tokens prompt = prompt_of(20);
  Branch root = session.prefill(std::span(prompt));
  Branch lone = root.fork();
  const Tokens expected = session.decode(lone, greedy(3)).ids;
  std::vector<Branch> branches = root.fork(static_cast<int>(step_rows) + 188);
  const std::vector<Generation> out = session.decode(branches, greedy(3));
  for (const Generation& generation : out) {
    EXPECT_EQ(generation.finish, Finish::kLength);
    EXPECT_EQ(generation.ids, expected);
  }
  EXPECT_EQ(session.stats().largest_batch_rows, step_rows);
}

TEST(Decode, AMovedFromBranchIsAnError) {
  Session session(load("tinyllama"));
  const Tokens prompt = prompt_of(20);
  Branch root = session.prefill(std::span(prompt));
  Branch moved = std::move(root);
  EXPECT_FALSE(root.valid());
  EXPECT_EQ(root.id(), BranchId::kNone);
  EXPECT_ERROR(session.decode(root, greedy(1)), "empty");
  EXPECT_TRUE(moved.valid());
}

TEST(Decode, ForkAndAtNumberTheirBranchesAndStreams) {
  Session session(load("tinyllama"));
  const Tokens prompt = prompt_of(20);
  Branch root = session.prefill(std::span(prompt));
  EXPECT_EQ(root.parent(), BranchId::kNone);
  std::vector<Branch> kids = root.fork(3);
  Branch back = root.at(10);
  EXPECT_EQ(kids[0].parent(), root.id());
  EXPECT_EQ(back.parent(), root.id());
  EXPECT_EQ(back.prompt_length(), 10);
  std::set<std::uint64_t> streams{root.stream(), back.stream()};
  std::set<BranchId> ids{root.id(), back.id()};
  for (const Branch& kid : kids) {
    streams.insert(kid.stream());
    ids.insert(kid.id());
  }
  EXPECT_EQ(streams.size(), 5u);
  EXPECT_EQ(ids.size(), 5u);
  // The same session again gives the same streams.
  Session twin(session.engine());
  Branch same = twin.prefill(std::span(prompt));
  EXPECT_EQ(same.stream(), root.stream());
  EXPECT_EQ(same.fork().stream(), kids[0].stream());
  EXPECT_EQ(session.stats().forks, 4);
  EXPECT_EQ(session.stats().branches_live, 5);
}

}  // namespace
}  // namespace dendrite
