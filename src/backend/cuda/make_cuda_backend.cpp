#include <utility>
#include <vector>

#include "backend/cuda/group/peer_exchange.h"
#include "backend/cuda/on_one_gpu.h"
#include "backend/group/group_backend.h"

namespace dendrite {

std::unique_ptr<Backend> make_cuda_backend(Numerics numerics, const CudaOptions& options) {
  if (options.devices.size() == 1) {
    return cuda::make_on_one_gpu(numerics, options, options.devices.front()).backend;
  }
  CudaOptions of_ranks = options;
  of_ranks.graphs = false;  // a recorded pass would be one rank's
  std::vector<std::unique_ptr<Backend>> ranks;
  std::vector<const cuda::Device*> devices;
  for (const int index : options.devices) {
    cuda::OnOneGpu rank = cuda::make_on_one_gpu(numerics, of_ranks, index);
    ranks.push_back(std::move(rank.backend));
    devices.push_back(rank.device);
  }
  return std::make_unique<group::GroupBackend>(
      std::move(ranks), options.devices, std::make_unique<cuda::PeerExchange>(std::move(devices)));
}

}  // namespace dendrite
