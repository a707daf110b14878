#pragma once

#include <span>
#include <string>

#include "quantize/packings.h"

namespace dendrite {

/// config.json of a model whose matrices are packed so, but for the modules `left`: as it is, and
/// what compressed-tensors says of such weights. Programs that compute with 8 bits read of it that
/// activations are rounded token by token, which is up to them: the files hold no scales of
/// activations.
std::string packed_config(const std::string& config, const Packings& packings,
                          std::span<const std::string> left);

}  // namespace dendrite
