#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "peers/flashinfer/kernels.h"

namespace dendrite::bench::fi {

/// One way to compute with FlashInfer what the leaves of a tree attend to: one attention a level,
/// planned beforehand, and a merge for every level but the last, as its cascade wrapper does. One
/// level alone is flat attention. All layers are one CUDA graph.
class Peer {
 public:
  using Levels = std::vector<std::unique_ptr<Attention>>;  // of the same rows each

  /// `layers`: each layer's first page, which stays while the object lives. `q`: bf16
  /// [rows][heads][kHeadDim]. Everything is enqueued on `stream`.
  Peer(std::string name, Levels levels, std::span<void* const> layers, std::span<const BF16> q,
       std::uint32_t heads, cudaStream_t stream);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  /// Enqueues all layers, once.
  void replay();
  void wait();
  /// Of the last layer, [rows][heads][kHeadDim]; waits.
  std::vector<float> result();

 private:
  void launch(void* layer);

  std::string name_;
  Levels levels_;
  std::uint32_t rows_;
  std::uint32_t heads_;
  cudaStream_t stream_;
  cuda::Memory q_;
  cuda::Memory out_;  // of the last level; the others are merged into it
  cuda::Memory lse_;
  cuda::Memory level_out_;
  cuda::Memory level_lse_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace dendrite::bench::fi
