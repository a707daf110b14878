#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace dendrite {

/// A whole file mapped read-only; unmapped with the object. The file must not be truncated while it
/// is mapped: touching a page that is gone kills the process (SIGBUS), as with any mapping.
class MappedFile {
 public:
  /// Throws Error naming the path: missing, a directory, empty, not a regular file, or the system's
  /// own words.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  std::int64_t size_bytes() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }

  /// Reads [offset, offset + count) into the page cache ahead of use, on the calling thread. Advice
  /// only: never fails. Does nothing for bytes that are cached already.
  void read_ahead(std::int64_t offset, std::int64_t count) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// Reads whole files into the page cache and maps them, in their order, with `threads` readers.
void read_ahead(std::span<const MappedFile* const> files, int threads);

}  // namespace dendrite
