#include "io/new_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "dendrite/error.h"
#include "io/output_file.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw Error(path.string() + ": " + what + ": " + std::generic_category().message(errno));
}

void refuse_what_is_there(const fs::path& target) {
  std::error_code ignored;
  if (fs::symlink_status(target, ignored).type() != fs::file_type::not_found) {
    throw Error(target.string() + ": is there already; expected a name that nothing has");
  }
}

/// Without a slash at its end, and with a folder before it.
fs::path plain(fs::path target) {
  if (!target.has_filename()) target = target.parent_path();
  if (target.filename().empty() || target.filename() == "." || target.filename() == "..") {
    throw Error("\"" + target.string() + "\": is no name for a new folder");
  }
  return target.has_parent_path() ? target : fs::path(".") / target;
}

}  // namespace

NewFolder::NewFolder(fs::path target) : target_(plain(std::move(target))) {
  refuse_what_is_there(target_);
  std::string name = ".";
  name += target_.filename().string() + ".partial-" + std::to_string(::getpid()) + "-";
  for (int i = 0; path_.empty(); ++i) {
    const fs::path path = target_.parent_path() / (name + std::to_string(i));
    if (::mkdir(path.c_str(), 0777) == 0) {
      path_ = path;
    } else if (errno != EEXIST) {
      fail(target_.parent_path(), "no folder can be made in it");
    }
  }
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!renamed_) fs::remove_all(path_, ignored);
}

void NewFolder::become_target() {
  bring_folder_to_disk(path_);
  refuse_what_is_there(target_);
  if (::rename(path_.c_str(), target_.c_str()) != 0) fail(target_, "cannot be made");
  renamed_ = true;
  bring_folder_to_disk(target_.parent_path());
}

}  // namespace dendrite
