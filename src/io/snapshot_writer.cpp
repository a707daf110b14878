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
  preamble.meta_hash = hash_bytes(std::span(head).subspan(sizeof(SnapshotPreamble)));
  preamble.hash = hash_of(preamble);
  std::memcpy(head.data(), &preamble, sizeof preamble);
  return head;
}

/// The number of bytes.
std::int64_t write_to(SnapshotSink& sink, const Snapshot& snapshot, const ThreadPool& pool,
                      const FillPage& fill) {
  const std::int64_t page_bytes = snapshot.page_bytes();
  const std::int64_t pages = page_count(snapshot.tree, snapshot.page_tokens);
  const std::vector<std::byte> head = encode_head(snapshot, pages, sink.name());
  std::vector<std::uint64_t> checksums(static_cast<std::size_t>(pages) + 1);
  const std::int64_t size_bytes = std::ssize(head) + pages * page_bytes + 8 * std::ssize(checksums);
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
  checksums.back() = hash_bytes(std::as_bytes(std::span(checksums).first(checksums.size() - 1)));
  put(sink, std::as_bytes(std::span(checksums)));
  sink.finish();
  return size_bytes;
}

}  // namespace

std::int64_t write_snapshot(const std::filesystem::path& file, const Snapshot& snapshot,
                            const ThreadPool& pool, const FillPage& fill) {
  return write_to(*make_file_sink(file), snapshot, pool, fill);
}

std::vector<std::byte> snapshot_in_memory(const Snapshot& snapshot, const ThreadPool& pool,
                                          const FillPage& fill) {
  std::vector<std::byte> bytes;
  MemorySink sink(bytes);
  write_to(sink, snapshot, pool, fill);
  return bytes;
}

}  // namespace dendrite
