#include <algorithm>
#include <cstring>

#include "core/hash.h"
#include "dendrite/error.h"
#include "io/snapshot_bytes.h"
#include "io/snapshot_file.h"

namespace dendrite {
namespace {

class MemorySink final : public SnapshotSink {
 public:
  explicit MemorySink(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  void begin(std::int64_t size_bytes) override {
    bytes_.resize(static_cast<std::size_t>(size_bytes));
  }
  std::span<std::byte> room(std::int64_t size_bytes) override {
    room_ = static_cast<std::size_t>(size_bytes);
    return std::span(bytes_).subspan(written_, room_);
  }
  void put() override { written_ += room_; }
  void finish() override {}

 private:
  const std::string name_ = kSnapshotInMemory;
  std::vector<std::byte>& bytes_;
  std::size_t written_ = 0;
  std::size_t room_ = 0;
};

void put(SnapshotSink& sink, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, sink.room(std::ssize(bytes)).begin());
  sink.put();
}

/// Preamble and header, up to the pages.
std::vector<std::byte> encode_head(const Snapshot& snapshot, std::int64_t pages,
                                   const std::string& name) {
  std::vector<std::byte> head = encode_snapshot(snapshot);
  head.insert(head.begin(), sizeof(SnapshotPreamble), std::byte{0});
  const auto head_bytes = (std::ssize(head) + kSnapshotAlign - 1) / kSnapshotAlign * kSnapshotAlign;
  head.resize(static_cast<std::size_t>(head_bytes));
  if (head_bytes - kPreambleBytes > kMaxMetaBytes) {
    throw Error(name + ": would have " + std::to_string(head_bytes) +
                " bytes of tokens and records; expected at most " + std::to_string(kMaxMetaBytes));
  }
  SnapshotPreamble preamble{};
  std::memcpy(preamble.magic, kSnapshotMagic, sizeof kSnapshotMagic);
  preamble.version = version_of(snapshot);
  preamble.meta_bytes = static_cast<std::uint64_t>(head_bytes - kPreambleBytes);
  preamble.page_bytes = static_cast<std::uint64_t>(snapshot.page_bytes());
  preamble.pages = static_cast<std::uint64_t>(pages);
  preamble.state_bytes = static_cast<std::uint64_t>(snapshot.states.size_bytes());
  preamble.meta_hash = hash_bytes(std::span(head).subspan(sizeof(SnapshotPreamble)));
  preamble.hash = hash_of(preamble);
  std::memcpy(head.data(), &preamble, sizeof preamble);
  return head;
}

/// Adds the checksums of their blocks.
void put_states(SnapshotSink& sink, const Snapshot::States& states, const FillState& fill,
                std::vector<std::uint64_t>& checksums) {
  std::vector<std::byte> block;
  block.reserve(kStateBlock);
  const auto put_block = [&] {
    checksums.push_back(hash_bytes(block));
    put(sink, block);
    block.clear();
  };
  std::vector<float> values;
  for (std::int64_t i = 0; i < states.count(); ++i) {
    values.resize(static_cast<std::size_t>(states.values_of(i)));
    fill(i, values);
    for (auto bytes = std::as_bytes(std::span(values)); !bytes.empty();) {
      const std::size_t count = std::min<std::size_t>(kStateBlock - block.size(), bytes.size());
      block.insert(block.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (block.size() == kStateBlock) put_block();
    }
  }
  if (!block.empty()) put_block();
}

/// The number of bytes.
std::int64_t write_to(SnapshotSink& sink, const Snapshot& snapshot, const ThreadPool& pool,
                      const FillPage& fill, const FillState& fill_state) {
  const std::int64_t page_bytes = snapshot.page_bytes();
  const std::int64_t pages = page_count(snapshot.tree, snapshot.page_tokens);
  const std::vector<std::byte> head = encode_head(snapshot, pages, sink.name());
  const std::int64_t state_bytes = snapshot.states.size_bytes();
  std::vector<std::uint64_t> checksums(static_cast<std::size_t>(pages));
  const std::int64_t size_bytes = std::ssize(head) + pages * page_bytes + state_bytes +
                                  8 * (pages + state_blocks(state_bytes) + 1);
  sink.begin(size_bytes);
  put(sink, head);
  const std::int64_t run_pages = pages_of_run(page_bytes);
  for (std::int64_t first = 0; first < pages; first += run_pages) {
    const std::int64_t count = std::min(run_pages, pages - first);
    const std::span<std::byte> run = sink.room(count * page_bytes);
    pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const std::span<std::byte> page = run.subspan(static_cast<std::size_t>(at * page_bytes),
                                                      static_cast<std::size_t>(page_bytes));
        fill(first + at, page);
        checksums[static_cast<std::size_t>(first + at)] = hash_bytes(page);
      }
    });
    sink.put();
  }
  put_states(sink, snapshot.states, fill_state, checksums);
  checksums.push_back(hash_bytes(std::as_bytes(std::span(checksums))));
  put(sink, std::as_bytes(std::span(checksums)));
  sink.finish();
  return size_bytes;
}

}  // namespace

std::int64_t write_snapshot(const std::filesystem::path& file, const Snapshot& snapshot,
                            const ThreadPool& pool, const FillPage& fill,
                            const FillState& fill_state) {
  return write_to(*make_file_sink(file), snapshot, pool, fill, fill_state);
}

std::vector<std::byte> snapshot_in_memory(const Snapshot& snapshot, const ThreadPool& pool,
                                          const FillPage& fill, const FillState& fill_state) {
  std::vector<std::byte> bytes;
  MemorySink sink(bytes);
  write_to(sink, snapshot, pool, fill, fill_state);
  return bytes;
}

}  // namespace dendrite
