#include "kv/chunk_index.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kv/tree_harness.h"

namespace dendrite {
namespace {

using testing::TreeHarness;
using Tokens = std::vector<Token>;
using Entry = std::shared_ptr<ChunkEntry>;

Tokens range(Token first, std::int64_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens join(std::span<const Token> a, std::span<const Token> b) {
  Tokens all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

ChunkKey key_of(const Tokens& left, const Tokens& tokens, std::uint64_t variant = 0) {
  return {chunk_content(tokens), left_context_hash(left), variant};
}

class ChunkIndexTest : public ::testing::Test {
 protected:
  ~ChunkIndexTest() override { index.clear(); }

  /// What an engine does with a chunk: take what is known, else register it.
  Entry add(const Tokens& tokens, const Tokens& left = {}, std::uint64_t variant = 0) {
    const ChunkKey key = key_of(left, tokens, variant);
    if (Entry known = index.find(key, left, tokens)) return known;
    return index.insert({.key = key,
                         .left = std::make_shared<const Tokens>(left),
                         .tokens = tokens,
                         .name = "chunk " + std::to_string(tokens[0])});
  }
  Entry find(const Tokens& tokens, const Tokens& left = {}, std::uint64_t variant = 0) {
    return index.find(key_of(left, tokens, variant), left, tokens);
  }
  /// ... and compute it.
  void fill(ChunkEntry& entry) {
    index.begin_fill(entry);
    Tip& tip = entry.tip().empty() ? h.root() : h.fork(entry.tip());
    if (entry.tip().empty()) h.tree.append(tip, join(entry.left(), entry.tokens()));
    const bool computed = h.step({&tip});
    EXPECT_TRUE(computed);
    if (computed) index.end_fill(entry, tip, 2.5);
    h.drop(tip);
  }
  Entry warm(const Tokens& tokens, const Tokens& left = {}, std::uint64_t variant = 0) {
    Entry entry = add(tokens, left, variant);
    if (index.state(*entry) != ChunkState::kWarm) fill(*entry);
    return entry;
  }
  std::int64_t used_pages() const { return h.tree.stats().used_pages; }

  void check() {
    index.check_invariants();
    std::vector<const Tip*> live = h.live_tips();
    index.collect_tips(live);
    h.tree.check_invariants(live);
    ASSERT_TRUE(h.all_bytes_are_right());
  }
  /// A fork of the entry's tip has the chunk's own K and V.
  void check_bytes(const ChunkEntry& entry) {
    Tip& tip = h.fork(entry.tip());
    EXPECT_EQ(h.tree.tokens(tip), join(entry.left(), entry.tokens()));
    EXPECT_TRUE(h.bytes_are_right(tip));
    h.drop(tip);
  }

  TreeHarness h{512};
  ChunkIndex index{h.tree, 1000};
};

TEST_F(ChunkIndexTest, FindsNothingWhereNothingIsRegistered) {
  EXPECT_EQ(find(range(0, 10)), nullptr);
  EXPECT_FALSE(index.evict_one());
  EXPECT_TRUE(index.list().empty());
  EXPECT_EQ(index.stats().lookups, 1);
  EXPECT_EQ(index.stats().hits, 0);
  check();
}

TEST_F(ChunkIndexTest, TheSameChunkTwiceIsOneEntryWithItsPages) {
  const Entry first = warm(range(0, 40));
  EXPECT_EQ(used_pages(), 3);
  EXPECT_EQ(add(range(0, 40)), first);
  EXPECT_EQ(index.insert({.key = first->key(),  // without a look
                          .left = std::make_shared<const Tokens>(),
                          .tokens = range(0, 40),
                          .name = "another name"}),
            first);
  EXPECT_EQ(index.size(), 1);
  EXPECT_EQ(first->name(), "chunk 0");
  EXPECT_EQ(index.stats().tokens, 40);
  EXPECT_EQ(index.stats().warm, 1);
  EXPECT_EQ(used_pages(), 3);
  check();
  check_bytes(*first);
}

TEST_F(ChunkIndexTest, TheSameTokensBehindOthersOrOfAnotherVariantAreAnotherChunk) {
  const Entry base = warm(range(0, 20), range(100, 10));
  const Entry other_left = warm(range(0, 20), range(200, 10));
  const Entry no_left = warm(range(0, 20));
  const Entry variant = warm(range(0, 20), range(100, 10), 1);
  EXPECT_EQ(index.size(), 4);
  EXPECT_EQ(find(range(0, 20), range(100, 10)), base);
  EXPECT_EQ(find(range(0, 20), range(200, 10)), other_left);
  EXPECT_EQ(find(range(0, 20)), no_left);
  EXPECT_EQ(find(range(0, 20), range(100, 10), 1), variant);
  EXPECT_EQ(find(range(0, 20), range(100, 9)), nullptr);
  check();
  for (const Entry& entry : {base, other_left, no_left, variant}) check_bytes(*entry);
}

TEST_F(ChunkIndexTest, EqualKeysOfOtherTokensAreNoHitAndDoNotDisturbEachOther) {
  const ChunkKey key = key_of({1}, {2});
  const auto insert = [&](const Tokens& left, const Tokens& tokens) {
    return index.insert(
        {.key = key, .left = std::make_shared<const Tokens>(left), .tokens = tokens, .name = ""});
  };
  const Entry a = insert({1}, {2});
  EXPECT_EQ(index.find(key, Tokens{1}, Tokens{3}), nullptr);
  EXPECT_EQ(index.find(key, Tokens{4}, Tokens{2}), nullptr);
  EXPECT_EQ(index.find(key, Tokens{1}, Tokens{2, 2}), nullptr);
  const Entry b = insert({1}, {3});
  const Entry c = insert({4}, {2});
  EXPECT_EQ(index.size(), 3);
  check();
  EXPECT_EQ(index.find(key, Tokens{1}, Tokens{2}), a);
  EXPECT_EQ(index.find(key, Tokens{1}, Tokens{3}), b);
  index.forget(*b);
  EXPECT_EQ(index.find(key, Tokens{1}, Tokens{3}), nullptr);
  EXPECT_EQ(index.find(key, Tokens{1}, Tokens{2}), a);
  EXPECT_EQ(index.find(key, Tokens{4}, Tokens{2}), c);
  check();
}

TEST_F(ChunkIndexTest, GoesThroughItsStates) {
  const Entry entry = add(range(0, 20), range(100, 10));
  EXPECT_EQ(index.state(*entry), ChunkState::kRegistered);
  index.begin_fill(*entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kFilling);
  EXPECT_EQ(find(range(0, 20), range(100, 10)), entry);  // who comes now waits for it
  index.give_up_fill(*entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kRegistered);
  fill(*entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kWarm);
  EXPECT_EQ(entry->fill_ms(), 2.5);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*entry), ChunkState::kCold);
  EXPECT_TRUE(entry->tip().empty());
  fill(*entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kWarm);
  EXPECT_EQ(index.stats().fills, 2);
  EXPECT_EQ(index.stats().fill_ms, 5);
  index.forget(*entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kForgotten);
  check();
}

TEST_F(ChunkIndexTest, IsColdWhenTheTreeTakesItsKAndVAndWarmWhenTheyComeBack) {
  const Entry entry = warm(range(0, 40), range(100, 10));
  h.tree.begin_eviction();
  ASSERT_TRUE(h.tree.evict(entry->tip(), h.tree.claim(entry->tip()), 512));
  EXPECT_EQ(index.state(*entry), ChunkState::kCold);
  EXPECT_FALSE(entry->tip().empty());
  Tip& tip = h.fork(entry->tip());
  ASSERT_TRUE(h.step({&tip}, 49));  // all but one
  EXPECT_EQ(index.state(*entry), ChunkState::kCold);
  ASSERT_TRUE(h.step({&tip}));
  EXPECT_EQ(index.state(*entry), ChunkState::kWarm);
  check();
}

TEST_F(ChunkIndexTest, GivesBackWhatChunksOfTheSamePathHold) {
  const Entry one = warm(range(0, 20));
  const Entry other = add(range(5, 15), range(0, 5));
  index.begin_fill(*other);
  index.end_fill(*other, one->tip(), 1);
  Tip& branch = h.fork(one->tip());
  EXPECT_FALSE(index.evict_one());  // somebody else holds it
  EXPECT_FALSE(one->tip().empty());
  h.drop(branch);
  EXPECT_TRUE(index.evict_one());
  EXPECT_EQ(used_pages(), 0);
  EXPECT_FALSE(index.evict_one());
  check();
}

TEST_F(ChunkIndexTest, KeepsTheChunkOnlyOfALongerBranch) {
  const Entry entry = add(range(0, 20));
  index.begin_fill(*entry);
  Tip& tip = h.root();
  h.tree.append(tip, range(0, 50));
  ASSERT_TRUE(h.step({&tip}));
  index.end_fill(*entry, tip, 1);
  check();
  h.drop(tip);
  EXPECT_EQ(used_pages(), 2);
  check_bytes(*entry);
}

TEST_F(ChunkIndexTest, AFillMayEndWithTheEntrysOwnTip) {
  const Entry entry = warm(range(0, 20));
  index.begin_fill(*entry);
  index.end_fill(*entry, entry->tip(), 0);
  EXPECT_EQ(index.state(*entry), ChunkState::kWarm);
  EXPECT_EQ(used_pages(), 2);
  check();
}

TEST_F(ChunkIndexTest, LetsTheLeastRecentlyUsedGoFirst) {
  const Entry a = warm(range(0, 32));
  const Entry b = warm(range(100, 32));
  const Entry c = warm(range(200, 32));
  find(range(0, 32));  // b is the oldest now
  EXPECT_EQ(used_pages(), 6);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(used_pages(), 4);
  EXPECT_EQ(index.state(*b), ChunkState::kCold);
  check();
  index.use(*c);
  index.unuse(*c);  // a is
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*a), ChunkState::kCold);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*c), ChunkState::kCold);
  EXPECT_FALSE(index.evict_one());
  EXPECT_EQ(used_pages(), 0);
  EXPECT_EQ(index.size(), 3);
  EXPECT_EQ(find(range(100, 32)), b);  // cold, and still there
  EXPECT_EQ(index.stats().evictions, 3);
  EXPECT_EQ(index.stats().forgotten, 0);
  check();
}

