#include "io/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "dendrite/error.h"

namespace dendrite {

OutputFile::OutputFile(std::string path, int flags) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot open");
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail("cannot write");
    offset += wrote;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
}

void OutputFile::bring_to_disk() const {
  if (::fsync(fd_) != 0) fail("cannot be brought to the disk");
}

void OutputFile::fail(const char* what) const {
  const int error = errno;
  throw Error(path_ + ": " + what + ": " + std::generic_category().message(error));
}

void bring_folder_to_disk(const std::filesystem::path& folder) {
  OutputFile(folder.empty() ? "." : folder.string(), O_RDONLY | O_DIRECTORY).bring_to_disk();
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  OutputFile(path.string(), O_WRONLY | O_CREAT | O_TRUNC)
      .write_at(0, std::as_bytes(std::span(text)));
}

}  // namespace dendrite
