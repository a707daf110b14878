// A snapshot that comes from a file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "dendrite/error.h"
#include "io/snapshot_bytes.h"

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
  std::counting_semaphore<> free_{kRunSlots};
  std::counting_semaphore<> read_{0};
  std::exception_ptr error_;  // written before read_ is released
  std::jthread thread_;
};

class FileSource final : public SnapshotSource {
 public:
  explicit FileSource(const std::filesystem::path& file) : path_(file.string()) {
    // O_NONBLOCK: opening a pipe must not wait for a writer; it means nothing for regular files.
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) throw Error(path_ + ": cannot open: " + system_text(errno));
    struct stat status {};
    const bool is_known = ::fstat(fd_, &status) == 0;
    const int error = errno;
    if (is_known && S_ISREG(status.st_mode)) {
      size_ = status.st_size;
      return;
    }
    ::close(fd_);
    if (is_known) throw Error(path_ + ": is not a regular file");
    throw Error(path_ + ": cannot read its size: " + system_text(error));
  }
  ~FileSource() override { ::close(fd_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  const std::string& name() const override { return path_; }
  std::int64_t size() const override { return size_; }

  void read(std::int64_t offset, std::span<std::byte> out) const override {
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

  void stream(std::int64_t offset, std::int64_t size_bytes, std::int64_t part_bytes,
              const TakePart& take) const override {
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
    const std::int64_t parts = (size_bytes + part_bytes - 1) / part_bytes;
    std::array<RunBuffer, kRunSlots> buffers;
    const auto bytes_of = [&](std::int64_t part) {
      return buffers[static_cast<std::size_t>(part % kRunSlots)].room(
          std::min(part_bytes, size_bytes - part * part_bytes));
    };
    const auto read_part = [&](std::int64_t part) {
      read(offset + part * part_bytes, bytes_of(part));
    };
    // One part has nothing to be read ahead of; and where the system has no thread to spare, parts
    // are read when they are due.
    std::optional<ReadAhead> reader;
    if (parts > 1) {
      try {
        reader.emplace(parts, read_part);
      } catch (const std::system_error&) {
      }
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      if (reader) {
        reader->wait();
      } else {
        read_part(part);
      }
      take(part, bytes_of(part));
      if (reader) reader->give_back();
    }
  }

 private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<SnapshotSource> make_file_source(const std::filesystem::path& file) {
  return std::make_unique<FileSource>(file);
}

}  // namespace dendrite