TEST_F(ChunkIndexTest, KeepsTheTipsOfWhatIsUsedOrFilled) {
  const Entry used = warm(range(0, 32));
  const Entry filling = warm(range(100, 32));
  index.use(*used);
  index.use(*used);
  index.begin_fill(*filling);
  EXPECT_FALSE(index.evict_one());
  index.unuse(*used);
  EXPECT_FALSE(index.evict_one());
  check();
  index.unuse(*used);
  EXPECT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*used), ChunkState::kCold);
  index.give_up_fill(*filling);
  EXPECT_EQ(index.state(*filling), ChunkState::kWarm);
  EXPECT_TRUE(index.evict_one());
  EXPECT_EQ(used_pages(), 0);
  check();
}

TEST_F(ChunkIndexTest, EvictDropsATipThatIsUsed) {
  const Entry entry = warm(range(0, 32));
  index.use(*entry);
  index.evict(*entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kCold);
  EXPECT_EQ(entry->uses(), 1);
  EXPECT_EQ(used_pages(), 0);
  index.evict(*entry);  // nothing more to drop
  EXPECT_EQ(index.stats().evictions, 1);
  check();
}

TEST_F(ChunkIndexTest, DoesNotLetGoWhatWouldGiveNoPageBack) {
  const Entry held = warm(range(0, 32));
  Tip& branch = h.fork(held->tip());
  const Entry other = warm(range(100, 32));
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*held), ChunkState::kWarm);
  EXPECT_EQ(index.state(*other), ChunkState::kCold);
  EXPECT_FALSE(index.evict_one());
  h.drop(branch);
  EXPECT_TRUE(index.evict_one());
  EXPECT_EQ(used_pages(), 0);
}

