// Sessions saved and restored: what comes back goes on to the bit, and what is no snapshot is
// refused.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "io/snapshot_file.h"
#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite::test {
namespace {

namespace fs = std::filesystem;

class SnapshotTest : public ::testing::Test {
 protected:
  fs::path file(const std::string& name = "session") const { return folder_ / name; }
  std::string bytes_of(const fs::path& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary) << bytes;
    return file(name);
  }
  /// The same for a file that is there and as long: much faster than making a new one.
  fs::path overwrite(const std::string& name, const std::string& bytes) const {
    std::fstream(file(name), std::ios::binary | std::ios::in | std::ios::out) << bytes;
    return file(name);
  }

  TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

DecodeParams sampled(std::int64_t max_tokens) {
  DecodeParams params;
  params.max_tokens = max_tokens;
  params.temperature = 1.0;
  params.top_p = 0.95;
  params.repetition_penalty = 1.2;
  params.ignore_eos = true;
  return params;
}

const Tokens kGivenBefore{3, 1, 4, 1, 5};

/// Forks, forks inside a page, a rewind, tokens that are not computed yet; a prompt that is gone.
std::vector<Branch> grow(Session& session, std::int64_t vocab) {
  Random random(5);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(random.tokens(37, vocab)));
  for (Branch& child : branches[0].fork(3)) branches.push_back(std::move(child));
  session.decode(std::span(branches).subspan(1), sampled(11));
  branches.push_back(branches[1].at(43));  // inside a page, past the prompt
  branches.push_back(branches[2].at(20));  // inside the prompt
  branches.push_back(branches[3].fork());
  branches.back().append(random.tokens(5, vocab));  // pending
  branches.push_back(branches.back().fork());
  branches.back().set_priority(-3);
  branches.push_back(session.prefill(random.tokens(9, vocab)));
  session.prefill(kGivenBefore);
  return branches;
}

std::vector<Generation> go_on(Session& session, std::vector<Branch>& branches) {
  DecodeParams params = sampled(13);
  params.top_logprobs = 2;
  std::vector<Generation> out = session.decode(branches, params);
  // What comes into being later must be the same, too: its stream depends on counts of forks and of
  // prompts.
  Branch child = branches[0].fork();
  Branch prompt = session.prefill(kGivenBefore);
  out.push_back(session.decode(child, params));
  out.push_back(session.decode(prompt, params));
  return out;
}

void expect_same(const std::vector<Generation>& got, const std::vector<Generation>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, expected[i].ids) << "branch " << i;
    EXPECT_EQ(got[i].text, expected[i].text);
    EXPECT_EQ(got[i].finish, expected[i].finish);
    ASSERT_EQ(got[i].logprobs.size(), expected[i].logprobs.size());
    for (std::size_t t = 0; t < got[i].logprobs.size(); ++t) {
      EXPECT_EQ(got[i].logprobs[t].logprob, expected[i].logprobs[t].logprob);
    }
  }
}

void expect_same_state(const Branch& got, const Branch& expected) {
  EXPECT_EQ(got.id(), expected.id());
  EXPECT_EQ(got.parent(), expected.parent());
  EXPECT_EQ(got.tokens(), expected.tokens());
  EXPECT_EQ(got.prompt_length(), expected.prompt_length());
  EXPECT_EQ(got.logprob(), expected.logprob());
  EXPECT_EQ(got.finish(), expected.finish());
  EXPECT_EQ(got.priority(), expected.priority());
  EXPECT_EQ(got.stream(), expected.stream());
  EXPECT_EQ(state_of(got)->forks_made, state_of(expected)->forks_made);
  EXPECT_EQ(state_of(got)->independent_tokens, state_of(expected)->independent_tokens);
  const SessionCore& session = *state_of(got)->session;
  if (!session.engine->detokenizer) return;
  session.find_text(*state_of(got));
  state_of(expected)->session->find_text(*state_of(expected));
  EXPECT_EQ(state_of(got)->text.held, state_of(expected)->text.held);
  EXPECT_EQ(state_of(got)->text.cut, state_of(expected)->text.cut);
  EXPECT_EQ(state_of(got)->text.at_start, state_of(expected)->text.at_start);
}

std::int64_t computed(const Branch& branch) {
  return state_of(branch)->session->engine->tree->computed(state_of(branch)->tip);
}

