#pragma once

#include <filesystem>

namespace dendrite {

/// A folder that is made whole or not at all: filled under another name beside it, which goes with
/// the object unless it became the folder.
class NewFolder {
 public:
  /// Throws Error where there is something at `target`, or its parent is no folder that can be
  /// written to.
  explicit NewFolder(std::filesystem::path target);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where it is filled.
  const std::filesystem::path& path() const { return path_; }
  /// Gives it its name. Throws Error where there is something of that name by now.
  void become_target();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  bool renamed_ = false;
};

}  // namespace dendrite
