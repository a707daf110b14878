#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/most_ranks.h"
#include "backend/tensor.h"

namespace dendrite::cuda {

/// Two values of a part, each beside the number of the sum that they are of: so nothing but they
/// themselves tells that they have come (as NCCL's LL protocol does).
struct PeerValues {
  std::uint32_t first, first_sum, second, second_sum;
};

/// Memory of a device that others write while kernels of it wait.
struct Mailbox {
  PeerValues* values = nullptr;   // [2][ranks][most values of a sum / 2], in turns
  std::uint32_t* sums = nullptr;  // [blocks]: how many a block has made
};

/// Blocks of launch_peer_sum, each of so many values.
inline constexpr std::int64_t kPeerValues = 512;
/// Those that a Mailbox has counts for.
inline constexpr std::int64_t kMostPeerBlocks = 8192;

/// What a kernel of a sum needs, on each device.
struct PeerSum {
  Tensor out;
  bool add = false;
  std::int32_t ranks = 0;
  const float* parts[kMostRanks] = {};  // [rows, cols], packed; null: comes by the mailbox
  // Where parts come by mailboxes; else `devices` is 0. Values are then an even number.
  std::int32_t devices = 0;
  std::int32_t device = 0;  // this one
  Mailbox boxes[kMostRanks];
  std::int64_t box_values = 0;
};

/// out = (out +) the ranks' parts, from the left. With mailboxes: a thread writes its values to the
/// others' and waits for theirs.
void launch_peer_sum(const PeerSum& sum, cudaStream_t stream);

/// Raises a flag, which may be on another device, once more: what earlier kernels wrote is there.
/// count: here
void launch_tell(std::uint32_t* flag, std::uint32_t* count, cudaStream_t stream);
/// Waits until `senders` have raised their flags [senders] once more. count: here
void launch_await(const std::uint32_t* flags, std::uint32_t* count, std::int64_t senders,
                  cudaStream_t stream);

}  // namespace dendrite::cuda
