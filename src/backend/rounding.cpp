#include "backend/rounding.h"

#include <cmath>
#include <vector>

#include "core/rng.h"
#include "quant/formats.h"

namespace dendrite {

StoredMatrix rounded(const StoredMatrix& matrix, const Numerics& numerics) {
  StoredMatrix out = matrix;
  const auto number = matrix.format->number();
  if (numerics.rounding != WeightRounding::kNone && number && matrix.cols % 32 == 0) {
    out.format = &rounded_format(*number, numerics.rounding);
  }
  return out;
}

std::unique_ptr<Weight> random_rounded_weight(Backend& backend, std::int64_t rows,
                                              std::int64_t cols, std::uint64_t seed) {
  const float width = std::sqrt(3.0F / static_cast<float>(cols));
  std::vector<float> values(static_cast<std::size_t>(rows + cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (2 * static_cast<float>(uniform_at(seed, 0, i)) - 1) * width;
  }
  const StoredMatrix plain{.format = &f32_format(),
                           .data = reinterpret_cast<const std::byte*>(values.data()),
                           .rows = rows,
                           .cols = cols,
                           .stride = sizeof(float)};  // each row begins a value further on
  const StoredMatrix matrix = rounded(plain, backend.numerics());
  return backend.pack({&matrix, 1});
}

}  // namespace dendrite
