#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "dendrite/error.h"

namespace dendrite {
namespace {

/// Closes a descriptor when the scope is left.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string system_text(int error) {
  return std::generic_category().message(error);
}

constexpr std::int64_t kPieceBytes = 8 << 20;

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it means nothing for regular files.
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw Error(path_ + ": cannot open: " + system_text(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0)
    throw Error(path_ + ": cannot read its size: " + system_text(errno));
  if (S_ISDIR(status.st_mode)) throw Error(path_ + ": is a directory, expected a file");
  if (!S_ISREG(status.st_mode)) throw Error(path_ + ": is not a regular file");
  if (status.st_size == 0) throw Error(path_ + ": is empty (0 bytes)");
  void* const address =
      ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) {
    throw Error(path_ + ": cannot map " + std::to_string(status.st_size) +
                " bytes: " + system_text(errno));
  }
  data_ = static_cast<const std::byte*>(address);
  size_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::read_ahead(std::int64_t offset, std::int64_t count) const {
  const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
  const std::int64_t begin = std::clamp<std::int64_t>(offset, 0, size_) / page * page;
  const std::int64_t end = std::clamp<std::int64_t>(offset + count, begin, size_);
  if (begin == end) return;
#ifdef MADV_POPULATE_READ  // Linux 5.14: reads the pages and maps them, all in one call
  if (::madvise(const_cast<std::byte*>(data_) + begin, static_cast<std::size_t>(end - begin),
                MADV_POPULATE_READ) == 0) {
    return;
  }
#endif
  for (std::int64_t at = begin; at < end; at += page) {
    static_cast<void>(*static_cast<const volatile std::byte*>(data_ + at));
  }
}

void read_ahead(std::span<const MappedFile* const> files, int threads) {
  struct Piece {
    const MappedFile* file;
    std::int64_t offset;
  };
  std::vector<Piece> pieces;
  for (const MappedFile* file : files) {
    for (std::int64_t at = 0; at < file->size_bytes(); at += kPieceBytes) {
      pieces.push_back({file, at});
    }
  }
  std::atomic<std::size_t> next{0};
  const auto read = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      pieces[i].file->read_ahead(pieces[i].offset, kPieceBytes);
    }
  };
  std::vector<std::jthread> helpers;  // joined when the scope is left
  for (int i = 1; i < threads; ++i) helpers.emplace_back(read);
  read();
}

}  // namespace dendrite
