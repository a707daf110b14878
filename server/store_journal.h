#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

// Lines of text that survive whatever ends the process.
namespace dendrite::server {

/// A file of lines, each with its checksum, that grows at the end. What was acknowledged is there
/// after a kill or a loss of power; a line that was being written then is cut off.
class Journal {
 public:
  /// Opens DIR/responses.journal, made where it is missing, for this process alone. Throws Error
  /// naming it.
  explicit Journal(const std::filesystem::path& folder);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// The whole lines, in their order, up to the first that is damaged; what is behind is cut off.
  /// Before any append.
  std::vector<std::string> read();
  std::size_t lines() const { return count_; }

  /// What is appended from here on stays when all before is replaced. False: it has been called,
  /// and replace() has not ended.
  bool mark();
  /// Puts these in the place of what is before the mark, soon; if that can't be, all stays.
  void replace(const std::vector<std::string>& lines);

  /// `line` has no line end in it. `synced` is called in a thread of the journal's: true: it is on
  /// the disk. Lines that come meanwhile are written and synced together. Those that the journal's
  /// end finds are written, and nobody is told.
  void append(std::string line, std::function<void(bool ok)> synced = {});

 private:
  struct Waiting {
    std::string line;
    std::function<void(bool)> synced;
  };
  void loop();
  bool write(const std::vector<Waiting>& lines);
  bool rewrite(const std::string& text);

  std::filesystem::path file_;
  int lock_ = -1;  // a file beside it, which this process holds
  int fd_ = -1;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Waiting> waiting_;
  bool ending_ = false;
  bool marked_ = false;
  std::optional<std::string> replacement_;  // of what is before the mark
  std::string since_;                       // what was written behind it
  std::size_t replacement_lines_ = 0, since_lines_ = 0;
  std::atomic<std::size_t> count_ = 0;
  std::int64_t whole_ = 0;  // bytes up to the last line that was written whole
  std::thread thread_;
};

}  // namespace dendrite::server
