// Branches named by pointers to handles that stay where they are, and what is thrown for handles
// that cannot be used.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::Random;
using test::Tokens;

struct BranchPointers : ::testing::Test {
  Engine engine = test::load("tinyllama");
  Session session{engine};
  Branch root = session.prefill(Random(8).tokens(20, 256));

  /// Handles that are in no array, at different points.
  std::vector<std::unique_ptr<Branch>> scattered(int count) {
    std::vector<std::unique_ptr<Branch>> out;
    for (int i = 0; i < count; ++i) {
      out.push_back(std::make_unique<Branch>(root.fork({.stream = 5})));
      out.back()->append(Tokens{7 + i});
    }
    return out;
  }
  static std::vector<Branch*> pointers(const std::vector<std::unique_ptr<Branch>>& handles) {
    std::vector<Branch*> out;
    for (const auto& handle : handles) out.push_back(handle.get());
    return out;
  }
  std::vector<Branch> in_a_row(int count) {
    std::vector<Branch> out;
    for (const auto& handle : scattered(count)) out.push_back(std::move(*handle));
    return out;
  }
};

TEST_F(BranchPointers, GiveWhatAnArrayOfHandlesGives) {
  const auto handles = scattered(3);
  const std::vector<Branch*> by_pointer = pointers(handles);
  std::vector<Branch> array = in_a_row(3);
  const std::vector<Tokens> continuations = {{1, 2, 3}, {1, 2, 4}, {9}};

  const auto scores = session.score_tokens(by_pointer, continuations);
  const auto expected_scores = session.score_tokens(array, continuations);
  const auto pending_scores = session.submit_score_tokens(by_pointer, continuations).get();
  const ExpandParams two{.top = 2};
  const auto tokens = session.next_tokens(by_pointer, two);
  const auto expected_tokens = session.next_tokens(array, two);
  const auto pending_tokens = session.submit_next_tokens(by_pointer, two).get();
  const auto pending_of_array = session.submit_next_tokens(array, two).get();
  const auto children = session.expand(by_pointer, two);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t k = 0; k < continuations.size(); ++k) {
      EXPECT_EQ(scores[i][k].tokens, expected_scores[i][k].tokens);
      EXPECT_EQ(pending_scores[i][k].tokens, expected_scores[i][k].tokens);
    }
    ASSERT_EQ(children[i].size(), 2u);
    for (std::size_t k = 0; k < 2; ++k) {
      EXPECT_EQ(tokens[i][k].id, expected_tokens[i][k].id);
      EXPECT_EQ(tokens[i][k].logprob, expected_tokens[i][k].logprob);
      EXPECT_EQ(pending_tokens[i][k].id, expected_tokens[i][k].id);
      EXPECT_EQ(pending_of_array[i][k].id, expected_tokens[i][k].id);
      EXPECT_EQ(children[i][k].last_token(), tokens[i][k].id);
    }
  }
  const auto ahead = scattered(1);
  const auto out = session.decode(by_pointer, greedy(6), pointers(ahead));
  const auto expected = session.decode(array, greedy(6));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(out[i].ids, expected[i].ids);
  session.prune(by_pointer);
  for (const auto& handle : handles) EXPECT_FALSE(handle->valid());
  session.prune(by_pointer);  // empty ones are skipped
}

TEST_F(BranchPointers, OfLosersAreEmptied) {
  const auto handles = scattered(3);
  DecodeParams params = greedy(30);
  params.stop_tokens = {session.next_tokens(pointers(handles), {.top = 1})[1][0].id};
  params.enough = [](std::size_t, const Generation&) { return true; };
  const auto out = session.decode(pointers(handles), params);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(handles[i]->valid(), out[i].finish != Finish::kAbandoned) << i;
  }
  EXPECT_TRUE(handles[1]->valid());
  EXPECT_EQ(out[2].finish, Finish::kAbandoned);
}

