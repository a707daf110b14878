#pragma once

#include "backend/group/exchange.h"

namespace dendrite::group {

/// Between ranks whose memory is the host's, and whose ops are done when they return.
class HostExchange final : public Exchange {
 public:
  void sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
           std::span<const float* const> biases, Backend::Store store) override;
  void gather(Tensor out, std::span<const Tensor> parts) override;
};

}  // namespace dendrite::group
