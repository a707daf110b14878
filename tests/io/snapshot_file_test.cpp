// Snapshot files by themselves: every byte counts, nothing in them is believed.
#include "io/snapshot_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "test_files.h"

namespace dendrite::test {
namespace {

/// A trunk of 11 tokens, cut inside a page at 5, with two children of its end.
Snapshot example() {
  Snapshot s;
  s.model = 0x1234;
  s.model_text = "a model";
  s.numerics_key = "cpu/any/f32";
  s.vocab = 100;
  s.layers = 2;
  s.kv_heads = 1;
  s.head_dim = 4;
  s.page_tokens = 8;
  s.tree.segments = {
      {.parent = TreeImage::kRoot, .tokens = 5, .computed = 5},
      {.parent = 0, .tokens = 6, .computed = 6, .shares_head = true},
      {.parent = 1, .tokens = 3, .computed = 2},
      {.parent = 1, .tokens = 1},
  };
  for (Token token = 0; token < 15; ++token) s.tree.tokens.push_back(token * 3);
  s.tree.tips = {2, 3, 0};
  s.session = {.seed = 7,
               .stream = 6,
               .budget_tokens = 100,
               .budget_ms = 2.5,
               .spent_ms = 0.5,
               .next_id = 9,
               .prompts = {{17, 2}, {40, 1}},
               .counters = {1, 2, 3}};
  s.constraints = {{2, "start: \"a\""}, {1, "b+"}};
  s.branches = {{.id = 3,
                 .parent = 1,
                 .stream = 42,
                 .forks_made = 2,
                 .prompt_length = 11,
                 .independent_tokens = 4,
                 .logprob = -1.5,
                 .priority = -4,
                 .finish = 2,
                 .spans = {{4, 1}, {7, -1}}},
                {.id = 4},
                {.id = 8, .prompt_length = 5}};
  return s;
}

std::byte byte_of(std::int64_t page, std::size_t i) {
  return static_cast<std::byte>(static_cast<std::size_t>(page) * 31 + i);
}

constexpr std::int64_t kStatePages = 2;  // of those below, behind which there are states

/// The same with what recurrent layers keep: in two blocks.
Snapshot with_states() {
  Snapshot s = example();
  s.tree.segments[1].tokens = 11;  // two full pages
  s.tree.segments[1].computed = 11;
  s.tree.tokens.assign(20, 1);
  s.states = {.layers = 2,
              .anchor_values = (1 << 16) + 1,
              .journal_values = 3,
              .anchors = {0, 1},
              .journals = {2, 7, 8, 17}};
  return s;
}

float state_value(std::int64_t state, std::size_t i) {
  return static_cast<float>(state * 1000003 + static_cast<std::int64_t>(i));
}

void fill_state(std::int64_t state, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = state_value(state, i);
}

/// 16 pages in eight runs.
Snapshot runs() {
  Snapshot s = example();
  s.layers = 64;
  s.head_dim = 512;  // 4 MiB a page: two a run
  s.page_tokens = 16;
  s.tree.segments = {{.tokens = 15 * 16 + 1, .computed = 15 * 16 + 1}};
  s.tree.tokens.assign(15 * 16 + 1, 1);
  s.tree.tips = {0};
  s.branches.resize(1);
  return s;
}

class SnapshotFileTest : public ::testing::Test {
 protected:
  std::filesystem::path save(const Snapshot& snapshot) {
    const auto path = folder_.path() / "snapshot";
    write_snapshot(
        path, snapshot, *pool_,
        [](std::int64_t page, std::span<std::byte> out) {
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_of(page, i);
        },
        fill_state);
    return path;
  }
  std::string bytes_of(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Reads all of it; throws what reading throws.
  std::int64_t read(const std::filesystem::path& path) {
    const SnapshotReader reader(path);
    std::atomic<std::int64_t> right = 0;
    reader.read_pages(*pool_, [&](std::int64_t page, std::span<const std::byte> in) {
      bool same = true;
      for (std::size_t i = 0; i < in.size(); ++i) same = same && in[i] == byte_of(page, i);
      right += same ? 1 : 0;
    });
    reader.read_states([&](std::int64_t state, std::span<const float> in) {
      bool same = std::ssize(in) == reader.snapshot().states.values_of(state);
      for (std::size_t i = 0; i < in.size(); ++i) same = same && in[i] == state_value(state, i);
      right += same ? 1 : 0;
    });
    return right;
  }
  /// Why a header that says this is refused.
  std::string refusal(const Snapshot& snapshot) {
    return error_of([&] { parse_snapshot(encode_snapshot(snapshot), version_of(snapshot), "x"); });
  }

  TempFolder folder_;
  std::optional<ThreadPool> pool_{2};
};

TEST_F(SnapshotFileTest, IsOfTheVersionBeforeSaltsWhereItHasNone) {
  Snapshot s = example();
  const std::string without = bytes_of(save(s));
  EXPECT_EQ(without[8], 5);
  s.tree.sources = {{.tokens = {1, 2}, .moved = {}}, {.tokens = {3}, .moved = {}, .salt = 4}};
  EXPECT_EQ(bytes_of(save(s))[8], 6);
  s = example();
  s.tree.segments.push_back({.parent = TreeImage::kRoot, .tokens = 1, .salt = ~std::uint64_t{0}});
  s.tree.tokens.push_back(7);
  s.tree.tips[2] = 4;
  s.branches[2].prompt_length = 1;
  s.tree.sources = {{.tokens = {1, 2}, .moved = {}}, {.tokens = {3}, .moved = {}, .salt = 4}};
  const SnapshotReader reader(save(s));
  const TreeImage& tree = reader.snapshot().tree;
  EXPECT_EQ(tree.segments[0].salt, 0u);
  EXPECT_EQ(tree.segments[4].salt, ~std::uint64_t{0});
  EXPECT_EQ(tree.tokens, s.tree.tokens);
  EXPECT_EQ(tree.sources[0].salt, 0u);
  EXPECT_EQ(tree.sources[1].salt, 4u);
  EXPECT_EQ(tree.sources[1].tokens, (std::vector<Token>{3}));
  s.tree.segments[4].salt = 0;
  s.tree.sources.clear();
  EXPECT_EQ(bytes_of(save(s))[8], 5);
}

TEST_F(SnapshotFileTest, GivesBackWhatWasWritten) {
  const Snapshot s = example();
  const auto path = save(s);
  const SnapshotReader reader(path);
  const Snapshot& r = reader.snapshot();
  EXPECT_EQ(r.model, s.model);
  EXPECT_EQ(r.model_text, s.model_text);
  EXPECT_EQ(r.numerics_key, s.numerics_key);
  EXPECT_EQ(r.vocab, s.vocab);
  EXPECT_EQ(r.page_bytes(), 2 * 2 * 4 * 8 * 4);
  EXPECT_EQ(r.session.seed, 7u);
  EXPECT_EQ(r.session.budget_tokens, 100);
  EXPECT_EQ(r.session.budget_ms, 2.5);
  EXPECT_EQ(r.session.spent_ms, 0.5);
  EXPECT_EQ(r.session.next_id, 9u);
  EXPECT_EQ(r.session.stream, 6u);
  ASSERT_EQ(r.session.prompts.size(), 2u);
  EXPECT_EQ(r.session.prompts[0].hash, 17u);
  EXPECT_EQ(r.session.prompts[0].count, 2u);
  EXPECT_EQ(r.session.counters, s.session.counters);
  EXPECT_EQ(r.tree.tokens, s.tree.tokens);
  EXPECT_EQ(r.tree.tips, s.tree.tips);
  ASSERT_EQ(r.tree.segments.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(r.tree.segments[i].parent, s.tree.segments[i].parent);
    EXPECT_EQ(r.tree.segments[i].tokens, s.tree.segments[i].tokens);
    EXPECT_EQ(r.tree.segments[i].computed, s.tree.segments[i].computed);
    EXPECT_EQ(r.tree.segments[i].shares_head, s.tree.segments[i].shares_head);
  }
  ASSERT_EQ(r.branches.size(), 3u);
  EXPECT_EQ(r.branches[0].id, 3u);
  EXPECT_EQ(r.branches[0].parent, 1u);
  EXPECT_EQ(r.branches[0].stream, 42u);
  EXPECT_EQ(r.branches[0].forks_made, 2u);
  EXPECT_EQ(r.branches[0].prompt_length, 11);
  EXPECT_EQ(r.branches[0].independent_tokens, 4);
  EXPECT_EQ(r.branches[0].logprob, -1.5);
  EXPECT_EQ(r.branches[0].priority, -4);
  ASSERT_EQ(r.constraints.size(), 2u);
  EXPECT_EQ(r.constraints[1].kind, 1);
  EXPECT_EQ(r.constraints[1].text, "b+");
  ASSERT_EQ(r.branches[0].spans.size(), 2u);
  EXPECT_EQ(r.branches[0].spans[0].begin, 4);
  EXPECT_EQ(r.branches[0].spans[0].constraint, 1);
  EXPECT_EQ(r.branches[0].spans[1].constraint, -1);
  EXPECT_EQ(r.branches[0].finish, 2);
  // Trunk: pages 0 and 1 (the first across the cut); a child from 11 on: its own copy of page 1.
  EXPECT_EQ(reader.pages(), 3);
  EXPECT_EQ(read(path), 3);
  EXPECT_EQ(std::filesystem::file_size(path) % 4096, 3u * 512 + 4 * 8);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "snapshot.partial"));
}

TEST_F(SnapshotFileTest, GivesBackStates) {
  const Snapshot s = with_states();
  const auto path = save(s);
  EXPECT_EQ(bytes_of(path)[8], 7);
  const SnapshotReader reader(path);
  EXPECT_EQ(reader.snapshot().states.anchors, s.states.anchors);
  EXPECT_EQ(reader.snapshot().states.journals, s.states.journals);
  EXPECT_EQ(reader.pages(), 3);
  EXPECT_EQ(read(path), 3 + 6);
  const std::vector<std::byte> bytes = snapshot_in_memory(
      s, *pool_,
      [](std::int64_t page, std::span<std::byte> out) {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_of(page, i);
      },
      fill_state);
  const std::string file = bytes_of(path);
  ASSERT_EQ(bytes.size(), file.size());
  EXPECT_EQ(std::memcmp(bytes.data(), file.data(), file.size()), 0);
}

TEST_F(SnapshotFileTest, GivesBackLayersOfTwoSizes) {
  Snapshot s = with_states();
  s.wide = {3, 2, 6};
  EXPECT_EQ(s.page_bytes(), 2 * 8 * (2 * 1 * 4 + 3 * 2 * 6) * 4);
  const auto path = save(s);
  EXPECT_EQ(bytes_of(path)[8], 8);
  EXPECT_EQ(read(path), 3 + 6);
  const Snapshot::Wide wide = SnapshotReader(path).snapshot().wide;
  EXPECT_EQ(std::vector({wide.layers, wide.kv_heads, wide.head_dim}),
            std::vector<std::int64_t>({3, 2, 6}));
  s.wide.head_dim = 0;
  EXPECT_ERROR(read(save(s)), "their head_dim is 0; expected 1 to 16384");
}

TEST_F(SnapshotFileTest, GivesBackPagesWhoseValuesAreKeys) {
  Snapshot s = with_states();
  s.values_are_keys = true;
  EXPECT_EQ(s.page_bytes(), 8 * 2 * 1 * 4 * 4);
  const auto path = save(s);
  EXPECT_EQ(bytes_of(path)[8], 9);
  EXPECT_EQ(read(path), 3 + 6);
  EXPECT_TRUE(SnapshotReader(path).snapshot().values_are_keys);
  // As an older version it has pages of half their size, and something behind its fields.
  std::string older = bytes_of(path);
  older[8] = 8;
  seal_snapshot(std::as_writable_bytes(std::span(older)));
  EXPECT_ERROR(SnapshotReader(std::as_bytes(std::span(older))),
               "something follows the last record");
}

TEST_F(SnapshotFileTest, EveryByteOfStatesCounts) {
  const std::string whole = bytes_of(save(with_states()));
  const std::size_t states =
      whole.size() - 8 * (3 + 2 + 1) - static_cast<std::size_t>(with_states().states.size_bytes());
  for (std::size_t at = states; at < whole.size(); at += at + 80 < whole.size() ? 50021 : 1) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    EXPECT_ERROR(read(folder_.write("flipped", bytes)), "is damaged");
  }
  EXPECT_ERROR(read(folder_.write("cut", whole.substr(0, whole.size() - 4))), "bytes long");
  std::string other = whole;  // an old version has none
  other[8] = 6;
  seal_snapshot(std::as_writable_bytes(std::span(other)));
  EXPECT_ERROR(read(folder_.write("other", other)), "bytes of states");
}

