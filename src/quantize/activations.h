#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "dendrite/perplexity.h"

namespace dendrite {

/// What a matrix was multiplied with, channel by channel, over all rows of calibration. Each row is
/// divided by its root mean square first, so that none counts more than another: a first token's
/// can be a thousand times the others'.
struct InputMoments {
  std::vector<float> means;    // of |x|
  std::vector<float> squares;  // of x^2
};

struct Activations {
  /// By the name of a matrix. Matrices that are one product (q, k and v; gate and up) are there
  /// under the first one's.
  std::map<std::string, InputMoments> inputs;
  std::int64_t tokens = 0;
  bool cancelled = false;
};

struct ActivationParams {
  std::int64_t tokens = 0;  // at most about so many
  int threads = 0;
  std::stop_token cancel{};
  std::function<void(std::int64_t done, std::int64_t all)> on_progress{};
};

/// Runs the model over the samples, on the CPU.
Activations activations_of(const std::string& model, std::span<const TextSample> samples,
                           const ActivationParams& params);

}  // namespace dendrite