TEST_F(ChunkIndexTest, AChunkBehindAnotherGoesBeforeIt) {
  const Entry upper = warm(range(0, 32));
  const Entry lower = add(range(100, 32), range(0, 32));
  index.begin_fill(*lower);
  Tip& tip = h.fork(upper->tip());
  h.tree.append(tip, range(100, 32));
  ASSERT_TRUE(h.step({&tip}));
  index.end_fill(*lower, tip, 1);
  h.drop(tip);
  EXPECT_EQ(used_pages(), 4);  // the left context's pages are the upper chunk's
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*upper), ChunkState::kWarm);
  EXPECT_EQ(index.state(*lower), ChunkState::kCold);
  EXPECT_EQ(used_pages(), 2);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(used_pages(), 0);
  check();
}

/// Two chunks of one page, cut from one branch: the upper one is held by the lower one, and the
/// lower one alone gives nothing back.
TEST_F(ChunkIndexTest, ChunksThatShareTheirOnlyPageGoTogether) {
  Tip& tip = h.root();
  h.tree.append(tip, range(0, 12));
  ASSERT_TRUE(h.step({&tip}));
  const Entry upper = add(range(0, 7));
  const Entry lower = add(range(7, 5), range(0, 7));
  for (const Entry& entry : {upper, lower}) {
    index.begin_fill(*entry);
    index.end_fill(*entry, tip, 1);
  }
  h.drop(tip);
  check();
  EXPECT_EQ(used_pages(), 1);
  const Entry alone = warm(range(100, 16));  // the most recent one, but it gives a page back
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*alone), ChunkState::kCold);
  EXPECT_EQ(index.state(*lower), ChunkState::kWarm);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(used_pages(), 0);
  EXPECT_EQ(index.state(*lower), ChunkState::kCold);
  EXPECT_EQ(index.state(*upper), ChunkState::kCold);
  check();
}