TEST_F(SnapshotFileTest, StatesThatAreNoneAreRefused) {
  const auto expect_refused = [&](auto change, const std::string& part) {
    Snapshot s = with_states();
    change(s.states);
    EXPECT_NE(refusal(s).find(part), std::string::npos) << refusal(s);
  };
  using States = Snapshot::States;
  EXPECT_EQ(refusal(with_states()), "");
  expect_refused([](States& s) { s.anchors[1] = kStatePages; }, "state behind page 2");  // not full
  expect_refused([](States& s) { s.anchors[1] = 3; }, "state behind page 3");
  expect_refused([](States& s) { s.anchors[0] = -1; }, "state behind page -1");
  expect_refused([](States& s) { s.anchors[1] = 0; }, "state behind page 0");
  expect_refused([](States& s) { s.journals[3] = 18; }, "kept of slot 18");
  expect_refused([](States& s) { s.journals[3] = std::int64_t{1} << 62; }, "kept of slot 46");
  expect_refused([](States& s) { s.journals[0] = -8; }, "kept of slot -8");
  expect_refused([](States& s) { s.journals[1] = 2; }, "kept of slot 2;");
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    expect_refused([&](States& s) { s.layers = size; }, "layers of");
    expect_refused([&](States& s) { s.anchor_values = size; }, "layers of");
    expect_refused([&](States& s) { s.journal_values = size; }, "layers of");
  }
  // Other sizes than the file has bytes for.
  std::string bytes = bytes_of(save(with_states()));
  const std::int64_t values = (1 << 16) + 1;
  const auto at = bytes.find(std::string(reinterpret_cast<const char*>(&values), sizeof values));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 2;
  seal_snapshot(std::as_writable_bytes(std::span(bytes)));
  EXPECT_ERROR(read(folder_.write("wider", bytes)), "bytes of states; expected");
}

