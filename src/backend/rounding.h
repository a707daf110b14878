#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"

// Plain weights that are rounded when they are loaded (Numerics::rounding).
namespace dendrite {

/// The matrix, rounded as the numerics say; as it is where it is not plain, or no whole groups.
StoredMatrix rounded(const StoredMatrix& matrix, const Numerics& numerics);

/// As Backend::random_weight, rounded as the backend's numerics say.
std::unique_ptr<Weight> random_rounded_weight(Backend& backend, std::int64_t rows,
                                              std::int64_t cols, std::uint64_t seed);

}  // namespace dendrite