TEST_F(ChunkIndexTest, TipsWithoutKAndVAreNoPagesGivenBack) {
  const Entry bare = warm(range(0, 32));
  h.tree.begin_eviction();
  ASSERT_TRUE(h.tree.evict(bare->tip(), h.tree.claim(bare->tip()), 512));
  const Entry other = warm(range(100, 32));
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.state(*other), ChunkState::kCold);
  EXPECT_EQ(used_pages(), 0);
  EXPECT_TRUE(bare->tip().empty());
  EXPECT_EQ(index.stats().evictions, 1);
  check();
}

TEST_F(ChunkIndexTest, ForgetsTheOldestIdleOnesAboveTheLimit) {
  const Entry a = warm(range(0, 400));
  const Entry b = warm(range(1000, 400));
  index.use(*a);
  const Entry c = add(range(2000, 400), range(5000, 900));  // the left context does not count
  EXPECT_EQ(index.state(*b), ChunkState::kForgotten);       // a is older, and in use
  EXPECT_EQ(find(range(1000, 400)), nullptr);
  EXPECT_TRUE(b->tip().empty());
  EXPECT_EQ(used_pages(), 25);
  EXPECT_EQ(index.stats().tokens, 800);
  EXPECT_EQ(index.stats().forgotten, 1);
  EXPECT_EQ(std::ssize(b->tokens()), 400);  // who holds it still has them
  check();
  index.use(*c);
  const Entry d = add(range(3000, 400));
  EXPECT_EQ(find(range(3000, 400)), d);  // nothing else may go
  EXPECT_EQ(index.stats().tokens, 1200);
  check();
  index.unuse(*a);  // d is older
  EXPECT_EQ(index.state(*d), ChunkState::kForgotten);
  EXPECT_EQ(index.state(*a), ChunkState::kWarm);
  check();
}

TEST_F(ChunkIndexTest, WhatIsLongerThanTheLimitIsForgottenAfterItsUse) {
  const Entry entry = add(range(0, 1001));
  EXPECT_EQ(find(range(0, 1001)), entry);
  check();
  index.use(*entry);
  index.unuse(*entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kForgotten);
  EXPECT_EQ(index.size(), 0);
  check();
}

TEST_F(ChunkIndexTest, AForgottenEntryKeepsItsTokensAndComesBack) {
  const Entry entry = warm(range(0, 40));
  index.use(*entry);
  index.forget(*entry);
  index.forget(*entry);
  EXPECT_EQ(index.stats().forgotten, 1);
  EXPECT_EQ(used_pages(), 0);
  EXPECT_EQ(find(range(0, 40)), nullptr);
  EXPECT_EQ(join(entry->left(), entry->tokens()), range(0, 40));
  check();
  EXPECT_EQ(index.insert_again(entry), entry);
  EXPECT_EQ(find(range(0, 40)), entry);
  EXPECT_EQ(index.state(*entry), ChunkState::kCold);
  EXPECT_EQ(entry->uses(), 1);
  check();
  index.forget(*entry);
  index.unuse(*entry);
  const Entry other = add(range(0, 40));  // by somebody else, meanwhile
  EXPECT_NE(other, entry);
  EXPECT_EQ(index.insert_again(entry), other);
  EXPECT_EQ(index.state(*entry), ChunkState::kForgotten);
  check();
}

