#include <algorithm>
#include <atomic>
#include <utility>

#include "core/hash.h"
#include "dendrite/error.h"
#include "io/snapshot_bytes.h"
#include "io/snapshot_file.h"

namespace dendrite {
namespace {

class MemorySource final : public SnapshotSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return std::ssize(bytes_); }
  void read(std::int64_t offset, std::span<std::byte> out) const override {
    std::ranges::copy(part(offset, std::ssize(out)), out.begin());
  }
  void stream(std::int64_t offset, std::int64_t size_bytes, std::int64_t part_bytes,
              const TakePart& take) const override {
    for (std::int64_t at = 0; at < size_bytes; at += part_bytes) {
      take(at / part_bytes, part(offset + at, std::min(part_bytes, size_bytes - at)));
    }
  }

 private:
  std::span<const std::byte> part(std::int64_t offset, std::int64_t size_bytes) const {
    return bytes_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size_bytes));
  }

  const std::string name_ = kSnapshotInMemory;
  std::span<const std::byte> bytes_;
};

}  // namespace

SnapshotReader::SnapshotReader(const std::filesystem::path& file)
    : SnapshotReader(make_file_source(file)) {}

SnapshotReader::SnapshotReader(std::span<const std::byte> bytes)
    : SnapshotReader(std::make_unique<MemorySource>(bytes)) {}

SnapshotReader::SnapshotReader(std::unique_ptr<SnapshotSource> source)
    : source_(std::move(source)) {
  if (source_->size() < kPreambleBytes) {
    throw Error(name() + ": is " + std::to_string(source_->size()) +
                " bytes long; a snapshot has at least " + std::to_string(kPreambleBytes));
  }
  SnapshotPreamble preamble{};
  source_->read(0, std::as_writable_bytes(std::span(&preamble, 1)));
  const SnapshotSizes sizes = check_preamble(preamble, source_->size(), name());
  std::vector<std::byte> meta(preamble.meta_bytes);
  source_->read(kPreambleBytes, meta);
  if (const std::uint64_t hash = hash_bytes(meta); hash != preamble.meta_hash) {
    throw Error(name() + ": is damaged: the checksum of its header is " + hex(hash) +
                ", expected " + hex(preamble.meta_hash));
  }
  snapshot_ = parse_snapshot(meta, preamble.version, name());
  pages_ = page_count(snapshot_.tree, snapshot_.page_tokens);
  pages_offset_ = sizes.pages_offset;
  if (pages_ != sizes.pages || snapshot_.page_bytes() != sizes.page_bytes) {
    throw Error(name() + ": holds " + std::to_string(sizes.pages) + " pages of " +
                std::to_string(sizes.page_bytes) + " bytes; expected " + std::to_string(pages_) +
                " of " + std::to_string(snapshot_.page_bytes()) + ", which its tree needs");
  }
  if (snapshot_.states.size_bytes() != sizes.state_bytes) {
    throw Error(name() + ": holds " + std::to_string(sizes.state_bytes) +
                " bytes of states; expected " + std::to_string(snapshot_.states.size_bytes()) +
                ", those that its header names");
  }
}

SnapshotReader::SnapshotReader(SnapshotReader&&) noexcept = default;
SnapshotReader::~SnapshotReader() = default;

const std::string& SnapshotReader::name() const {
  return source_->name();
}

std::int64_t SnapshotReader::size() const {
  return source_->size();
}

std::vector<std::uint64_t> SnapshotReader::read_checksums() const {
  const std::int64_t state_bytes = snapshot_.states.size_bytes();
  std::vector<std::uint64_t> checksums(
      static_cast<std::size_t>(pages_ + state_blocks(state_bytes) + 1));
  source_->read(states_offset() + state_bytes, std::as_writable_bytes(std::span(checksums)));
  const std::uint64_t hash =
      hash_bytes(std::as_bytes(std::span(checksums).first(checksums.size() - 1)));
  if (hash != checksums.back()) {
    throw Error(name() + ": is damaged: the checksum of its list of checksums is " + hex(hash) +
                ", expected " + hex(checksums.back()));
  }
  return checksums;
}

void SnapshotReader::read_pages(const ThreadPool& pool, const TakePage& take) const {
  const std::vector<std::uint64_t> checksums = read_checksums();
  const std::int64_t page_bytes = snapshot_.page_bytes();
  const std::int64_t run_pages = pages_of_run(page_bytes);
  const auto take_run = [&](std::int64_t run, std::span<const std::byte> bytes) {
    const std::int64_t first = run * run_pages;
    std::atomic<std::int64_t> damaged = pages_;
    pool.parallel_for(std::ssize(bytes) / page_bytes, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const std::span<const std::byte> page = bytes.subspan(
            static_cast<std::size_t>(at * page_bytes), static_cast<std::size_t>(page_bytes));
        if (hash_bytes(page) == checksums[static_cast<std::size_t>(first + at)]) {
          take(first + at, page);
          continue;
        }
        std::int64_t seen = damaged;
        while (first + at < seen && !damaged.compare_exchange_weak(seen, first + at)) {
        }
      }
    });
    if (damaged < pages_) {
      throw Error(name() + ": is damaged: the checksum of page " + std::to_string(damaged) +
                  " of " + std::to_string(pages_) + " is not the one it was saved with");
    }
  };
  source_->stream(pages_offset_, pages_ * page_bytes, run_pages * page_bytes, take_run);
}

void SnapshotReader::read_states(const TakeState& take) const {
  const Snapshot::States& states = snapshot_.states;
  if (states.empty()) return;
  const std::vector<std::uint64_t> checksums = read_checksums();
  std::vector<float> values;
  std::size_t filled = 0;  // bytes of them
  std::int64_t i = 0;
  const auto take_block = [&](std::int64_t block, std::span<const std::byte> bytes) {
    if (hash_bytes(bytes) != checksums[static_cast<std::size_t>(pages_ + block)]) {
      throw Error(name() + ": is damaged: the checksum of block " + std::to_string(block) +
                  " of its states is not the one it was saved with");
    }
    while (!bytes.empty()) {
      values.resize(static_cast<std::size_t>(states.values_of(i)));
      const auto room = std::as_writable_bytes(std::span(values)).subspan(filled);
      const std::size_t count = std::min(room.size(), bytes.size());
      std::ranges::copy(bytes.first(count), room.begin());
      bytes = bytes.subspan(count);
      filled += count;
      if (count < room.size()) return;
      take(i++, values);
      filled = 0;
    }
  };
  source_->stream(states_offset(), states.size_bytes(), kStateBlock, take_block);
}

}  // namespace dendrite