TEST_F(SnapshotTest, GoesOnToTheBit) {
  for (const char* model :
       {"llama2", "qwen2", "mistral_swa", "llama_f16", "gemma4_text", "deepseek_v3"}) {
    for (const int page_tokens : {8, 16, 32}) {
      SCOPED_TRACE(std::string(model) + ", pages of " + std::to_string(page_tokens));
      const Engine engine = load(model, {.page_tokens = page_tokens});
      Session session(engine,
                      {.seed = 11, .budget = {.tokens = 100000, .milliseconds = 1e9}, .stream = 5});
      std::vector<Branch> branches = grow(session, engine.info().vocab);
      session.save(file());

      const Engine other = load(model, {.page_tokens = page_tokens});
      {
        Restored restored = other.restore(file());
        EXPECT_TRUE(restored.kv_restored);
        EXPECT_EQ(restored.note, "");
        ASSERT_EQ(restored.branches.size(), branches.size());
        EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
        const std::int64_t before = restored.session.stats().tokens_computed;
        EXPECT_EQ(before, session.stats().tokens_computed);
        EXPECT_EQ(restored.session.stats().branches_live, std::ssize(branches));
        EXPECT_EQ(core_of(restored.session)->options.budget.tokens, 100000);
        EXPECT_EQ(core_of(restored.session)->options.budget.milliseconds, 1e9);
        EXPECT_EQ(core_of(restored.session)->spent_ms, core_of(session)->spent_ms);
        EXPECT_EQ(core_of(restored.session)->naive_pages, core_of(session)->naive_pages);
        for (std::size_t i = 0; i < branches.size(); ++i) {
          SCOPED_TRACE("branch " + std::to_string(i));
          expect_same_state(restored.branches[i], branches[i]);
          EXPECT_EQ(computed(restored.branches[i]), computed(branches[i]));
          if (computed(branches[i]) > 0) {
            EXPECT_TRUE(same_bits(kv_of(restored.branches[i]), kv_of(branches[i])));
          }
        }
        expect_same(go_on(restored.session, restored.branches), go_on(session, branches));
        EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
        for (std::size_t i = 0; i < branches.size(); ++i) {
          EXPECT_TRUE(same_bits(kv_of(restored.branches[i]), kv_of(branches[i])));
        }
      }
      expect_all_pages_free(other);
    }
  }
}

TEST_F(SnapshotTest, KeepsPromptsApartBySalt) {
  const Engine engine = load("tinyllama");
  const Tokens prompt = Random(6).tokens(40, engine.info().vocab);
  {
    Session session(engine);
    const Branch plain = session.prefill(prompt);
    Branch salted = session.prefill(prompt, {.salt = "mine"});
    const Composed edited = session.edit(salted, std::vector<Edit>{{{10, 12}, {}}});
    session.save(file());
  }
  for (const bool with_kv : {true, false}) {
    const Engine other = load("tinyllama", {.page_tokens = with_kv ? 16 : 8});
    Restored restored = other.restore(file());
    EXPECT_EQ(restored.kv_restored, with_kv);
    if (!with_kv) restored.session.decode(restored.branches, greedy(1));
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
    const auto shared = [&](const Tokens& tokens, const std::string& salt) {
      return restored.session.prefill(tokens, {.salt = salt}).stats().prompt_shared;
    };
    EXPECT_EQ(shared(prompt, "other"), 0);
    EXPECT_EQ(shared(prompt, "mine"), 40);
    EXPECT_EQ(shared(prompt, ""), 40);
    Tokens cut = restored.branches[2].tokens();
    EXPECT_EQ(shared(cut, ""), 10);
    EXPECT_EQ(shared(cut, "another"), 0);
  }
}

TEST_F(SnapshotTest, SharesPagesAsItDid) {
  const Engine engine = load("llama2", {.prefix_index = false});
  Session session(engine);
  std::vector<Branch> branches = grow(session, engine.info().vocab);
  std::vector<const Tip*> tips;
  for (const Branch& branch : branches) tips.push_back(&state_of(branch)->tip);
  core_of(engine)->tree->unreserve(
      state_of(branches[6])->tip);  // pages without K and V are not saved
  const KvUsage usage = core_of(engine)->tree->usage(tips);
  session.save(file());
  EXPECT_LE(fs::file_size(file()),
            static_cast<std::uintmax_t>(usage.unique_bytes + 8 * usage.unique_pages + 3 * 4096));

  const Engine other = load("llama2", {.prefix_index = false});
  Restored restored = other.restore(file());
  tips.clear();
  for (const Branch& branch : restored.branches) tips.push_back(&state_of(branch)->tip);
  EXPECT_EQ(core_of(other)->tree->usage(tips).unique_pages, usage.unique_pages);
  EXPECT_EQ(core_of(other)->tree->pool().used_pages(), usage.unique_pages);
}

TEST_F(SnapshotTest, HoldsNothingButWhatTheBranchesSee) {
  const Engine engine = load("llama2", {.prefix_index = false});
  Session session(engine);
  Branch whole = session.prefill(Random(1).tokens(40, engine.info().vocab));
  Branch upper = whole.at(21);
  session.save(file("part"), std::span(&upper, 1));
  const SnapshotReader reader(file("part"));
  EXPECT_EQ(reader.snapshot().tree.tokens.size(), 21u);
  EXPECT_EQ(reader.pages(), 2);
  // Slots past the end are zeros, not the longer branch's K and V.
  const KvShape& shape = core_of(engine)->store->shape();
  reader.read_pages(
      *core_of(engine)->workers, [&](std::int64_t i, std::span<const std::byte> bytes) {
        const std::int64_t slot = shape.head_dim * size_of(shape.format);
        const bool last_slot_is_zero = std::ranges::all_of(
            bytes.subspan(static_cast<std::size_t>(15 * slot), static_cast<std::size_t>(slot)),
            [](std::byte b) { return b == std::byte{0}; });
        EXPECT_EQ(last_slot_is_zero, i == 1);
      });
}