TEST_F(ChunkIndexTest, AFillThatEndsAfterItsEntryWasForgottenLeavesNoTip) {
  const Entry entry = add(range(0, 40));
  index.begin_fill(*entry);
  index.forget(*entry);
  Tip& tip = h.root();
  h.tree.append(tip, range(0, 40));
  ASSERT_TRUE(h.step({&tip}));
  index.end_fill(*entry, tip, 1);
  EXPECT_TRUE(entry->tip().empty());
  EXPECT_EQ(index.state(*entry), ChunkState::kForgotten);
  check();
}

TEST_F(ChunkIndexTest, EntriesOutliveTheirIndex) {
  Entry entry;
  {
    ChunkIndex other(h.tree, 100);
    entry = other.insert({.key = key_of({}, {1, 2}),
                          .left = std::make_shared<const Tokens>(),
                          .tokens = {1, 2},
                          .name = "a"});
    Tip& tip = h.root();
    h.tree.append(tip, Tokens{1, 2});
    other.begin_fill(*entry);
    other.end_fill(*entry, tip, 0);
    h.drop(tip);
  }
  EXPECT_TRUE(entry->tip().empty());
  EXPECT_EQ(h.tree.stats().segments, 0);
  EXPECT_EQ(std::ssize(entry->tokens()), 2);
}

TEST_F(ChunkIndexTest, CountsLookUpsHitsAndTheTokensThatWereThere) {
  const Entry entry = add(range(0, 20), range(100, 10));
  find(range(0, 20), range(100, 10));  // nothing is computed
  fill(*entry);
  find(range(0, 20), range(100, 10));
  find(range(0, 20), range(100, 10));
  find(range(0, 21), range(100, 10));
  const ChunkIndexStats stats = index.stats();
  EXPECT_EQ(stats.lookups, 5);  // add() looked, too
  EXPECT_EQ(stats.hits, 3);
  EXPECT_EQ(stats.hit_tokens, 40);
  EXPECT_EQ(entry->hits(), 3);
}

TEST_F(ChunkIndexTest, CountsReadsAndThePagesOfAllChunks) {
  const Entry a = warm(range(0, 20), range(100, 16));
  const Entry b = warm(range(40, 20), range(100, 16));  // behind the same page
  const Entry cold = add(range(300, 7));
  index.read(*b);
  index.read(*a);
  index.read(*cold);
  const ChunkIndexStats stats = index.stats();
  EXPECT_EQ(stats.reads, 3);
  EXPECT_EQ(stats.read_hits, 2);
  const std::vector<ChunkInfo> infos = index.list();
  EXPECT_EQ(infos[0].id, to_text(cold->key()));
  EXPECT_EQ(infos[1].id, to_text(a->key()));
  EXPECT_EQ(infos[0].reads, 1);
  EXPECT_EQ(infos[0].read_hits, 0);
  EXPECT_EQ(infos[1].read_hits, 1);
  EXPECT_EQ(stats.pages, h.tree.pool().used_pages());
}

TEST_F(ChunkIndexTest, ListsItsEntriesTheMostRecentFirst) {
  const Entry a = warm(range(0, 20), range(100, 20));
  const Entry b = add(range(200, 7));
  index.use(*a);
  const std::vector<ChunkInfo> infos = index.list();
  ASSERT_EQ(infos.size(), 2u);
  EXPECT_EQ(infos[0].name, "chunk 0");
  EXPECT_EQ(infos[0].key, to_hex(a->key().content));
  EXPECT_EQ(infos[0].id, to_text(a->key()));
  EXPECT_EQ(infos[0].beginning, range(0, 16));
  EXPECT_EQ(infos[0].left_tokens, 20);
  EXPECT_EQ(infos[0].tokens, 20);
  EXPECT_EQ(infos[0].tokens_held, 20);
  EXPECT_EQ(infos[0].state, ChunkState::kWarm);
  EXPECT_EQ(infos[0].uses, 1);
  EXPECT_EQ(infos[0].hits, 0);
  EXPECT_EQ(infos[0].last_use, a->last_use());
  EXPECT_EQ(infos[0].fill_ms, 2.5);
  EXPECT_EQ(infos[0].pages, 3);
  EXPECT_EQ(infos[0].own_pages, 3);
  EXPECT_EQ(infos[1].name, "chunk 200");
  EXPECT_EQ(infos[1].state, ChunkState::kRegistered);
  EXPECT_EQ(infos[1].pages, 0);
  EXPECT_LT(infos[1].last_use, infos[0].last_use);
}

