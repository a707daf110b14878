#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cuda/products/block_scaled_check.h"
#include "backend/cuda/products/block_scaled_products.h"
#include "backend/cuda/products/block_scaled_tiles.h"
#include "backend/packing.h"

namespace dendrite::cuda {
namespace {

std::int64_t weight_bytes(BlockFormat format, std::int64_t rows, std::int64_t cols) {
  return format == BlockFormat::kMxfp8
             ? BlockWeightLayout<BlockFormat::kMxfp8>{rows, cols}.size_bytes()
             : BlockWeightLayout<BlockFormat::kNvfp4>{rows, cols}.size_bytes();
}

void upload(const Device& device, const Memory& to, const void* from) {
  check(cudaMemcpyAsync(to.data(), from, static_cast<std::size_t>(to.size_bytes()),
                        cudaMemcpyHostToDevice, device.stream()),
        "pack");
}

}  // namespace

BlockScaledProducts::BlockScaledProducts(const Device& device) : device_(device) {
  const bool is_made_for_it = device.architecture() / 10 == 12;
  has_instruction_ = is_made_for_it && has_block_scaled_instruction(device.stream());
}

bool BlockScaledProducts::takes(const StoredMatrix& matrix, const Numerics& numerics) const {
  return has_instruction_ && numerics.product == ComputeFormat::kBF16 &&
         numerics.weights == DType::kBF16 && block_format_of(matrix).has_value();
}

std::unique_ptr<CudaWeight> BlockScaledProducts::pack(std::span<const StoredMatrix> parts,
                                                      const Numerics& numerics) {
  const std::int64_t rows = stacked_rows(parts);
  const auto format = block_format_of(parts.front());
  if (!warnings_.empty() || !std::ranges::all_of(parts, [&](const StoredMatrix& part) {
        return takes(part, numerics) && block_format_of(part) == format;
      })) {
    return nullptr;
  }
  const std::int64_t cols = parts.front().cols;
  const std::int64_t bytes = weight_bytes(*format, rows, cols);
  std::vector<std::uint32_t> staged(static_cast<std::size_t>(bytes / 4));
  std::vector<float> factors;
  for (const StoredMatrix& part : parts) {
    const std::int64_t first = std::ssize(factors);
    factors.resize(static_cast<std::size_t>(first + part.rows), whole_scale_of(part));
    if (!write_block_tiles(part, *format, first, rows, staged.data())) {
      return nullptr;  // the way of other devices takes it, or says what is wrong with it
    }
  }
  Memory memory(bytes, "weights");
  upload(device_, memory, staged.data());
  BlockScales scales{*format, {}, 1};
  if (*format == BlockFormat::kNvfp4) {
    scales.factors = Memory(std::ssize(factors) * 4, "scales of weights");
    upload(device_, scales.factors, factors.data());
    scales.input_factor = whole_input_scale_of(parts);
  }
  device_.synchronize("pack");  // products read weights before earlier kernels are done
  auto weight = std::make_unique<CudaWeight>(rows, cols, std::move(scales), std::move(memory));
  const std::tuple shape{*format, rows, cols};
  if (right_.contains(shape)) return weight;
  if (block_scaled_products_agree(device_, *weight, parts)) {
    right_.insert(shape);
    return weight;
  }
  warnings_.push_back("block-scaled products of " + device_.name() +
                      " are not what they should be (" + std::string(parts.front().name) +
                      "): its weights are decoded to bf16 instead, and inputs stay as they are");
  return nullptr;
}

}  // namespace dendrite::cuda
