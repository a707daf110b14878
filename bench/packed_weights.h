#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace dendrite::bench {

/// "bf16", then those of random_packed_weight().
std::vector<std::string> packed_weight_names();

/// A weight [rows, cols] of a format's random codes, with scales of a trained matrix's size.
std::unique_ptr<Weight> random_packed_weight(Backend& backend, const std::string& format,
                                             std::int64_t rows, std::int64_t cols);

}  // namespace dendrite::bench