TEST_F(SnapshotFileTest, ManyRunsOfPages) {
  const Snapshot s = runs();
  const auto path = save(s);
  EXPECT_EQ(read(path), 16);
  // Damage in a page names the first page that is.
  std::string bytes = bytes_of(path);
  const auto page = static_cast<std::size_t>(s.page_bytes());
  bytes[4096 + 9 * page + 77] ^= 1;
  bytes[4096 + 13 * page] ^= 1;
  EXPECT_ERROR(read(folder_.write("damaged", bytes)), "the checksum of page 9 of 16");
}

TEST_F(SnapshotFileTest, NeedsNoThreadThatTheSystemRefuses) {
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0777), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pool_.emplace(1);
    const rlimit none{0, 0};
    bool right = ::setrlimit(RLIMIT_NPROC, &none) == 0;
    if (::geteuid() == 0) right = right && ::setuid(65534) == 0;  // root is never refused one
    try {
      std::thread([] {}).join();
      right = false;
    } catch (const std::system_error&) {
    }
    _exit(right && read(save(runs())) == 16 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(SnapshotFileTest, EveryByteCounts) {
  const std::string whole = bytes_of(save(example()));
  const auto path = folder_.write("flipped", whole);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
  };
  for (std::size_t at = 0; at < whole.size(); at += at < 800 || at > 4000 ? 1 : 13) {
    put(at, static_cast<char>(whole[at] ^ 0x10));
    EXPECT_ERROR(read(path), "flipped: ");
    put(at, whole[at]);
  }
  EXPECT_EQ(read(path), 3);
}