TEST_F(SnapshotTest, AnySetOfBranchesInAnyOrder) {
  const Engine engine = load("llama2");
  Session session(engine, {.seed = 4});
  std::vector<Branch> branches = grow(session, engine.info().vocab);
  const Engine other = load("llama2");
  Random random(9);
  for (int round = 0; round < 20; ++round) {
    std::vector<Branch> some;
    for (Branch& branch : branches) {
      if (random.one_in(2))
        some.insert(some.begin() + random.below(std::ssize(some) + 1), branch.fork());
    }
    if (some.empty()) continue;
    session.save(file(), some);
    Restored restored = other.restore(file());
    ASSERT_EQ(restored.branches.size(), some.size());
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
    for (std::size_t i = 0; i < some.size(); ++i) {
      expect_same_state(restored.branches[i], some[i]);
    }
    const DecodeParams params = sampled(6);
    expect_same(restored.session.decode(restored.branches, params), session.decode(some, params));
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
  }
}

TEST_F(SnapshotTest, KeepsTokensWhereKAndVDoNotFit) {
  const Engine engine = load("llama2");
  Session session(engine, {.seed = 3});
  std::vector<Branch> branches = grow(session, engine.info().vocab);
  session.save(file());
  const Tokens tokens = branches[1].tokens();
  const std::vector<Generation> expected = go_on(session, branches);
  const auto restored_elsewhere = [&](const EngineOptions& options, const std::string& note) {
    const Engine other = load("llama2", options);
    Restored restored = other.restore(file());
    EXPECT_FALSE(restored.kv_restored);
    EXPECT_NE(restored.note.find(note), std::string::npos) << restored.note;
    EXPECT_NE(restored.note.find(file().string()), std::string::npos) << restored.note;
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
    for (Branch& branch : restored.branches) EXPECT_EQ(computed(branch), 0);
    return go_on(restored.session, restored.branches);
  };
  expect_same(restored_elsewhere({.page_tokens = 8}, "page size is 8"), expected);
  // Too small a pool for all of it, and large enough for each.
  const Engine small = load("llama2", {.kv_tokens = 80});
  Restored restored = small.restore(file());
  EXPECT_FALSE(restored.kv_restored);
  EXPECT_NE(restored.note.find("of 5 are free"), std::string::npos) << restored.note;
  EXPECT_EQ(core_of(small)->tree->pool().used_pages(), 0);
  EXPECT_EQ(restored.branches[1].tokens(), tokens);
  // Another instruction path computes other bits: K and V are of no use, tokens are.
  for (const std::string& path : cpu_kernel_paths()) {
    if (on_cuda() || path == engine.info().kernels) continue;
    const Engine other = load("llama2", {.kernels = path});
    Restored elsewhere = other.restore(file());
    EXPECT_FALSE(elsewhere.kv_restored) << path;
    EXPECT_NE(elsewhere.note.find("numerics key"), std::string::npos) << elsewhere.note;
    std::vector<Generation> got = elsewhere.session.decode(elsewhere.branches, greedy(4));
    // The same as replaying the tokens there.
    Session fresh(other);
    Branch again = fresh.prefill(elsewhere.branches[1].at(48).tokens());
    Branch here = elsewhere.branches[1].at(48);
    EXPECT_TRUE(same_bits(bits_of(here), bits_of(again)));
  }
}

// A latent is kept once. Files that have it as V, too, were written before that.
TEST_F(SnapshotTest, KeepsTokensOfALatentThatWasSavedTwice) {
  const Engine engine = load("deepseek_v3");
  Session session(engine, {.seed = 3});
  std::vector<Branch> branches = grow(session, engine.info().vocab);
  session.save(file());
  {
    const SnapshotReader once(file());
    ASSERT_TRUE(once.snapshot().values_are_keys);
    const ThreadPool pool(1);
    std::vector<std::vector<std::byte>> pages(static_cast<std::size_t>(once.pages()));
    once.read_pages(pool, [&](std::int64_t page, std::span<const std::byte> in) {
      pages[static_cast<std::size_t>(page)].assign(in.begin(), in.end());
    });
    Snapshot twice = once.snapshot();
    twice.values_are_keys = false;
    EXPECT_EQ(twice.page_bytes(), 2 * once.snapshot().page_bytes());
    write_snapshot(file("twice"), twice, pool, [&](std::int64_t page, std::span<std::byte> out) {
      const std::vector<std::byte>& keys = pages[static_cast<std::size_t>(page)];
      const std::size_t of_layer = keys.size() / static_cast<std::size_t>(twice.layers);
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = keys[i / (2 * of_layer) * of_layer + i % of_layer];
      }
    });
  }
  const std::vector<Generation> expected = go_on(session, branches);
  const Engine other = load("deepseek_v3");
  Restored restored = other.restore(file("twice"));
  EXPECT_FALSE(restored.kv_restored);
  EXPECT_NE(restored.note.find("V was kept beside K when saved"), std::string::npos)
      << restored.note;
  for (Branch& branch : restored.branches) EXPECT_EQ(computed(branch), 0);
  expect_same(go_on(restored.session, restored.branches), expected);
  EXPECT_TRUE(other.restore(file()).kv_restored);
}

