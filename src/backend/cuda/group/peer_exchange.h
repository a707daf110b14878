#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <span>
#include <vector>

#include "backend/cuda/base/device.h"
#include "backend/cuda/group/peer_kernels.h"
#include "backend/group/exchange.h"

namespace dendrite::cuda {

/// Between GPUs of one host. Ops that run one by one meet by events, and each GPU reads the others'
/// memory where it can reach it, else copies. What is recorded becomes a graph a GPU, whose kernels
/// write to the others' mailboxes and wait for theirs.
class PeerExchange final : public group::Exchange {
 public:
  /// A device, and where its passes find tokens of draws that the host has not read yet.
  struct Place {
    const Device* device;
    std::int32_t* kept_draws;
  };
  /// places: what they name outlives it. device_of: a rank's each; at most kMostRanks. most_rows:
  /// of passes that are recorded.
  PeerExchange(std::vector<Place> places, std::vector<std::size_t> device_of,
               std::int64_t most_rows);
  ~PeerExchange() override;
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  /// Whether GPUs of these indices reach each other, so that passes may be recorded.
  static bool reach(std::span<const int> devices);

  void sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
           Backend::Store store) override;
  void gather(std::span<const Columns> columns) override;
  bool writes_to_first() const override { return records(); }
  void share_draws(std::int64_t count) override;

 private:
  bool reaches(std::size_t device, std::size_t other) const {
    return reach_[device * places_.size() + other];
  }
  const Device& device(std::size_t number) const { return *places_[number].device; }
  bool records() const;
  /// What is enqueued on any device from here on runs behind all that was enqueued before on all.
  void meet();
  void come(std::size_t number);
  void wait_for(std::size_t other, std::size_t number);
  void make_boxes(std::int64_t cols);
  /// Where a device reads a rank's part: there, or in a copy.
  const float* part_for(std::size_t number, std::size_t rank, const Tensor& part);
  void enqueue_sum(std::size_t number, PeerSum sum, std::span<const Tensor> parts, bool recorded);
  void enqueue_gather(std::span<const Columns> columns);

  std::vector<Place> places_;
  std::vector<std::size_t> device_of_;
  std::int64_t most_rows_;
  std::vector<bool> reach_;
  std::vector<cudaEvent_t> came_;
  std::vector<Memory> copies_;  // [device * ranks + rank], where one does not reach the other
  std::deque<Memory> memory_;   // of mailboxes
  std::vector<Mailbox> sums_;
  /// [ranks]: how often a rank wrote columns, told to the first device, and counted by itself.
  struct ColumnFlags {
    std::uint32_t* flags;
    std::uint32_t* counts;
  };
  std::vector<ColumnFlags> columns_;
  std::int64_t box_values_ = 0;
};

}  // namespace dendrite::cuda
