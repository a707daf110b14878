#pragma once

#include <filesystem>
#include <string_view>

// Files that must survive whatever ends the process.
namespace dendrite::server {

/// False: not all of it could be written, and errno says why.
bool write_all(int fd, std::string_view bytes);
/// Opened, or made, for this user alone; -1: errno says why.
int open_private(const std::filesystem::path& file, int flags);
/// What was made, renamed and removed in the file's folder is on the disk.
void sync_folder_of(const std::filesystem::path& file);
/// The file has these bytes, on the disk; or, where that fails, what it had before.
bool replace_file(const std::filesystem::path& file, std::string_view bytes);

}  // namespace dendrite::server
