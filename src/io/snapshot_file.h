#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/kv_format.h"
#include "core/parallel.h"
#include "core/tree_image.h"

namespace dendrite {

/// What a snapshot file holds beside the pages' bytes. The format: docs/formats/snapshot.md.
struct Snapshot {
  std::uint64_t model = 0;   // fingerprint of the model that computed it
  std::string model_text;    // the model in words, for messages
  std::string numerics_key;  // what else K and V depend on
  std::int64_t vocab = 0;    // tokens are below it
  std::int64_t layers = 0;   // of K and V, like the next ones
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  struct Wide {  // layers behind these whose heads have another size; 0 layers: there are none
    std::int64_t layers = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
  } wide;
  std::int64_t page_tokens = 0;
  KvFormat kv_format = KvFormat::kF32;
  bool values_are_keys = false;  // pages hold K alone

  TreeImage tree;

  struct Session {
    std::uint64_t seed = 0;
    std::uint64_t stream = 0;
    std::int64_t budget_tokens = 0;
    double budget_ms = 0;
    double spent_ms = 0;
    std::uint64_t next_id = 1;
    struct Prompt {
      std::uint64_t hash = 0;   // of its tokens
      std::uint64_t count = 0;  // how often it was given
    };
    std::vector<Prompt> prompts;
    std::vector<std::int64_t> counters;  // of its statistics, in an order that the engine knows
  } session;

  struct Branch {
    std::uint64_t id = 0;
    std::uint64_t parent = 0;
    std::uint64_t stream = 0;
    std::uint64_t forks_made = 0;
    std::int64_t prompt_length = 0;
    std::int64_t independent_tokens = 0;
    double logprob = 0;
    std::int32_t priority = 0;
    std::uint8_t finish = 0;
    /// What it was constrained by, from when on; the first one first.
    struct Span {
      static constexpr std::int64_t kFree = -1;
      std::int64_t begin = 0;           // tokens of the branch before it
      std::int64_t constraint = kFree;  // of `constraints`
    };
    std::vector<Span> spans{};
    /// How it was composed: parts up to `end`, see CompositionRecord.
    struct Part {
      std::int64_t end = 0;
      std::uint8_t kind = 0;
    };
    std::vector<Part> parts{};
    std::int64_t dropped = 0;
  };
  struct Constraint {
    std::uint8_t kind = 0;
    std::string text;
  };
  /// What recurrent layers keep of the pages' tokens; values in f32, as in a StateStore.
  struct States {
    std::int64_t layers = 0;
    std::int64_t anchor_values = 0;      // a layer
    std::int64_t journal_values = 0;     // a layer
    std::vector<std::int64_t> anchors;   // pages, behind which the state is that of an anchor
    std::vector<std::int64_t> journals;  // positions: page * page_tokens + slot

    bool empty() const { return anchors.empty() && journals.empty(); }
    /// Number `i`, of anchors and then of journals.
    bool is_anchor(std::int64_t i) const { return i < std::ssize(anchors); }
    std::int64_t values_of(std::int64_t i) const {
      return layers * (is_anchor(i) ? anchor_values : journal_values);
    }
    std::int64_t count() const { return std::ssize(anchors) + std::ssize(journals); }
    std::int64_t size_bytes() const {
      return 4 * layers *
             (std::ssize(anchors) * anchor_values + std::ssize(journals) * journal_values);
    }
  } states;
  std::vector<Constraint> constraints;  // of the branches, each once
  std::vector<Branch> branches;         // branches[i] ends with segment tree.tips[i]
  std::string attachment;               // of whoever saved it; means nothing to the engine

  std::int64_t page_bytes() const {
    return (values_are_keys ? 1 : 2) * page_tokens *
           (layers * kv_heads * vector_bytes(kv_format, head_dim) +
            wide.layers * wide.kv_heads * vector_bytes(kv_format, wide.head_dim));
  }
};

/// Fills one page's bytes. Called from several threads at once; must not throw.
using FillPage = std::function<void(std::int64_t page, std::span<std::byte> out)>;
/// Takes one page's bytes, which have been checked. Called from several threads at once; must not
/// throw.
using TakePage = std::function<void(std::int64_t page, std::span<const std::byte> in)>;

/// Fills or takes number `i` of Snapshot::states, anchors first, in order.
using FillState = std::function<void(std::int64_t i, std::span<float> out)>;
using TakeState = std::function<void(std::int64_t i, std::span<const float> in)>;

/// Writes a snapshot with the pages that its tree needs, in order, and returns its size. `file` is
/// replaced at once when all is on the disk, or not at all: the bytes go to FILE.partial, which is
/// locked, so that a second saver is refused. Pages are filled on `pool` while earlier ones are
/// written. Throws Error naming the file. Requires: problem_of(snapshot.tree) says nothing.
std::int64_t write_snapshot(const std::filesystem::path& file, const Snapshot& snapshot,
                            const ThreadPool& pool, const FillPage& fill,
                            const FillState& fill_state = {});
/// The same bytes in memory; pages are filled where they stay.
std::vector<std::byte> snapshot_in_memory(const Snapshot& snapshot, const ThreadPool& pool,
                                          const FillPage& fill, const FillState& fill_state = {});

class SnapshotSource;

/// Reads one, from a file or from memory. Its bytes are taken as hostile: nothing in them is
/// believed before it is checked, and memory is bounded by their number.
class SnapshotReader {
 public:
  /// Reads and checks everything but the pages' bytes. Throws Error naming the file, or "snapshot
  /// in memory", which stays the caller's and must not change.
  explicit SnapshotReader(const std::filesystem::path& file);
  explicit SnapshotReader(std::span<const std::byte> bytes);
  SnapshotReader(SnapshotReader&&) noexcept;
  ~SnapshotReader();

  const std::string& name() const;  // for messages
  std::int64_t size() const;        // bytes
  const Snapshot& snapshot() const { return snapshot_; }
  std::int64_t pages() const { return pages_; }

  /// Reads all pages, in order; each is checked on `pool` and then taken there, while later ones
  /// are read. Throws Error naming the file and the first page that is damaged; some pages have
  /// been taken by then.
  void read_pages(const ThreadPool& pool, const TakePage& take) const;
  /// Likewise all states, on the calling thread. Memory: one of them.
  void read_states(const TakeState& take) const;

 private:
  explicit SnapshotReader(std::unique_ptr<SnapshotSource> source);
  std::vector<std::uint64_t> read_checksums() const;

  std::unique_ptr<SnapshotSource> source_;
  Snapshot snapshot_;
  std::int64_t pages_ = 0;
  std::int64_t pages_offset_ = 0;
  std::int64_t states_offset() const { return pages_offset_ + pages_ * snapshot_.page_bytes(); }
};

/// The part of a file between preamble and pages: all of `snapshot`. For tests, too.
std::vector<std::byte> encode_snapshot(const Snapshot& snapshot);
/// Of the format, that it is written in.
std::uint32_t version_of(const Snapshot& snapshot);
/// What SnapshotReader makes of these bytes once their checksum is right. Throws Error naming
/// `path`.
Snapshot parse_snapshot(std::span<const std::byte> meta, std::uint32_t version,
                        const std::string& path);

/// Makes all checksums of a file's bytes right again where they were changed, as far as its sizes
/// make sense: for tests of hostile files.
void seal_snapshot(std::span<std::byte> file);

}  // namespace dendrite
