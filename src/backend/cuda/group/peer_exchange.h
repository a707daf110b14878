#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "backend/cuda/base/device.h"
#include "backend/group/exchange.h"

namespace dendrite::cuda {

/// Between GPUs of one host: each reads the others' memory where it can reach it, else copies come
/// first. Several ranks may be on one GPU.
class PeerExchange final : public group::Exchange {
 public:
  /// devices: a rank's each, which outlive it; at most kMostRanks
  explicit PeerExchange(std::vector<const Device*> devices);
  ~PeerExchange() override;
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  void sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
           std::span<const float* const> biases, Backend::Store store) override;
  void gather(Tensor out, std::span<const Tensor> parts) override;

 private:
  bool reaches(std::size_t rank, std::size_t other) const {
    return reach_[rank * devices_.size() + other];
  }
  /// What is enqueued on any rank from here on runs behind all that was enqueued before on all.
  void meet();
  /// Where a rank reads another's part: there, or in a copy.
  const float* part_for(std::size_t rank, std::size_t other, const Tensor& part);

  std::vector<const Device*> devices_;
  std::vector<bool> reach_;
  std::vector<cudaEvent_t> came_;
  std::vector<Memory> copies_;  // [rank * ranks + other], where one does not reach the other
};

}  // namespace dendrite::cuda
