#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dendrite {

/// Where a model's files are.
struct ModelLocation {
  std::filesystem::path path;         // a directory
  std::string id;                     // "org/name" when it is a snapshot of the cache, else empty
  std::string commit;                 // 40 hex digits, or empty
  std::vector<std::string> warnings;  // one line each
};

/// An existing directory wins. Else `name` is a Hugging Face id of one or two parts, looked up in
/// the local cache, never downloaded: "org/name", or "org/name@revision" (a branch, a tag, or a
/// commit of 40 hex digits; "main" when not given).
///   HUB/models--org--name/refs/REVISION      text file: the commit
///   HUB/models--org--name/snapshots/COMMIT/  the folder; its files are links to ../../blobs/
/// With no refs/main and exactly one snapshot, that one is used, with a warning.
/// Throws Error saying what was looked for, where, and the command that fetches it.
ModelLocation resolve_model(const std::string& name);

/// The file that `name` is the path of, if it is one.
std::optional<std::filesystem::path> find_model_file(const std::string& name);

/// HUB: $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, or
/// ~/.cache/huggingface/hub, the first that is set and not empty.
std::filesystem::path hub_cache_folder();

/// True when the cache has recorded that the snapshot's repository has no file of this name
/// (HUB/models--org--name/.no_exist/COMMIT/FILE): the download is complete without it.
bool known_absent(const ModelLocation& location, const std::string& file);

/// "hf download org/name", for messages.
std::string download_command(const ModelLocation& location);

}  // namespace dendrite
