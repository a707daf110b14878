// A snapshot on its way to a file, which is replaced as a whole or not at all.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <future>
#include <memory>
#include <system_error>
#include <utility>

#include "dendrite/error.h"
#include "io/output_file.h"
#include "io/snapshot_bytes.h"

namespace dendrite {
namespace {

/// FILE.partial, locked by this process. Removed with the object unless it became the file.
class PartialFile {
 public:
  explicit PartialFile(const std::filesystem::path& file) : target_(file) {
    // Looked at before anything is made: a name taken over a device would take the device away.
    struct stat there {};
    if (::stat(file.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
      throw Error(file.string() + ": is not a regular file; expected one, or none");
    }
    for (;;) {
      file_ = std::make_unique<OutputFile>(file.string() + ".partial", O_RDWR | O_CREAT);
      if (::flock(file_->fd(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) file_->fail("cannot lock");
        throw Error(file_->path() +
                    ": another save to this file is under way; expected one at a "
                    "time");
      }
      // Between open and lock another saver may have made it the target, or removed it.
      struct stat ours {
      }, named{};
      if (::fstat(file_->fd(), &ours) != 0) file_->fail("cannot look at it");
      if (!S_ISREG(ours.st_mode)) {
        throw Error(file_->path() + ": is not a regular file; expected one, or none");
      }
      const bool is_there = ::stat(file_->path().c_str(), &named) == 0;
      if (is_there && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) break;
    }
    armed_ = true;
    if (::ftruncate(file_->fd(), 0) != 0) file_->fail("cannot be emptied");
  }
  ~PartialFile() {
    if (armed_) ::unlink(file_->path().c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const OutputFile& file() const { return *file_; }

  /// Puts all bytes on the disk, then the name.
  void become_target() {
    file_->bring_to_disk();
    if (::rename(file_->path().c_str(), target_.c_str()) != 0) {
      throw Error(target_.string() + ": cannot be replaced: " + system_text(errno));
    }
    armed_ = false;
    bring_folder_to_disk(target_.parent_path());
  }

 private:
  std::filesystem::path target_;
  std::unique_ptr<OutputFile> file_;
  bool armed_ = false;
};

/// A second way into a file that is written: past the page cache, so that a snapshot takes no
/// memory from what is in there, and no time for copies. (Reading is faster through it: the system
/// reads ahead while pages are checked and imported.) What cannot go that way (a file system
/// without it, bytes that lie across its blocks) goes through the cache.
class DirectFile {
 public:
  explicit DirectFile(const std::string& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC)) {}
  ~DirectFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Writes from the front as far as it goes, and returns how far; the ordinary way goes on from
  /// there. Requires: the bytes' address is a multiple of kSnapshotAlign.
  std::int64_t write(std::int64_t offset, std::span<const std::byte> bytes) const {
    std::int64_t done = 0;
    if (fd_ < 0 || offset % kSnapshotAlign != 0) return done;
    while (std::ssize(bytes) - done >= kSnapshotAlign) {
      const std::int64_t count = (std::ssize(bytes) - done) / kSnapshotAlign * kSnapshotAlign;
      const ssize_t written =
          ::pwrite(fd_, bytes.data() + done, static_cast<std::size_t>(count), offset + done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;
      done += written;
      if (written % kSnapshotAlign != 0) break;
    }
    return done;
  }

 private:
  int fd_;
};

/// Writes runs while later ones are filled.
class FileSink final : public SnapshotSink {
 public:
  explicit FileSink(const std::filesystem::path& file)
      : partial_(file), direct_(partial_.file().path()) {}

  const std::string& name() const override { return partial_.file().path(); }
  void begin(std::int64_t /*size_bytes*/) override {}
  std::span<std::byte> room(std::int64_t size_bytes) override {
    Slot& slot = next();
    if (slot.written.valid()) slot.written.get();
    slot.bytes = slot.buffer.room(size_bytes);
    return slot.bytes;
  }
  void put() override {
    Slot& slot = next();
    const std::span<const std::byte> bytes = slot.bytes;
    try {
      slot.written =
          std::async(std::launch::async, [this, bytes, offset = offset_] { write(offset, bytes); });
    } catch (const std::system_error&) {  // no thread to spare
      write(offset_, bytes);
    }
    offset_ += std::ssize(bytes);
    ++runs_;
  }
  void finish() override {
    for (Slot& slot : slots_) {
      if (slot.written.valid()) slot.written.get();
    }
    partial_.become_target();
  }

 private:
  struct Slot {
    RunBuffer buffer;
    std::span<std::byte> bytes;
    std::future<void> written{};  // waits when it is destroyed, before the buffer is
  };
  Slot& next() { return slots_[static_cast<std::size_t>(runs_ % kRunSlots)]; }

  void write(std::int64_t offset, std::span<const std::byte> bytes) const {
    const std::int64_t done = direct_.write(offset, bytes);
    partial_.file().write_at(offset + done, bytes.subspan(static_cast<std::size_t>(done)));
    // Where it went through the cache: the disk starts now, not when all has been written.
    ::sync_file_range(partial_.file().fd(), offset + done, std::ssize(bytes) - done,
                      SYNC_FILE_RANGE_WRITE);
  }

  PartialFile partial_;
  DirectFile direct_;
  std::int64_t offset_ = 0;
  std::int64_t runs_ = 0;
  std::array<Slot, kRunSlots> slots_;  // last: their writes end before the files go
};

}  // namespace

std::unique_ptr<SnapshotSink> make_file_sink(const std::filesystem::path& file) {
  return std::make_unique<FileSink>(file);
}

}  // namespace dendrite
