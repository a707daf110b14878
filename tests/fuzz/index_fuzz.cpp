// Any bytes as model.safetensors.index.json of a folder that holds two shards: refused with an
// Error, or a folder whose tensors are those of the shards.
#include <filesystem>
#include <fstream>
#include <string>

#include "dendrite/error.h"
#include "fuzz.h"
#include "io/model_folder.h"
#include "support/temporary_folder.h"

namespace {

/// A folder with s1.safetensors (tensors a, b) and s2.safetensors (c), deleted at exit.
class Folder {
 public:
  Folder() {
    write("s1.safetensors", shard(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                                  R"("b":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})",
                                  2));
    write("s2.safetensors", shard(R"({"c":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1));
  }

  void write(const char* name, const std::string& bytes) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << bytes;
  }
  std::string path() const { return folder_.path().string(); }

 private:
  static std::string shard(const std::string& header, std::size_t data_bytes) {
    std::string out(8, '\0');
    out[0] = static_cast<char>(header.size());
    return out + header + std::string(data_bytes, 'x');
  }
  dendrite::TemporaryFolder folder_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dendrite;
  static const Folder folder;
  folder.write("model.safetensors.index.json", {reinterpret_cast<const char*>(data), size});
  try {
    const ModelFolder model = ModelFolder::open(folder.path());
    const auto names = model.names();
    fuzz_check(!names.empty() && names.size() <= 3, "tensors are those of the shards");
    for (const auto name : names)
      fuzz_check(model.require(name, {}).size_bytes == 1, "a tensor is whole");
  } catch (const Error&) {
  }
  return 0;
}
