#include "server/store_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "dendrite/error.h"
#include "server/files.h"
#include "server/ids.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kHex = 16;

std::string written(const std::string& line) {
  return hash_hex(line) + ' ' + line + '\n';
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw Error("--response-store: " + file.string() + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

Journal::Journal(const std::filesystem::path& folder) : file_(folder / "responses.journal") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path lock = folder / "responses.lock";
  lock_ = open_private(lock, O_RDWR);
  if (lock_ < 0) fail(lock, "it can't be opened");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    fail(lock, "another process has it");
  }
  fd_ = open_private(file_, O_RDWR | O_APPEND);
  if (fd_ < 0) {
    ::close(lock_);
    fail(file_, "it can't be opened");
  }
  sync_folder_of(file_);
  thread_ = std::thread([this] { loop(); });
}

Journal::~Journal() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
  ::close(fd_);
  ::close(lock_);
}

std::vector<std::string> Journal::read() {
  std::ostringstream all;
  all << std::ifstream(file_, std::ios::binary).rdbuf();
  const std::string text = all.str();
  std::vector<std::string> lines;
  std::size_t from = 0;
  while (true) {
    const std::size_t to = text.find('\n', from);
    if (to == std::string::npos || to < from + kHex + 1) break;
    const std::string line = text.substr(from + kHex + 1, to - from - kHex - 1);
    if (text.compare(from, kHex, hash_hex(line)) != 0) break;
    lines.push_back(line);
    from = to + 1;
  }
  whole_ = static_cast<std::int64_t>(from);
  count_ = lines.size();
  if (from < text.size() && ::ftruncate(fd_, whole_) != 0) fail(file_, "it can't be cut");
  return lines;
}

bool Journal::mark() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(marked_, true);
}

void Journal::replace(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += written(line);
  {
    const std::lock_guard lock(mutex_);
    replacement_ = std::move(text);
    replacement_lines_ = lines.size();
  }
  wake_.notify_one();
}

/// All of the file anew. In the journal's thread.
bool Journal::rewrite(const std::string& text) {
  const std::filesystem::path made = file_.string() + ".new";
  const int fd = open_private(made, O_RDWR | O_APPEND | O_TRUNC);
  if (fd < 0 || !write_all(fd, text) || ::fsync(fd) != 0 ||
      ::rename(made.c_str(), file_.c_str()) != 0) {
    if (fd >= 0) ::close(fd);
    return false;
  }
  sync_folder_of(file_);
  ::close(std::exchange(fd_, fd));
  whole_ = static_cast<std::int64_t>(text.size());
  return true;
}

void Journal::append(std::string line, std::function<void(bool)> synced) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(line), std::move(synced)});
  }
  wake_.notify_one();
}

bool Journal::write(const std::vector<Waiting>& lines) {
  std::string text;
  for (const Waiting& each : lines) text += written(each.line);
  if (write_all(fd_, text) && ::fdatasync(fd_) == 0) {
    whole_ += static_cast<std::int64_t>(text.size());
    return true;
  }
  // What got there of them would hide all that follows.
  return ::ftruncate(fd_, whole_) == 0 && false;
}

void Journal::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || replacement_ || !waiting_.empty(); });
    if (replacement_) {
      const std::string text = *std::exchange(replacement_, std::nullopt) + since_;
      lock.unlock();
      const bool ok = rewrite(text);
      lock.lock();
      if (ok) count_ = replacement_lines_ + since_lines_;
      since_.clear();
      since_lines_ = 0;
      marked_ = false;
      continue;
    }
    if (waiting_.empty()) return;
    const std::vector<Waiting> lines = std::exchange(waiting_, {});
    lock.unlock();
    const bool ok = write(lines);
    lock.lock();
    if (ok) count_ += lines.size();
    // A mark that came meanwhile has these behind it, and its replacement may have them, too:
    // twice is as good as once.
    if (ok && marked_) {
      for (const Waiting& each : lines) since_ += written(each.line);
      since_lines_ += lines.size();
    }
    if (ending_) continue;
    lock.unlock();
    for (const Waiting& each : lines) {
      if (each.synced) each.synced(ok);
    }
    lock.lock();
  }
}

}  // namespace dendrite::server