/// The index beside plain vectors: which entries there are, in which order of use, and whose K and
/// V are there.
class RandomChunks : public ChunkIndexTest {
 protected:
  struct Known {
    Entry entry;
    std::int64_t uses = 0;
    bool is_registered = true;
    bool is_warm = false;
    bool is_filling = false;
    Tip* reader = nullptr;  // a branch at its tip

    bool is_idle() const { return is_registered && uses == 0 && !is_filling; }
  };
  static constexpr std::int64_t kLimit = 160;

  std::size_t below(std::size_t n) { return random() % n; }

  /// The most recently touched is the last one.
  Known& touched(std::size_t i) {
    std::rotate(known.begin() + static_cast<std::ptrdiff_t>(i),
                known.begin() + static_cast<std::ptrdiff_t>(i) + 1, known.end());
    return known.back();
  }
  void forget(Known& chunk) {
    if (chunk.is_registered) ++forgotten;
    if (chunk.reader != nullptr) h.drop(*std::exchange(chunk.reader, nullptr));
    chunk.is_registered = chunk.is_warm = false;
  }
  void trim(const Known* spared) {
    for (Known& chunk : known) {
      std::int64_t tokens = 0;
      for (const Known& other : known) {
        if (other.is_registered) tokens += std::ssize(other.entry->tokens());
      }
      if (tokens <= kLimit) return;
      if (chunk.is_idle() && &chunk != spared) forget(chunk);
    }
  }

  void register_any() {
    const Tokens left = range(static_cast<Token>(1000 * below(3)), below(2) * 10);
    const Tokens tokens = range(static_cast<Token>(10000 + 100 * below(4)), 5 + below(2) * 20);
    const ChunkKey key = key_of(left, Tokens{tokens[0]}, below(2));  // collides between lengths
    const auto at = std::find_if(known.begin(), known.end(), [&](const Known& chunk) {
      return chunk.is_registered && chunk.entry->key() == key &&
             std::ranges::equal(chunk.entry->left(), left) &&
             std::ranges::equal(chunk.entry->tokens(), tokens);
    });
    const Entry found = random_index.find(key, left, tokens);
    if (at != known.end()) {
      ASSERT_EQ(found, at->entry);
      touched(static_cast<std::size_t>(at - known.begin()));
      return;
    }
    ASSERT_EQ(found, nullptr);
    const auto shared = std::make_shared<const Tokens>(left);
    known.push_back({.entry = random_index.insert(
                         {.key = key, .left = shared, .tokens = tokens, .name = "chunk"})});
    trim(&known.back());
  }
  void use_any() {
    Known& chunk = touched(below(known.size()));
    ++chunk.uses;
    random_index.use(*chunk.entry);
  }
  void unuse_any() {
    const std::size_t i = below(known.size());
    if (known[i].uses == 0) return;
    Known& chunk = touched(i);
    --chunk.uses;
    random_index.unuse(*chunk.entry);
    trim(nullptr);
  }
  void begin_fill_any() {
    const std::size_t i = below(known.size());
    if (!known[i].is_registered || known[i].is_filling || known[i].is_warm) return;
    Known& chunk = touched(i);
    chunk.is_filling = true;
    random_index.begin_fill(*chunk.entry);
  }
  void end_fill_any() {
    const std::size_t i = below(known.size());
    if (!known[i].is_filling) return;
    Known& chunk = touched(i);
    chunk.is_filling = false;
    Tip& tip = h.root();
    h.tree.append(tip, join(chunk.entry->left(), chunk.entry->tokens()));
    if (below(4) != 0 && h.step({&tip})) {
      chunk.is_warm = chunk.is_registered;
      random_index.end_fill(*chunk.entry, tip, 1);
    } else {
      random_index.give_up_fill(*chunk.entry);
    }
    h.drop(tip);
    trim(nullptr);
  }
  void read_any() {
    Known& chunk = known[below(known.size())];
    if (chunk.reader != nullptr) {
      h.drop(*std::exchange(chunk.reader, nullptr));
    } else if (chunk.is_warm) {
      chunk.reader = &h.fork(chunk.entry->tip());
    }
  }
  void evict_oldest() {
    const auto oldest = std::find_if(known.begin(), known.end(), [](const Known& chunk) {
      return chunk.is_idle() && chunk.is_warm && chunk.reader == nullptr;
    });
    const std::int64_t before = used_pages();
    ASSERT_EQ(random_index.evict_one(), oldest != known.end());
    if (oldest == known.end()) return;
    oldest->is_warm = false;
    const std::int64_t pages = h.tree.page_count(oldest->entry->length());
    ASSERT_EQ(used_pages(), before - pages);
    ++evictions;
  }
  void forget_any() {
    Known& chunk = known[below(known.size())];
    forget(chunk);
    random_index.forget(*chunk.entry);
  }
  void insert_any_again() {
    const std::size_t i = below(known.size());
    const Entry entry = known[i].entry;
    const auto same = std::find_if(known.begin(), known.end(), [&](const Known& chunk) {
      return chunk.is_registered && chunk.entry->key() == entry->key() &&
             std::ranges::equal(chunk.entry->left(), entry->left()) &&
             std::ranges::equal(chunk.entry->tokens(), entry->tokens());
    });
    const Entry expected = same == known.end() ? entry : same->entry;
    ASSERT_EQ(random_index.insert_again(entry), expected);
    Known& chunk =
        touched(same == known.end() ? i : static_cast<std::size_t>(same - known.begin()));
    chunk.is_registered = true;
    if (same == known.end()) trim(&chunk);
  }

