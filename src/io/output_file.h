#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dendrite {

/// A file that is written to. What fails is an Error that names it, with the system's words.
class OutputFile {
 public:
  /// `flags`: of open(2); what it makes has the mode that the process gives its files.
  OutputFile(std::string path, int flags);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const;
  void bring_to_disk() const;
  /// Throws Error with what errno says.
  [[noreturn]] void fail(const char* what) const;

 private:
  std::string path_;
  int fd_ = -1;
};

/// The names in it, as of files that were made or renamed there.
void bring_folder_to_disk(const std::filesystem::path& folder);

/// All that the file will hold.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace dendrite
