#include "backend/group/host_exchange.h"

#include <algorithm>
#include <cstdint>

namespace dendrite::group {

void HostExchange::sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
                       std::span<const float* const> biases, Backend::Store store) {
  const Tensor& first = parts.front();
  const float* const bias = biases.front();
  for (std::int64_t row = 0; row < first.rows; ++row) {
    float* const sums = first.data + row * first.stride;
    for (const Tensor& part : parts.subspan(1)) {
      const float* const from = part.data + row * part.stride;
      for (std::int64_t i = 0; i < first.cols; ++i) sums[i] += from[i];
    }
    if (bias != nullptr) {
      for (std::int64_t i = 0; i < first.cols; ++i) sums[i] += bias[i];
    }
    for (const Tensor& out : outs) {
      float* const to = out.data + row * out.stride;
      if (store == Backend::Store::kAdd) {
        for (std::int64_t i = 0; i < first.cols; ++i) to[i] += sums[i];
      } else {
        std::copy_n(sums, first.cols, to);
      }
    }
  }
}

void HostExchange::gather(Tensor out, std::span<const Tensor> parts) {
  std::int64_t begin = 0;
  for (const Tensor& part : parts) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      std::copy_n(part.data + row * part.stride, part.cols, out.data + row * out.stride + begin);
    }
    begin += part.cols;
  }
}

}  // namespace dendrite::group