  void compare() {
    random_index.check_invariants();
    std::vector<const Tip*> live = h.live_tips();
    random_index.collect_tips(live);
    h.tree.check_invariants(live);
    std::vector<std::string> order;
    std::int64_t warm = 0;
    for (auto chunk = known.rbegin(); chunk != known.rend(); ++chunk) {
      const ChunkState state = random_index.state(*chunk->entry);
      ASSERT_EQ(state != ChunkState::kForgotten, chunk->is_registered);
      ASSERT_EQ(chunk->entry->uses(), chunk->uses);
      ASSERT_EQ(chunk->entry->tip().empty(), !chunk->is_warm);
      if (!chunk->is_registered) continue;
      order.push_back(to_text(chunk->entry->key()));
      if (state == ChunkState::kWarm) ++warm;
      ASSERT_EQ(state == ChunkState::kFilling, chunk->is_filling);
      ASSERT_EQ(state == ChunkState::kWarm, chunk->is_warm);
      if (chunk->is_warm) check_bytes(*chunk->entry);
    }
    std::vector<std::string> listed;
    for (const ChunkInfo& info : random_index.list()) listed.push_back(info.id);
    ASSERT_EQ(listed, order);
    const ChunkIndexStats stats = random_index.stats();
    ASSERT_EQ(stats.entries, std::ssize(order));
    ASSERT_EQ(stats.warm, warm);
    ASSERT_EQ(stats.evictions, evictions);
    ASSERT_EQ(stats.forgotten, forgotten);
  }

  std::mt19937 random{11};
  ChunkIndex random_index{h.tree, kLimit};
  std::vector<Known> known;  // the least recently touched first; forgotten ones, too
  std::int64_t evictions = 0;
  std::int64_t forgotten = 0;
};

TEST_F(RandomChunks, AgreesWithPlainVectorsOverRandomOperations) {
  const int turns = static_cast<int>(testing::scaled(4000));
  for (int turn = 0; turn < turns; ++turn) {
    if (known.empty() || below(4) == 0) {
      register_any();
    } else {
      switch (below(14)) {
        case 0:
          use_any();
          break;
        case 1:
        case 2:
        case 3:
          unuse_any();
          break;
        case 4:
        case 5:
        case 6:
          begin_fill_any();
          break;
        case 7:
        case 8:
        case 9:
          end_fill_any();
          break;
        case 10:
          evict_oldest();
          break;
        case 11:
          read_any();
          break;
        case 12:
          forget_any();
          break;
        default:
          insert_any_again();
      }
    }
    if (HasFatalFailure()) FAIL() << "turn " << turn;
    ASSERT_NO_FATAL_FAILURE(compare()) << "turn " << turn;
    // Handles of forgotten entries are given up now and then.
    if (below(8) == 0) {
      std::erase_if(known, [](const Known& chunk) {
        return !chunk.is_registered && chunk.uses == 0 && !chunk.is_filling;
      });
    }
  }
  EXPECT_GT(evictions, turns / 100);
  EXPECT_GT(forgotten, turns / 100);
  known.clear();
  h.drop_all();
  random_index.clear();
  EXPECT_EQ(used_pages(), 0);
  EXPECT_EQ(h.tree.stats().segments, 0);
}

}  // namespace
}  // namespace dendrite