TEST_F(SnapshotTest, InMemoryIsTheSameAsAFile) {
  const Engine engine = load("llama2", {.threads = 2});
  Session session(engine, {.seed = 3});
  std::vector<Branch> branches = grow(session, engine.info().vocab);
  std::vector<Branch*> pointers;
  for (Branch& branch : branches) pointers.push_back(&branch);
  EventQueue events = engine.events(mask_of(EventKind::kSave, EventKind::kRestore));
  const SaveOptions options{.attachment = "a note"};
  session.save(file(), branches, options);
  const std::string saved = bytes_of(file());
  const auto expect_file = [&](const std::vector<std::byte>& bytes) {
    ASSERT_EQ(bytes.size(), saved.size());
    // Time goes on between two saves.
    const SnapshotReader in_memory(bytes);
    const SnapshotReader in_file(file());
    EXPECT_EQ(in_memory.snapshot().tree.tokens, in_file.snapshot().tree.tokens);
    const auto pages =
        static_cast<std::size_t>(in_file.pages() * (in_file.snapshot().page_bytes() + 8) + 8);
    EXPECT_EQ(std::memcmp(bytes.data() + bytes.size() - pages, saved.data() + saved.size() - pages,
                          pages),
              0);
  };
  const std::vector<std::byte> bytes = session.snapshot(branches, options);
  expect_file(bytes);
  expect_file(session.snapshot(pointers, options));
  expect_file(session.snapshot(std::span<const Branch>(), options));
  session.save(file(), pointers, options);
  expect_file(bytes);
  const auto size = static_cast<std::int64_t>(saved.size());
  for (const StoredEvent& event : events.take()) {
    EXPECT_EQ(event.bytes, size);
    EXPECT_EQ(event.branches, std::ssize(branches));
  }

  const Engine other = load("llama2");
  Restored restored = other.restore(bytes);
  EXPECT_TRUE(restored.kv_restored);
  EXPECT_EQ(restored.note, "");
  EXPECT_EQ(restored.attachment, "a note");
  ASSERT_EQ(restored.branches.size(), branches.size());
  EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
  for (std::size_t i = 0; i < branches.size(); ++i) {
    expect_same_state(restored.branches[i], branches[i]);
    EXPECT_EQ(computed(restored.branches[i]), computed(branches[i]));
  }
  expect_same(go_on(restored.session, restored.branches), go_on(session, branches));
}

TEST_F(SnapshotTest, InMemoryDamageIsRefusedAndNothingHappens) {
  const Engine engine = load("llama2", {.prefix_index = false});
  Session session(engine);
  Branch branch = session.prefill(Random(1).tokens(40, engine.info().vocab));
  std::vector<std::byte> bytes = session.snapshot();
  const std::int32_t used = core_of(engine)->tree->pool().used_pages();
  EXPECT_ERROR(engine.restore(std::span(bytes).first(3)), "snapshot in memory: is 3 bytes long");
  EXPECT_ERROR(engine.restore(std::span(bytes).first(bytes.size() - 1)), "is it truncated?");
  bytes[4096 + 5] ^= std::byte{1};
  EXPECT_ERROR(engine.restore(bytes), "snapshot in memory: is damaged: the checksum of page 0");
  EXPECT_EQ(core_of(engine)->tree->pool().used_pages(), used);
  const Engine qwen = load("qwen2");
  bytes[4096 + 5] ^= std::byte{1};
  EXPECT_ERROR(qwen.restore(bytes), "snapshot in memory: was saved from another model");
  branch.prune();
  EXPECT_ERROR(session.snapshot(std::span(&branch, 1)), "snapshot: branch 0 is empty");
}

TEST_F(SnapshotTest, WithoutKAndVItHoldsTokensAndState) {
  const Engine engine = load("llama2");
  Session session(engine, {.seed = 3});
  std::vector<Branch> branches = grow(session, engine.info().vocab);
  const std::vector<std::byte> bytes = session.snapshot(branches, {.kv = false});
  EXPECT_EQ(bytes.size(), 4096u + 8);
  session.save(file(), branches, {.kv = false});
  EXPECT_EQ(fs::file_size(file()), bytes.size());
  const std::vector<Generation> expected = go_on(session, branches);
  const Engine other = load("llama2");
  Restored restored = other.restore(bytes);
  EXPECT_FALSE(restored.kv_restored);
  EXPECT_NE(restored.note.find("snapshot in memory: tokens are restored"), std::string::npos)
      << restored.note;
  EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
  for (Branch& branch : restored.branches) EXPECT_EQ(computed(branch), 0);
  expect_same(go_on(restored.session, restored.branches), expected);
}