TEST_F(SnapshotFileTest, EveryLengthButTheRightOneIsRefused) {
  const std::string whole = bytes_of(save(example()));
  const auto path = folder_.write("cut", whole);
  for (std::size_t size = whole.size() - 1; size > 0; --size) {
    std::filesystem::resize_file(path, size);
    EXPECT_ERROR(read(path), "bytes long");
  }
  EXPECT_ERROR(read(folder_.write("longer", whole + '\0')), "bytes long");
}

TEST_F(SnapshotFileTest, TreesThatAreNoneAreRefused) {
  const auto changed = [&](auto change) {
    Snapshot s = example();
    change(s);
    std::string error = refusal(s);
    EXPECT_NE(error, "");
    return error;
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  using S = Snapshot;
  contains(changed([](S& s) { s.tree.segments[1].parent = 1; }), "parent of segment 1 is 1");
  contains(changed([](S& s) { s.tree.segments[1].parent = -2; }), "parent of segment 1 is -2");
  contains(changed([](S& s) { s.tree.segments[3].tokens = 2; }), "length of segment 3 is 2");
  contains(changed([](S& s) { s.tree.tokens.push_back(1); }), "belong to no segment");
  contains(changed([](S& s) { s.tree.segments[2].computed = 4; }), "computed tokens of segment 2");
  contains(changed([](S& s) { s.tree.segments[1].computed = 5; }), "not all of its parent's");
  contains(changed([](S& s) { s.tree.segments[3].shares_head = true; }),
           "shared, but with nothing");
  contains(changed([](S& s) { s.tree.tips[0] = 4; }), "ends with segment 4");
  contains(changed([](S& s) { s.tree.tips[1] = 2; }), "no branch needs segment 3");
  contains(changed([](S& s) { s.tree.tokens[3] = 100; }), "a token id is 100");
  contains(changed([](S& s) { s.branches.pop_back(); }), "2 branches; expected 3");
  contains(changed([](S& s) { s.branches[1].id = 3; }), "the same id");
  contains(changed([](S& s) { s.branches[1].id = 9; }), "id is 9; expected 1 to 8");
  contains(changed([](S& s) { s.branches[2].prompt_length = 6; }), "prompt's length is 6");
  contains(changed([](S& s) { s.branches[2].finish = 8; }), "finish is 8");
  contains(changed([](S& s) { s.branches[0].spans = {{0, 2}}; }), "constraint is 2");
  contains(changed([](S& s) { s.branches[0].spans = {{2, 0}, {1, -1}}; }), "constraint is 1; exp");
  contains(changed([](S& s) { s.branches[0].spans = {{99, 0}}; }), "constraint is 99");
  contains(changed([](S& s) { s.constraints[1].kind = 4; }), "kind is 4");
  contains(changed([](S& s) { s.branches[2].logprob = NAN; }), "NaN");
  contains(changed([](S& s) { s.session.counters[1] = -1; }), "a counter is -1");
  contains(changed([](S& s) { s.session.spent_ms = INFINITY; }), "a time is");
  contains(changed([](S& s) { s.vocab = 0; }), "vocab is 0");
}

TEST_F(SnapshotFileTest, HugeNumbersAskForNoMemory) {
  const std::string whole = bytes_of(save(example()));
  const auto path = folder_.write("huge", whole);
  const auto with = [&](std::size_t at, std::uint64_t value) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    seal_snapshot(std::as_writable_bytes(std::span(bytes)));
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << bytes;
    return path;
  };
  for (const std::size_t field : {16, 24, 32}) {  // sizes in the preamble
    for (const std::uint64_t value : {std::uint64_t{1} << 29, std::uint64_t{1} << 40,
                                      std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
      EXPECT_ERROR(read(with(field, value)), "huge: ");
    }
  }
  for (std::size_t at = 64; at < 800; ++at) {  // anything may be a count
    with(at, std::uint64_t{1} << 61);
    error_of([&] { read(path); });
  }
}

/// What comes of reading a snapshot that is in memory: "", or the Error.
std::string error_of_reading(std::span<const std::byte> bytes, const ThreadPool& pool) {
  return error_of([&] {
    SnapshotReader(bytes).read_pages(pool, [](std::int64_t, std::span<const std::byte>) {});
  });
}

TEST_F(SnapshotFileTest, InMemoryTheBytesAreThoseOfTheFile) {
  for (const std::int64_t layers : {2, 4096}) {  // one run of pages, and several
    Snapshot s = example();
    s.layers = layers;
    const std::string file = bytes_of(save(s));
    const std::vector<std::byte> bytes =
        snapshot_in_memory(s, *pool_, [](std::int64_t page, std::span<std::byte> out) {
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_of(page, i);
        });
    ASSERT_EQ(bytes.size(), file.size());
    EXPECT_EQ(std::memcmp(bytes.data(), file.data(), file.size()), 0);
    std::vector<std::byte> moved(bytes.size() + 1);  // at an odd address
    std::ranges::copy(bytes, moved.begin() + 1);
    const SnapshotReader reader(std::span<const std::byte>(moved).subspan(1));
    EXPECT_EQ(reader.size(), std::ssize(bytes));
    EXPECT_EQ(reader.snapshot().tree.tokens, s.tree.tokens);
    std::int64_t right = 0;
    reader.read_pages(ThreadPool(1), [&](std::int64_t page, std::span<const std::byte> in) {
      bool same = true;
      for (std::size_t i = 0; i < in.size(); ++i) same = same && in[i] == byte_of(page, i);
      right += same ? 1 : 0;
    });
    EXPECT_EQ(right, 3);
  }
}

TEST_F(SnapshotFileTest, InMemoryEveryByteCountsAndEveryLength) {
  std::vector<std::byte> bytes =
      snapshot_in_memory(example(), *pool_, [](std::int64_t page, std::span<std::byte> out) {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_of(page, i);
      });
  const std::string named = "snapshot in memory: ";
  for (std::size_t at = 0; at < bytes.size(); at += at < 800 || at > 4000 ? 1 : 13) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_EQ(error_of_reading(bytes, *pool_).substr(0, named.size()), named) << at;
    bytes[at] ^= std::byte{0x10};
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string error = error_of_reading(std::span(bytes).first(size), *pool_);
    EXPECT_NE(error.find("bytes long"), std::string::npos) << error;
    EXPECT_EQ(error.substr(0, named.size()), named);
  }
  EXPECT_EQ(error_of_reading(bytes, *pool_), "");
}

TEST_F(SnapshotFileTest, AFailedWriteLeavesTheOldFileAlone) {
  const auto path = save(example());
  const std::string before = bytes_of(path);
  Snapshot s = example();
  s.session.seed = 8;
  EXPECT_ANY_THROW(write_snapshot(path, s, ThreadPool(1), [](std::int64_t, std::span<std::byte>) {
    throw std::runtime_error("a test");
  }));
  EXPECT_EQ(bytes_of(path), before);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "snapshot.partial"));
}

TEST_F(SnapshotFileTest, NothingThatIsNoFileIsReplaced) {
  const auto path = folder_.path() / "snapshot";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_ERROR(save(example()), "snapshot: is not a regular file; expected one, or none");
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "snapshot.partial"));
}

}  // namespace
}  // namespace dendrite::test
