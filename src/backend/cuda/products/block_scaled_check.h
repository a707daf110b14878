#pragma once

#include <span>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/weight.h"

namespace dendrite::cuda {

/// Whether the products of a block-scaled weight are what its values say. Some rows are rounded on
/// the device and multiplied there; on the host the matrices' values, as any device decodes them,
/// are multiplied with what the rounded rows mean, in double precision, for the first and the last
/// outputs. Codes and scales of rows have to be the host's to the bit, results within what sums in
/// f32 of exact products may lose to tensor cores, and rows have to have the same bits with few and
/// with many others. Waits for the device.
bool block_scaled_products_agree(const Device& device, const CudaWeight& weight,
                                 std::span<const StoredMatrix> parts);

}  // namespace dendrite::cuda