TEST_F(SnapshotTest, EvictedBranchesComeBackAsTheyAre) {
  const Engine engine = load("llama2", {.kv_tokens = 160, .prefix_index = false});
  Session session(engine, {.seed = 3});
  std::vector<Branch> branches;
  for (int i = 0; i < 5; ++i) {  // more than fit at once
    branches.push_back(
        session.prefill(Random(static_cast<std::uint32_t>(i)).tokens(50, engine.info().vocab)));
    session.decode(branches.back(), sampled(3));
  }
  EXPECT_GT(session.stats().evictions, 0);
  EXPECT_EQ(computed(branches[0]), 0);
  session.save(file());
  const Engine other = load("llama2", {.kv_tokens = 160, .prefix_index = false});
  {
    Restored restored = other.restore(file());
    EXPECT_TRUE(restored.kv_restored) << restored.note;
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
    EXPECT_EQ(restored.session.stats().evictions, session.stats().evictions);
    for (std::size_t i = 0; i < branches.size(); ++i) {
      expect_same_state(restored.branches[i], branches[i]);
      EXPECT_EQ(computed(restored.branches[i]), computed(branches[i]));
    }
    expect_same(restored.session.decode(restored.branches, sampled(9)),
                session.decode(branches, sampled(9)));
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
  }
  expect_all_pages_free(other);
}

TEST_F(SnapshotTest, RestoresIntoAPoolThatRemembersPrompts) {
  const Engine engine = load("llama2", {.kv_tokens = 256});
  Session session(engine);
  Branch branch = session.prefill(Random(2).tokens(200, engine.info().vocab));
  session.save(file());
  const Engine other = load("llama2", {.kv_tokens = 256});
  {
    Session before(other);
    before.prefill(Random(3).tokens(180, other.info().vocab));
  }
  EXPECT_GT(core_of(other)->tree->pool().used_pages(), 0);  // the prefix index
  Restored restored = other.restore(file());
  EXPECT_TRUE(restored.kv_restored) << restored.note;
  EXPECT_TRUE(same_bits(kv_of(restored.branches[0]), kv_of(branch)));
}

TEST_F(SnapshotTest, TextGoesOnInsideACharacter) {
  const Engine engine = load("llama2");
  Session session(engine);
  // Bytes of a euro sign, one token each: the branch is saved with two of the three.
  const Tokens bytes = engine.encode("\xE2\x82\xAC", false);
  ASSERT_GE(bytes.size(), 2u);
  Branch branch = session.prefill(engine.encode("a"));
  branch.append(std::span(bytes).first(bytes.size() - 1));
  EXPECT_FALSE(state_of(branch)->text.held.empty());
  session.save(file());
  const Engine other = load("llama2");
  Restored restored = other.restore(file());
  expect_same_state(restored.branches[0], branch);
  DecodeParams params = greedy(1);
  params.logit_bias = {{bytes.back(), 1e4f}};
  params.stop = {"\xE2\x82\xAC"};
  const Generation here = session.decode(branch, params);
  const Generation there = restored.session.decode(restored.branches[0], params);
  EXPECT_EQ(here.finish, there.finish);
  EXPECT_EQ(here.text, there.text);
  EXPECT_EQ(restored.branches[0].text(), branch.text());
}

TEST_F(SnapshotTest, BudgetsGoOn) {
  const Engine engine = load("llama2");
  Session session(engine, {.seed = 2, .budget = {.tokens = 60}});
  Branch branch = session.prefill(Random(2).tokens(30, engine.info().vocab));
  session.decode(branch, sampled(10));
  session.save(file());
  const Generation rest = session.decode(branch, sampled(50));
  const Engine other = load("llama2");
  Restored restored = other.restore(file());
  const Generation there = restored.session.decode(restored.branches[0], sampled(50));
  EXPECT_EQ(there.finish, Finish::kBudget);
  EXPECT_EQ(restored.session.stats().tokens_computed, 60);
  // The rows are the same but for the distribution, if it has to be computed again.
  EXPECT_GE(there.ids.size() + 1, rest.ids.size());
  EXPECT_LE(there.ids.size(), rest.ids.size());
}

