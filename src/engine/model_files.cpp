#include "dendrite/model_files.h"

#include "dendrite/error.h"
#include "io/open_checkpoint.h"
#include "model/families.h"
#include "model/stored.h"

namespace dendrite {

std::vector<StoredWeights> stored_weights(const std::string& model) {
  return stored_weights_of(*open_checkpoint(model, WeightFiles::kIfThere));
}

std::optional<std::string> model_text(const std::string& model, const std::string& name) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 29;
  if (name.find('/') != std::string::npos) {
    throw Error("model_text: the name is \"" + name + "\"; expected that of a file of the folder");
  }
  const auto files = open_checkpoint(model, WeightFiles::kSkip);
  if (!files->has_text(name)) return std::nullopt;
  return files->text(name, kMostBytes);
}

std::vector<ModelFamily> model_families() {
  std::vector<ModelFamily> all;
  for (const Family& family : families()) all.push_back({family.model_type, family.architectures});
  return all;
}

}  // namespace dendrite
