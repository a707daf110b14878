#include "io/open_checkpoint.h"

#include "io/gguf_model.h"
#include "io/hub_cache.h"
#include "io/model_folder.h"

namespace dendrite {

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model, WeightFiles weights) {
  if (const auto file = find_model_file(model)) return std::make_unique<GgufModel>(*file);
  const auto open = [&](ModelFolder::Weights which) {
    return std::make_unique<ModelFolder>(ModelFolder::open(model, which));
  };
  if (weights == WeightFiles::kRequire) return open(ModelFolder::Weights::kOpen);
  auto folder = open(ModelFolder::Weights::kSkip);
  if (weights == WeightFiles::kSkip || !folder->has_weights()) return folder;
  return open(ModelFolder::Weights::kOpen);
}

}  // namespace dendrite
