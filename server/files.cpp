#include "server/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace dendrite::server {

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

int open_private(const std::filesystem::path& file, int flags) {
  return ::open(file.c_str(), flags | O_CREAT | O_CLOEXEC, 0600);
}

void sync_folder_of(const std::filesystem::path& file) {
  const int fd = ::open(file.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

bool replace_file(const std::filesystem::path& file, std::string_view bytes) {
  const std::filesystem::path made = file.string() + ".new";
  const int fd = open_private(made, O_WRONLY | O_TRUNC);
  if (fd < 0) return false;
  const bool ok = write_all(fd, bytes) && ::fsync(fd) == 0;
  ::close(fd);
  if (!ok || ::rename(made.c_str(), file.c_str()) != 0) return false;
  sync_folder_of(file);
  return true;
}

}  // namespace dendrite::server
