#pragma once

#include <memory>
#include <string>

#include "io/checkpoint.h"

namespace dendrite {

/// What becomes of the weight files of a checkpoint that is opened: kRequire: they must be there
/// and whole. kIfThere: where there are any. kSkip: none is looked for in a folder.
enum class WeightFiles : std::uint8_t { kRequire, kIfThere, kSkip };

/// `model`: a folder or a Hugging Face id (ModelFolder), or the path of a GGUF file (GgufModel).
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model, WeightFiles weights);

}  // namespace dendrite
