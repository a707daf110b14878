#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "dendrite/error.h"

namespace dendrite {

/// A new folder that goes with the object, and all that is in it.
class TemporaryFolder {
 public:
  /// kMemory: in memory where possible, for what needs no disk; else as kDisk, in TMPDIR.
  enum class Where { kDisk, kMemory };

  explicit TemporaryFolder(Where where = Where::kDisk) {
    if (where == Where::kMemory && make("/dev/shm")) return;
    const std::filesystem::path parent = std::filesystem::temp_directory_path();
    if (!make(parent)) {
      throw Error(parent.string() +
                  ": no temporary folder could be made; expected a writable one (TMPDIR)");
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  bool make(const std::filesystem::path& parent) {
    std::string name = (parent / "dendrite-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return false;
    path_ = name;
    return true;
  }

  std::filesystem::path path_;
};

}  // namespace dendrite
