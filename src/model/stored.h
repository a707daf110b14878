#pragma once

#include <vector>

#include "dendrite/model_files.h"
#include "io/checkpoint.h"

namespace dendrite {

/// What the model's weights are stored as, see stored_weights().
std::vector<StoredWeights> stored_weights_of(const Checkpoint& checkpoint);

}  // namespace dendrite