TEST_F(SnapshotTest, RandomTreesComeBack) {
  const auto make = [](bool recurs) {
    return recurs ? load("qwen3_5") : load("llama2", {.page_tokens = 8});
  };
  for (int round = 0; round < scaled(14); ++round) {
    SCOPED_TRACE(round);
    const bool recurs = round % 7 == 6;
    const Engine engine = make(recurs);
    const Engine other = make(recurs);
    Random random(static_cast<std::uint32_t>(100 + round));
    Session session(engine, {.seed = static_cast<std::uint64_t>(round)});
    std::vector<Branch> branches;
    branches.push_back(session.prefill(random.tokens(random.in(1, 40), engine.info().vocab)));
    for (int i = 0; i < 30; ++i) {
      const auto which = static_cast<std::size_t>(random.below(std::ssize(branches)));
      Branch& branch = branches[which];
      switch (random.below(6)) {
        case 0:
          branches.push_back(branch.fork());
          break;
        case 1:
          branches.push_back(branch.at(random.in(1, branch.length())));
          break;
        case 2:
          branch.append(random.tokens(random.in(1, 20), engine.info().vocab));
          break;
        case 3:
          session.decode(branch, sampled(random.in(1, 9)));
          break;
        case 4:
          session.decode(branches, sampled(random.in(1, 3)));
          break;
        default:
          if (branches.size() > 1)
            branches.erase(branches.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    session.save(file());
    Restored restored = other.restore(file());
    ASSERT_TRUE(restored.kv_restored) << restored.note;
    ASSERT_EQ(restored.branches.size(), branches.size());
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
    // By id, which is not the order of the vector.
    std::ranges::sort(branches, {}, [](const Branch& b) { return b.id(); });
    for (std::size_t i = 0; i < branches.size(); ++i) {
      expect_same_state(restored.branches[i], branches[i]);
      EXPECT_EQ(computed(restored.branches[i]), computed(branches[i]));
    }
    expect_same(go_on(restored.session, restored.branches), go_on(session, branches));
    EXPECT_TRUE(tree_is_sound(other, {restored.branches}));
    for (std::size_t i = 0; i < branches.size(); ++i) {
      EXPECT_TRUE(same_bits(kv_of(restored.branches[i]), kv_of(branches[i])));
    }
  }
}

TEST_F(SnapshotTest, OthersMayForkAndDropMeanwhile) {
  const Engine engine = load("llama2", {.threads = 2});
  Session session(engine);
  std::vector<Branch> branches = grow(session, engine.info().vocab);
  std::vector<Branch> theirs = branches[0].fork(4);
  std::atomic<bool> stop = false;
  std::jthread other([&] {
    Random random(1);
    while (!stop) {
      Branch child = theirs[static_cast<std::size_t>(random.below(4))].fork();
      child.append(random.tokens(3, engine.info().vocab));
      Branch back = child.at(random.in(1, child.length()));
    }
  });
  const Engine reader = load("llama2");
  for (int i = 0; i < scaled(40); ++i) {
    session.save(file());
    Restored restored = reader.restore(file());
    EXPECT_GE(restored.branches.size(), branches.size() + theirs.size());
    EXPECT_TRUE(tree_is_sound(reader, {restored.branches}));
    EXPECT_TRUE(same_bits(kv_of(restored.branches[1]), kv_of(branches[1])));
  }
  stop = true;
}

TEST_F(SnapshotTest, ASessionWithoutBranchesIsOneToo) {
  const Engine engine = load("llama2");
  Session session(engine, {.seed = 21});
  { Branch gone = session.prefill(Tokens{1, 2, 3}); }
  session.save(file());
  Restored restored = engine.restore(file());
  EXPECT_TRUE(restored.branches.empty());
  EXPECT_TRUE(restored.kv_restored);
  Branch here = session.prefill(Tokens{5, 6, 7});
  Branch there = restored.session.prefill(Tokens{5, 6, 7});
  EXPECT_EQ(here.id(), there.id());
  EXPECT_EQ(here.stream(), there.stream());
}

// --- refusals

TEST_F(SnapshotTest, TellsOfFilesWrittenAndRead) {
  const Engine e = load("tinyllama");
  std::vector<Event> heard;
  const EventSubscription subscription =
      e.on_event(mask_of(EventKind::kSave, EventKind::kRestore), [&](const Event& event) {
        heard.push_back(event);
        heard.back().ran = heard.back().waited = {};
      });
  Session session(e);
  Branch root = session.prefill(Random(1).tokens(40, 256));
  Branch kid = root.fork();
  session.save(file());
  const Restored restored = e.restore(file());
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0].kind, EventKind::kSave);
  EXPECT_EQ(heard[1].kind, EventKind::kRestore);
  for (const Event& event : heard) {
    EXPECT_EQ(event.branches, 2);
    EXPECT_EQ(event.bytes, static_cast<std::int64_t>(fs::file_size(file())));
    EXPECT_GT(event.ms, 0);
  }
  EXPECT_EQ(heard[1].session, 2u);
}

TEST_F(SnapshotTest, RefusesBranchesThatAreNotItsOwn) {
  const Engine engine = load("llama2");
  Session session(engine);
  Session other(engine);
  std::vector<Branch> branches(1);
  EXPECT_ERROR(session.save(file(), branches), "is empty");
  branches[0] = other.prefill(Tokens{1, 2});
  EXPECT_ERROR(session.save(file(), branches), "another session");
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_FALSE(fs::exists(file("session.partial")));
}

TEST_F(SnapshotTest, RefusesAnotherModel) {
  const Engine engine = load("llama2");
  Session session(engine);
  Branch branch = session.prefill(Tokens{1, 2, 3});
  session.save(file());
  EXPECT_ERROR(load("qwen2").restore(file()), "another model");
  // The same shapes, one weight's bytes changed.
  const fs::path copy = folder_ / "copy";
  fs::copy(model_path("llama2"), copy);
  const Engine same = Engine::load(
      copy.string(), {.device = on_cuda() ? "cuda" : "cpu", .threads = 1, .kv_tokens = 4096});
  EXPECT_TRUE(same.restore(file()).kv_restored);
  std::string weights = bytes_of(copy / "model.safetensors");
  weights[weights.size() - 1] ^= 1;
  std::ofstream(copy / "model.safetensors", std::ios::binary) << weights;
  const Engine other = Engine::load(
      copy.string(), {.device = on_cuda() ? "cuda" : "cpu", .threads = 1, .kv_tokens = 4096});
  EXPECT_ERROR(other.restore(file()), "another model");
}

TEST_F(SnapshotTest, RefusesWhatIsNoSnapshot) {
  const Engine engine = load("llama2");
  EXPECT_ERROR(engine.restore(file("none")), "cannot open");
  EXPECT_ERROR(engine.restore(folder_), "regular file");
  EXPECT_ERROR(engine.restore(write("empty", "")), "is 0 bytes long");
  EXPECT_ERROR(engine.restore(write("text", std::string(5000, 'x'))), "is no snapshot");
  Session session(engine);
  EXPECT_ERROR(session.save(folder_ / "none" / "session"), "cannot open");
  EXPECT_ERROR(session.save(folder_), "is not a regular file; expected one, or none");
  EXPECT_FALSE(fs::exists(folder_.string() + ".partial"));
  Branch branch = session.prefill(Tokens{1, 2, 3});
  session.save(file());
  std::string bytes = bytes_of(file());
  bytes[8] = 10;
  EXPECT_ERROR(engine.restore(write("other", bytes)),
               "format version 10; this program reads versions 5 to 9");
  EXPECT_ERROR(Engine::load(model_path("llama2").string(), {.weights = false}).restore(file()),
               "without weights");
}

TEST_F(SnapshotTest, RefusesEveryTruncation) {
  const Engine engine = load("llama2", {.kv_tokens = 1024});
  Session session(engine);
  Branch branch = session.prefill(Random(2).tokens(30, engine.info().vocab));
  session.save(file());
  const std::string whole = bytes_of(file());
  write("cut", whole);
  for (std::size_t size = whole.size() - 1; size > 0; size -= size < 300 ? 1 : 97) {
    fs::resize_file(file("cut"), size);
    EXPECT_ERROR(engine.restore(file("cut")), "bytes long");
  }
  EXPECT_ERROR(engine.restore(write("longer", whole + "x")), "bytes long");
  EXPECT_EQ(core_of(engine)->tree->pool().used_pages(), 2);
}

TEST_F(SnapshotTest, RefusesEveryFlippedByte) {
  const Engine engine = load("llama2", {.kv_tokens = 1024, .prefix_index = false});
  Session session(engine);
  Branch branch = session.prefill(Random(2).tokens(30, engine.info().vocab));
  session.save(file());
  const std::string whole = bytes_of(file());
  const auto segments = core_of(engine)->tree->stats().segments;
  Random random(8);
  write("flipped", whole);
  for (int i = 0; i < scaled(3000); ++i) {
    std::string bytes = whole;
    // Half of them in the first bytes, where everything is decided.
    const std::int64_t limit = i % 2 == 0 ? 600 : std::ssize(bytes);
    const auto at = static_cast<std::size_t>(random.below(limit));
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
    const std::string error = error_of([&] { engine.restore(overwrite("flipped", bytes)); });
    EXPECT_NE(error.find("flipped: "), std::string::npos) << "byte " << at << ": " << error;
  }
  EXPECT_EQ(core_of(engine)->tree->pool().used_pages(), 2);
  EXPECT_EQ(core_of(engine)->tree->stats().segments, segments);
}

TEST_F(SnapshotTest, SurvivesFilesMadeToDeceive) {
  // Bytes are changed and all checksums made right again: refused, or a sound tree that decodes.
  const Engine engine = load("llama2", {.kv_tokens = 4096, .prefix_index = false});
  {
    Session session(engine);
    std::vector<Branch> branches = grow(session, engine.info().vocab);
    session.save(file());
  }
  const std::string whole = bytes_of(file());
  Random random(8);
  int taken = 0;
  write("deceit", whole);
  for (int i = 0; i < scaled(3000); ++i) {
    std::string bytes = whole;
    const std::int64_t head = 3000;
    for (std::int64_t n = random.in(1, 3); n > 0; --n) {
      const auto at = static_cast<std::size_t>(random.in(8, head));
      switch (random.below(3)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
          break;
        case 1:
          bytes[at] = static_cast<char>(random.below(256));
          break;
        default: {
          const std::int64_t values[] = {-1,
                                         0,
                                         1,
                                         37,
                                         1 << 20,
                                         std::int64_t{1} << 40,
                                         std::numeric_limits<std::int64_t>::max(),
                                         std::numeric_limits<std::int64_t>::min()};
          const std::int64_t value = values[random.below(8)];
          std::memcpy(bytes.data() + at / 8 * 8, &value, sizeof value);
        }
      }
    }
    SCOPED_TRACE("file " + std::to_string(i));
    seal_snapshot(std::as_writable_bytes(std::span(bytes)));
    try {
      Restored restored = engine.restore(overwrite("deceit", bytes));
      ++taken;
      ASSERT_TRUE(tree_is_sound(engine, {restored.branches}));
      if (taken % 20 == 0) restored.session.decode(restored.branches, sampled(2));
      ASSERT_TRUE(tree_is_sound(engine, {restored.branches}));
    } catch (const Error& error) {
      ASSERT_NE(std::string(error.what()).find("deceit"), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
    ASSERT_EQ(core_of(engine)->tree->pool().used_pages(), 0);
  }
  EXPECT_GT(taken, 0);
}

// --- interrupted saves

TEST_F(SnapshotTest, TwoSaversOfOneFileAreToldSo) {
  const Engine engine = load("llama2");
  Session session(engine);
  Branch branch = session.prefill(Tokens{1, 2, 3});
  Snapshot snapshot;
  snapshot.vocab = snapshot.layers = snapshot.kv_heads = snapshot.head_dim = 1;
  snapshot.page_tokens = 8;
  snapshot.tree.segments = {{.tokens = 1, .computed = 1}};
  snapshot.tree.tokens = {0};
  snapshot.tree.tips = {0};
  snapshot.session.next_id = 2;
  snapshot.branches = {{.id = 1}};
  const ThreadPool pool(1);
  std::string error;
  write_snapshot(file(), snapshot, pool, [&](std::int64_t, std::span<std::byte>) {
    error = error_of([&] { session.save(file()); });
  });
  EXPECT_NE(error.find("another save to this file is under way"), std::string::npos) << error;
  session.save(file());  // the lock is gone with its holder
  EXPECT_EQ(engine.restore(file()).branches[0].tokens(), (Tokens{1, 2, 3}));
  EXPECT_FALSE(fs::exists(file("session.partial")));
}

TEST_F(SnapshotTest, AKilledSaveLeavesTheOldFileOrTheNewOne) {
  if (on_cuda()) GTEST_SKIP() << "a child process can't use its parent's GPU";
  const Engine engine = load("llama2", {.kv_tokens = 8192});
  Session session(engine, {.seed = 6});
  Random random(3);
  Branch branch = session.prefill(random.tokens(4000, engine.info().vocab));
  session.save(file());
  std::int64_t saved = branch.length();
  int old_files = 0;
  int new_files = 0;
  int left_behind = 0;
  const Engine reader = load("llama2", {.kv_tokens = 8192});
  // How long a save takes depends on the machine, and on who else uses it now: kills follow it,
  // later after each old file and earlier after each new one.
  double longest = 4000;  // microseconds
  for (int i = 0; i < scaled(100); ++i) {
    session.decode(branch, greedy(1));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        session.save(file());
      } catch (...) {
        _exit(1);
      }
      _exit(0);
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(random.below(static_cast<std::int64_t>(longest))));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    left_behind += fs::exists(file("session.partial")) ? 1 : 0;
    Restored restored = reader.restore(file());
    const std::int64_t length = restored.branches.at(0).length();
    ASSERT_TRUE(length == saved || length == branch.length()) << length;
    ASSERT_TRUE(restored.kv_restored);
    Branch same = branch.at(length);
    EXPECT_EQ(restored.branches[0].tokens(), same.tokens());
    if (i % 10 == 0) {
      EXPECT_TRUE(
          same_bits(kv_of(restored.branches[0]), kv_of(same, computed(restored.branches[0]))));
    }
    (length == saved ? old_files : new_files) += 1;
    longest = std::max(1.0, longest * (length == saved ? 1.25 : 0.8));
    saved = length;
  }
  std::printf("killed: %d old files, %d new ones, %d partial ones left\n", old_files, new_files,
              left_behind);
  EXPECT_GT(old_files, 0);
  EXPECT_GT(new_files, 0);
  EXPECT_GT(left_behind, 0);
  session.save(file());  // what was left behind is in nobody's way
  EXPECT_FALSE(fs::exists(file("session.partial")));
}

}  // namespace
}  // namespace dendrite::test
