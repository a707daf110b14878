#include "backend/cuda/group/peer_exchange.h"

#include <cstddef>
#include <utility>

#include "backend/cuda/base/check.h"
#include "backend/cuda/group/peer_sums.h"

namespace dendrite::cuda {
namespace {

/// Whether kernels of a GPU may read another's memory from here on.
bool open_peer(int device, int other) {
  if (device == other) return true;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, device, other), "peers");
  if (can == 0) return false;
  const DeviceScope here(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // which would be the next call's
    return true;
  }
  check(status, "peers");
  return true;
}

}  // namespace

PeerExchange::PeerExchange(std::vector<const Device*> devices)
    : devices_(std::move(devices)), copies_(devices_.size() * devices_.size()) {
  for (const Device* const device : devices_) {
    for (const Device* const other : devices_) {
      reach_.push_back(open_peer(device->index(), other->index()));
    }
  }
  for (const Device* const device : devices_) {
    const DeviceScope here = device->scope();
    check(cudaEventCreateWithFlags(&came_.emplace_back(), cudaEventDisableTiming), "peers");
  }
}

PeerExchange::~PeerExchange() {
  for (std::size_t rank = 0; rank < came_.size(); ++rank) {
    const DeviceScope here = devices_[rank]->last_scope();
    cudaEventDestroy(came_[rank]);
  }
}

void PeerExchange::meet() {
  for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
    const DeviceScope here = devices_[rank]->scope();
    check(cudaEventRecord(came_[rank], devices_[rank]->stream()), "peers");
  }
  for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
    const DeviceScope here = devices_[rank]->scope();
    for (std::size_t other = 0; other < devices_.size(); ++other) {
      if (other == rank) continue;
      check(cudaStreamWaitEvent(devices_[rank]->stream(), came_[other], 0), "peers");
    }
  }
}

const float* PeerExchange::part_for(std::size_t rank, std::size_t other, const Tensor& part) {
  if (reaches(rank, other)) return part.data;
  const std::int64_t bytes = part.rows * part.cols * 4;
  Memory& copy = copies_[rank * devices_.size() + other];
  if (copy.size_bytes() < bytes) {
    devices_[rank]->synchronize("peers");  // an earlier sum may still read the smaller one
    copy = Memory(2 * bytes, "peers");
  }
  check(
      cudaMemcpyPeerAsync(copy.data(), devices_[rank]->index(), part.data, devices_[other]->index(),
                          static_cast<std::size_t>(bytes), devices_[rank]->stream()),
      "peers");
  return reinterpret_cast<const float*>(copy.data());
}

void PeerExchange::sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
                       std::span<const float* const> biases, Backend::Store store) {
  if (outs.front().rows == 0) return;
  meet();
  for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
    const DeviceScope here = devices_[rank]->scope();
    PeerParts all;
    all.count = parts.size();
    for (std::size_t other = 0; other < parts.size(); ++other) {
      all.data[other] = part_for(rank, other, parts[other]);
    }
    launch_peer_sum(outs[rank], all, biases[rank], store == Backend::Store::kAdd,
                    devices_[rank]->stream());
    check_launch("peers", {{"rows", outs[rank].rows}, {"cols", outs[rank].cols}});
  }
  meet();
}

void PeerExchange::gather(Tensor out, std::span<const Tensor> parts) {
  if (out.rows == 0) return;
  meet();
  const DeviceScope here = devices_.front()->scope();
  float* to = out.data;
  for (const Tensor& part : parts) {
    const auto bytes = static_cast<std::size_t>(part.cols * 4);
    check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(out.stride * 4), part.data, bytes, bytes,
                            static_cast<std::size_t>(part.rows), cudaMemcpyDefault,
                            devices_.front()->stream()),
          "peers");
    to += part.cols;
  }
  meet();
}

}  // namespace dendrite::cuda
