#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "io/snapshot_format.h"

// Where a snapshot's bytes go and where they come from: a file or memory. What they mean is
// snapshot_writer.cpp's and snapshot_reader.cpp's, alike for both. Internal to snapshot_*.cpp.
namespace dendrite {

/// Takes a snapshot's bytes from front to back. Nothing counts before finish().
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  virtual const std::string& name() const = 0;  // for messages
  /// Before anything else: so many bytes will come.
  virtual void begin(std::int64_t size_bytes) = 0;
  /// Room for the bytes that come next; they count with put().
  virtual std::span<std::byte> room(std::int64_t size_bytes) = 0;
  virtual void put() = 0;
  virtual void finish() = 0;
};

/// Gives a snapshot's bytes.
class SnapshotSource {
 public:
  using TakePart = std::function<void(std::int64_t part, std::span<const std::byte> bytes)>;

  virtual ~SnapshotSource() = default;
  virtual const std::string& name() const = 0;  // for messages
  virtual std::int64_t size() const = 0;
  /// Requires: they are within size().
  virtual void read(std::int64_t offset, std::span<std::byte> out) const = 0;
  /// Calls `take` for [offset, offset + size_bytes) in parts of so many bytes, the last one maybe
  /// shorter, in order. Bytes are valid during the call.
  virtual void stream(std::int64_t offset, std::int64_t size_bytes, std::int64_t part_bytes,
                      const TakePart& take) const = 0;
};

/// The file is opened, or refused, at once.
std::unique_ptr<SnapshotSink> make_file_sink(const std::filesystem::path& file);
std::unique_ptr<SnapshotSource> make_file_source(const std::filesystem::path& file);

/// What messages call a snapshot that is no file.
constexpr const char* kSnapshotInMemory = "snapshot in memory";

/// Bytes a read or write: large enough that a disk gives all it has.
constexpr std::int64_t kRunBytes = std::int64_t{8} << 20;
/// Pages that are filled or taken together.
constexpr std::int64_t pages_of_run(std::int64_t page_bytes) {
  return std::max<std::int64_t>(1, kRunBytes / page_bytes);
}
/// Runs that are in memory at a time: some on their way to or from the disk, while one is filled or
/// taken.
constexpr std::int64_t kRunSlots = 3;

/// Memory for a run, at an address that disks can be written from directly.
class RunBuffer {
 public:
  /// What was in it may be lost.
  std::span<std::byte> room(std::int64_t size_bytes) {
    if (size_bytes > capacity_) {
      capacity_ = (size_bytes + kSnapshotAlign - 1) / kSnapshotAlign * kSnapshotAlign;
      bytes_.reset(static_cast<std::byte*>(
          std::aligned_alloc(kSnapshotAlign, static_cast<std::size_t>(capacity_))));
      if (bytes_ == nullptr) throw std::bad_alloc();
    }
    return {bytes_.get(), static_cast<std::size_t>(size_bytes)};
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::int64_t capacity_ = 0;
};

}  // namespace dendrite
