#include "io/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "dendrite/error.h"
#include "io/json_file.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// "~" and "~/..." as a shell would.
fs::path expand_home(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return environment("HOME") + path.substr(1);
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_name_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '_' || c == '.';
}

/// The hub's rules for "name" and "org/name"; they also keep a hostile id inside the cache.
bool is_model_id(std::string_view id) {
  const auto slash = id.find('/');
  const auto is_part = [](std::string_view part) {
    const auto is_edge = [](char c) { return c == '-' || c == '.'; };
    return !part.empty() && part.size() <= 96 && std::ranges::all_of(part, is_name_char) &&
           !is_edge(part.front()) && !is_edge(part.back());
  };
  if (id.find("--") != std::string_view::npos || id.find("..") != std::string_view::npos)
    return false;
  if (slash == std::string_view::npos) return is_part(id);
  return is_part(id.substr(0, slash)) && is_part(id.substr(slash + 1));
}

bool is_revision(std::string_view revision) {
  return !revision.empty() && revision.front() != '/' &&
         revision.find("..") == std::string_view::npos;
}

bool holds_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::string trimmed(std::string text) {
  const auto last = text.find_last_not_of(" \t\r\n");
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

/// The commits that the cache holds a folder of, sorted; at most two, which is all that matters.
std::vector<std::string> snapshot_commits(const fs::path& snapshots) {
  std::vector<std::string> commits;
  std::error_code ignored;
  for (fs::directory_iterator it(snapshots, ignored), end; it != end && commits.size() < 2;
       it.increment(ignored)) {
    if (ignored) break;
    if (it->is_directory(ignored) && is_commit(it->path().filename().string())) {
      commits.push_back(it->path().filename().string());
    }
  }
  return commits;
}

}  // namespace

fs::path hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string value = environment(name); !value.empty()) return expand_home(value);
  }
  if (const std::string value = environment("HF_HOME"); !value.empty())
    return expand_home(value) / "hub";
  const std::string xdg = environment("XDG_CACHE_HOME");
  return expand_home(xdg.empty() ? "~/.cache" : xdg) / "huggingface" / "hub";
}

std::string download_command(const ModelLocation& location) {
  return "hf download " + location.id;
}

bool known_absent(const ModelLocation& location, const std::string& file) {
  if (location.id.empty()) return false;
  std::error_code ignored;
  const fs::path repository = location.path.parent_path().parent_path();
  return fs::exists(repository / ".no_exist" / location.commit / file, ignored);
}

std::optional<fs::path> find_model_file(const std::string& name) {
  std::error_code ignored;
  const fs::path file = expand_home(name);
  if (fs::is_regular_file(file, ignored)) return file;
  return std::nullopt;
}

ModelLocation resolve_model(const std::string& name) {
  if (name.empty()) throw Error("model: the name is empty, expected a folder or a Hugging Face id");
  std::error_code ignored;
  if (const fs::path folder = expand_home(name); fs::exists(folder, ignored)) {
    if (!holds_folder(folder)) {
      throw Error(
          name +
          ": is a file, expected a model folder (config.json, model.safetensors, tokenizer.json)");
    }
    return {folder, "", "", {}};
  }

  const auto at = name.find('@');
  const std::string id = name.substr(0, at);
  const std::string revision = at == std::string::npos ? "main" : name.substr(at + 1);
  if (!is_model_id(id) || !is_revision(revision)) {
    throw Error("model " + in_quotes(name, 200) +
                ": no such folder (and not a Hugging Face id: org/name)");
  }
  std::string folder_name = "models--" + id;
  if (const auto slash = folder_name.find('/'); slash != std::string::npos)
    folder_name.replace(slash, 1, "--");
  const fs::path repository = hub_cache_folder() / folder_name;
  const std::string get =
      "to get it: hf download " + id + (at == std::string::npos ? "" : " --revision " + revision);
  if (!holds_folder(repository)) {
    throw Error("model " + in_quotes(name, 200) +
                ": no such folder, and not in the Hugging Face cache\n" +
                "looked for: " + repository.string() + "\n" + get);
  }

  const fs::path snapshots = repository / "snapshots";
  ModelLocation location{{}, id, "", {}};
  const fs::path ref = repository / "refs" / revision;
  if (is_commit(revision)) {
    location.commit = revision;
  } else if (fs::is_regular_file(ref, ignored)) {
    location.commit = trimmed(read_text(ref, 4096));
    if (!is_commit(location.commit)) {
      throw Error(ref.string() + ": holds " + in_quotes(location.commit) +
                  ", expected a commit of 40 hex digits");
    }
  } else {
    const auto commits = snapshot_commits(snapshots);
    if (revision != "main" || commits.size() != 1) {
      throw Error("model " + in_quotes(name, 200) + ": revision " + in_quotes(revision) +
                  " is not in the Hugging Face cache\nlooked for: " + ref.string() + "\n" + get);
    }
    location.commit = commits.front();
    location.warnings.push_back(ref.string() + " is missing; using the only snapshot, " +
                                location.commit);
  }
  location.path = snapshots / location.commit;
  if (!holds_folder(location.path)) {
    throw Error("model " + in_quotes(name, 200) +
                ": its snapshot is not in the Hugging Face cache\nlooked for: " +
                location.path.string() + "\n" + get);
  }
  return location;
}

}  // namespace dendrite