TEST_F(BranchPointers, SubmittedStayTheirOwners) {
  auto handles = scattered(3);
  std::vector<Branch> array = in_a_row(2);
  const auto expected = session.decode(array, greedy(10));
  PendingDecode call = session.submit_decode(pointers(handles), greedy(10));
  EXPECT_TRUE(call.branches().empty());
  EXPECT_THROW(handles[0]->append(Tokens{1}), BranchBusy);
  while (handles[0]->length() < 24) ASSERT_TRUE(engine.step());
  const Branch fork = handles[0]->fork();
  EXPECT_EQ(fork.length(), handles[0]->length());
  handles[2].reset();  // pruned, and no handle is left
  const auto out = call.get();
  EXPECT_EQ(out[0].ids, expected[0].ids);
  EXPECT_EQ(out[1].ids, expected[1].ids);
  EXPECT_EQ(out[2].finish, Finish::kCancelled);
  EXPECT_EQ(call.take().size(), 20 + out[2].ids.size());
  EXPECT_TRUE(call.release().empty());
  EXPECT_EQ(handles[0]->length(), 31);
  handles[0]->append(Tokens{1});
}

TEST_F(BranchPointers, NameABranchOnce) {
  const std::array<Branch*, 2> twice = {&root, &root};
  EXPECT_ERROR(session.decode(twice, greedy(1)), "decode: branch 1 is named twice");
  EXPECT_ERROR(session.decode(std::span(twice).first(1), greedy(1), std::span(twice).last(1)),
               "decode: ahead branch 0 is named twice");
  EXPECT_ERROR(session.score_tokens(twice, {{1}}), "score: branch 1 is named twice");
  EXPECT_ERROR(session.next_tokens(twice, {.top = 1}), "next_tokens: branch 1 is named twice");
  session.decode(root, greedy(1));  // none of these has kept it
}

TEST_F(BranchPointers, OfOtherSessionsAreRefused) {
  Session other(engine);
  const std::array<Branch*, 1> mine = {&root};
  EXPECT_ERROR(other.decode(mine, greedy(1)), "branch 0 belongs to another session");
  EXPECT_ERROR(other.score_tokens(mine, {{1}}), "branch 0 belongs to another session");
  EXPECT_ERROR(other.next_tokens(mine, {.top = 1}), "branch 0 belongs to another session");
  EXPECT_ERROR(other.children(mine, {}), "lists of tokens");
  EXPECT_ERROR(other.prune(mine), "belongs to another session");
}

TEST_F(BranchPointers, ToEmptyHandlesThrowBranchEmpty) {
  Branch empty;
  const std::array<Branch*, 1> pointers = {&empty};
  const std::vector<std::vector<TokenLogprob>> no_tokens(1);
  EXPECT_THROW(session.decode(pointers, greedy(1)), BranchEmpty);
  EXPECT_THROW(session.submit_decode(pointers, greedy(1)), BranchEmpty);
  EXPECT_THROW(session.score_tokens(pointers, {{1}}), BranchEmpty);
  EXPECT_THROW(session.next_tokens(pointers, {.top = 1}), BranchEmpty);
  EXPECT_THROW(session.children(pointers, no_tokens), BranchEmpty);
  EXPECT_THROW(session.save("nowhere", std::span(&empty, 1)), BranchEmpty);
  EXPECT_THROW(empty.fork(), BranchEmpty);
  EXPECT_THROW(empty.length(), BranchEmpty);
  EXPECT_THROW(empty.append(Tokens{1}), BranchEmpty);
}

TEST_F(BranchPointers, InACallThrowBranchBusy) {
  const std::array<Branch*, 1> pointers = {&root};
  PendingDecode call = session.submit_decode(pointers, greedy(3));
  EXPECT_THROW(root.append(Tokens{1}), BranchBusy);
  EXPECT_THROW(session.decode(root, greedy(1)), BranchBusy);
  EXPECT_THROW(session.score_tokens(pointers, {{1}}), BranchBusy);
  EXPECT_THROW(session.submit_next_tokens(pointers, {.top = 1}), BranchBusy);
  call.wait();
  DecodeParams params = greedy(1);
  Branch other = root.fork();
  params.on_token = [&](const TokenEvent&) {
    EXPECT_THROW(session.decode(other, greedy(1)), BranchBusy);
    EXPECT_THROW(session.save("nowhere"), BranchBusy);
  };
  session.decode(root, params);
}

}  // namespace
}  // namespace dendrite
