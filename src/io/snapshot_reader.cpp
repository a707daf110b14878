#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <exception>
#include <functional>
#include <semaphore>
#include <stop_token>
#include <thread>
#include <utility>

#include "core/hash.h"
#include "dendrite/error.h"
#include "io/snapshot_file.h"
#include "io/snapshot_format.h"
#include "io/snapshot_runs.h"

namespace dendrite {
namespace {

/// Reads runs into their slots, one after the other, on a thread of its own. One, because the
/// system reads ahead of a single reader: three side by side got 20 % less from the disk.
class ReadAhead {
 public:
  /// `read(i)` fills the slot of run i; it may throw.
  ReadAhead(std::int64_t runs, std::function<void(std::int64_t)> read)
      : thread_([this, runs, read = std::move(read)](const std::stop_token& stop) {
          for (std::int64_t i = 0; i < runs; ++i) {
            free_.acquire();
            if (stop.stop_requested()) return;
            try {
              read(i);
            } catch (...) {
              error_ = std::current_exception();
            }
            read_.release();
            if (error_ != nullptr) return;
          }
        }) {}
  ~ReadAhead() {
    thread_.request_stop();
    free_.release();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Until the next run is there. Throws what reading it threw.
  void wait() {
    read_.acquire();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  /// The oldest run's slot may be filled again.
  void give_back() { free_.release(); }

 private:
  std::counting_semaphore<> free_{SnapshotRuns::kSlots};
  std::counting_semaphore<> read_{0};
  std::exception_ptr error_;  // written before read_ is released
  std::jthread thread_;
};

}  // namespace

SnapshotReader::SnapshotReader(const std::filesystem::path& file) : path_(file.string()) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it means nothing for regular files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw Error(path_ + ": cannot open: " + system_text(errno));
  try {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) {
      throw Error(path_ + ": cannot read its size: " + system_text(errno));
    }
    if (!S_ISREG(status.st_mode)) throw Error(path_ + ": is not a regular file");
    if (status.st_size < kPreambleBytes) {
      throw Error(path_ + ": is " + std::to_string(status.st_size) +
                  " bytes long; a snapshot has at least " + std::to_string(kPreambleBytes));
    }
    SnapshotPreamble preamble{};
    read_at(0, std::as_writable_bytes(std::span(&preamble, 1)));
    const SnapshotSizes sizes = check_preamble(preamble, status.st_size, path_);
    std::vector<std::byte> meta(preamble.meta_bytes);
    read_at(kPreambleBytes, meta);
    if (const std::uint64_t hash = hash_bytes(meta); hash != preamble.meta_hash) {
      throw Error(path_ + ": is damaged: the checksum of its header is " + hex(hash) +
                  ", expected " + hex(preamble.meta_hash));
    }
    snapshot_ = parse_snapshot(meta, path_);
    pages_ = page_count(snapshot_.tree, snapshot_.page_tokens);
    pages_offset_ = sizes.pages_offset;
    if (pages_ != sizes.pages || snapshot_.page_bytes() != sizes.page_bytes) {
      throw Error(path_ + ": holds " + std::to_string(sizes.pages) + " pages of " +
                  std::to_string(sizes.page_bytes) + " bytes; expected " + std::to_string(pages_) +
                  " of " + std::to_string(snapshot_.page_bytes()) + ", which its tree needs");
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

SnapshotReader::~SnapshotReader() {
  ::close(fd_);
}

void SnapshotReader::read_at(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(path_ + ": cannot read: " + system_text(errno));
    if (got == 0) {
      throw Error(path_ + ": ends at byte " + std::to_string(offset) + "; expected " +
                  std::to_string(out.size()) + " more (it became shorter meanwhile)");
    }
    offset += got;
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::vector<std::uint64_t> SnapshotReader::read_checksums() const {
  std::vector<std::uint64_t> checksums(static_cast<std::size_t>(pages_) + 1);
  read_at(pages_offset_ + pages_ * snapshot_.page_bytes(),
          std::as_writable_bytes(std::span(checksums)));
  const std::uint64_t hash =
      hash_bytes(std::as_bytes(std::span(checksums).first(checksums.size() - 1)));
  if (hash != checksums.back()) {
    throw Error(path_ + ": is damaged: the checksum of its list of checksums is " + hex(hash) +
                ", expected " + hex(checksums.back()));
  }
  return checksums;
}

void SnapshotReader::read_pages(const ThreadPool& pool, const TakePage& take) const {
  const std::vector<std::uint64_t> checksums = read_checksums();
  const std::int64_t page_bytes = snapshot_.page_bytes();
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  SnapshotRuns runs(page_bytes, pages_);
  ReadAhead reader(runs.count(), [&](std::int64_t i) {
    read_at(pages_offset_ + i * runs.pages() * page_bytes, runs.bytes(i));
  });
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    reader.wait();
    const std::int64_t first = i * runs.pages();
    std::atomic<std::int64_t> damaged = pages_;
    pool.parallel_for(runs.pages_of(i), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const std::span<const std::byte> page = runs.page(i, at);
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
      throw Error(path_ + ": is damaged: the checksum of page " + std::to_string(damaged) + " of " +
                  std::to_string(pages_) + " is not the one it was saved with");
    }
    reader.give_back();
  }
}

}  // namespace dendrite
