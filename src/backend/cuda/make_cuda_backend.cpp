#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cuda/group/peer_exchange.h"
#include "backend/cuda/on_one_gpu.h"
#include "backend/cuda/padded_inputs.h"
#include "backend/group/group_backend.h"

namespace dendrite {

std::unique_ptr<Backend> make_cuda_backend(Numerics numerics, const CudaOptions& options) {
  if (options.devices.size() == 1) {
    return cuda::make_on_one_gpu(numerics, options, options.devices.front()).backend;
  }
  std::vector<int> indices;
  std::vector<std::size_t> device_of;
  for (const int index : options.devices) {
    const auto at = std::ranges::find(indices, cuda::Device::checked(index)) - indices.begin();
    device_of.push_back(static_cast<std::size_t>(at));
    if (at == std::ssize(indices)) indices.push_back(index);
  }
  CudaOptions of_devices = options;
  of_devices.graphs = options.graphs && cuda::PeerExchange::reach(indices);
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<cuda::PeerExchange::Place> places;
  for (const int index : indices) {
    cuda::OnOneGpu one = cuda::make_on_one_gpu(numerics, of_devices, index);
    backends.push_back(std::move(one.backend));
    places.push_back({one.device, one.kept_draws});
  }
  std::unique_ptr<group::Exchange> exchange;
  if (places.size() > 1) {
    exchange = std::make_unique<cuda::PeerExchange>(std::move(places), device_of,
                                                    cuda::kPaddedSizes.back());
  }
  return std::make_unique<group::GroupBackend>(std::move(backends), std::move(device_of),
                                               std::move(exchange));
}

}  // namespace dendrite
