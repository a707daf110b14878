#include "backend/cuda/group/peer_exchange.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "backend/cuda/base/check.h"

namespace dendrite::cuda {
namespace {

/// Whether kernels of a GPU may use another's memory from here on.
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

/// On the current device, [count] zeros.
std::uint32_t* make_counts(std::deque<Memory>& memory, std::int64_t count) {
  std::byte* const data = memory.emplace_back(count * 4, "mailboxes of ranks").data();
  check(cudaMemset(data, 0, static_cast<std::size_t>(count * 4)), "peers");
  return reinterpret_cast<std::uint32_t*>(data);
}

}  // namespace

bool PeerExchange::reach(std::span<const int> devices) {
  bool all = true;
  for (const int device : devices) {
    for (const int other : devices) all = open_peer(device, other) && all;
  }
  return all;
}

PeerExchange::PeerExchange(std::vector<Place> places, std::vector<std::size_t> device_of,
                           std::int64_t most_rows)
    : places_(std::move(places)),
      device_of_(std::move(device_of)),
      most_rows_(most_rows),
      copies_(places_.size() * device_of_.size()) {
  for (const Place& place : places_) {
    for (const Place& other : places_) {
      reach_.push_back(open_peer(place.device->index(), other.device->index()));
    }
    const DeviceScope here = place.device->scope();
    check(cudaEventCreateWithFlags(&came_.emplace_back(), cudaEventDisableTiming), "peers");
    sums_.push_back({nullptr, make_counts(memory_, kMostPeerBlocks)});
    const std::int64_t ranks = std::ssize(device_of_);
    columns_.push_back({make_counts(memory_, ranks), make_counts(memory_, ranks)});
    check(cudaDeviceSynchronize(), "peers");
  }
}

PeerExchange::~PeerExchange() {
  for (std::size_t number = 0; number < came_.size(); ++number) {
    const DeviceScope here = device(number).last_scope();
    cudaEventDestroy(came_[number]);
  }
}

bool PeerExchange::records() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(device(0).stream(), &status), "peers");
  return status == cudaStreamCaptureStatusActive;
}

void PeerExchange::come(std::size_t number) {
  const DeviceScope here = device(number).scope();
  check(cudaEventRecord(came_[number], device(number).stream()), "peers");
}

void PeerExchange::wait_for(std::size_t other, std::size_t number) {
  const DeviceScope here = device(number).scope();
  check(cudaStreamWaitEvent(device(number).stream(), came_[other], 0), "peers");
}

void PeerExchange::meet() {
  for (std::size_t number = 0; number < places_.size(); ++number) come(number);
  for (std::size_t number = 0; number < places_.size(); ++number) {
    for (std::size_t other = 0; other < places_.size(); ++other) {
      if (other != number) wait_for(other, number);
    }
  }
}

/// For sums of all passes that are recorded. Smaller mailboxes stay, as recordings use them.
void PeerExchange::make_boxes(std::int64_t cols) {
  const std::int64_t values = most_rows_ * cols;
  if (values <= box_values_) return;
  for (std::size_t number = 0; number < places_.size(); ++number) {
    const DeviceScope here = device(number).scope();
    const std::int64_t count = 2 * std::ssize(device_of_) * values * 2;
    sums_[number].values = reinterpret_cast<PeerValues*>(make_counts(memory_, count));
    check(cudaDeviceSynchronize(), "peers");
  }
  box_values_ = values;
}

const float* PeerExchange::part_for(std::size_t number, std::size_t rank, const Tensor& part) {
  const std::size_t other = device_of_[rank];
  if (reaches(number, other)) return part.data;
  const std::int64_t bytes = part.rows * part.cols * 4;
  Memory& copy = copies_[number * device_of_.size() + rank];
  if (copy.size_bytes() < bytes) {
    device(number).synchronize("peers");  // an earlier sum may still read the smaller one
    copy = Memory(2 * bytes, "peers");
  }
  check(cudaMemcpyPeerAsync(copy.data(), device(number).index(), part.data, device(other).index(),
                            static_cast<std::size_t>(bytes), device(number).stream()),
        "peers");
  return reinterpret_cast<const float*>(copy.data());
}

void PeerExchange::enqueue_sum(std::size_t number, PeerSum sum, std::span<const Tensor> parts,
                               bool recorded) {
  const DeviceScope here = device(number).scope();
  sum.ranks = static_cast<std::int32_t>(parts.size());
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (device_of_[rank] == number) {
      sum.parts[rank] = parts[rank].data;
    } else if (!recorded) {
      sum.parts[rank] = part_for(number, rank, parts[rank]);
    }
  }
  if (recorded) {
    sum.devices = static_cast<std::int32_t>(places_.size());
    sum.device = static_cast<std::int32_t>(number);
    std::ranges::copy(sums_, sum.boxes);
    sum.box_values = box_values_;
  }
  launch_peer_sum(sum, device(number).stream());
  check_launch("peers", {{"rows", sum.out.rows}, {"cols", sum.out.cols}});
}

void PeerExchange::sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
                       Backend::Store store) {
  const std::int64_t values = outs.front().rows * outs.front().cols;
  if (values == 0) return;
  const bool recorded = records();
  const std::int64_t most = std::min(box_values_, kMostPeerBlocks * kPeerValues);
  if (recorded && (values > most || outs.front().cols % 2 != 0)) {
    throw Error("peers: a recorded sum is of " + std::to_string(values) +
                " values; expected an even number, at most " + std::to_string(most));
  }
  if (!recorded) {
    make_boxes(outs.front().cols);
    meet();
  }
  for (std::size_t number = 0; number < places_.size(); ++number) {
    PeerSum sum;
    sum.out = outs[number];
    sum.add = store == Backend::Store::kAdd;
    enqueue_sum(number, sum, parts, recorded);
  }
  if (!recorded) meet();
}

void PeerExchange::gather(std::span<const Columns> columns) {
  if (columns.front().part.rows == 0) return;
  if (records()) return enqueue_gather(columns);
  meet();
  const DeviceScope here = device(0).scope();
  for (const auto& [number, part, to] : columns) {
    const auto bytes = static_cast<std::size_t>(part.cols * 4);
    check(cudaMemcpy2DAsync(to.data, static_cast<std::size_t>(to.stride * 4), part.data, bytes,
                            bytes, static_cast<std::size_t>(part.rows), cudaMemcpyDefault,
                            device(0).stream()),
          "peers");
  }
  meet();
}

/// Of what was written to the first device.
void PeerExchange::enqueue_gather(std::span<const Columns> columns) {
  std::int64_t place = 0;
  for (const Columns& of_rank : columns) {
    const std::size_t number = of_rank.device;
    const DeviceScope here = device(number).scope();
    launch_tell(columns_.front().flags + place, columns_[number].counts + place,
                device(number).stream());
    check_launch("peers", {{"sender", place}});
    ++place;
  }
  const DeviceScope here = device(0).scope();
  launch_await(columns_.front().flags, columns_.front().counts, place, device(0).stream());
  check_launch("peers", {{"senders", place}});
}

void PeerExchange::share_draws(std::int64_t count) {
  come(0);
  for (std::size_t number = 1; number < places_.size(); ++number) {
    wait_for(0, number);
    const DeviceScope here = device(number).scope();
    check(cudaMemcpyPeerAsync(places_[number].kept_draws, device(number).index(),
                              places_.front().kept_draws, device(0).index(),
                              static_cast<std::size_t>(count) * 4, device(number).stream()),
          "peers");
  }
}

}  // namespace dendrite::cuda
