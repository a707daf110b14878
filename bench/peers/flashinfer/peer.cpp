#include "peers/flashinfer/peer.h"

#include <utility>

namespace dendrite::bench::fi {
namespace {

constexpr const char* kOp = "FlashInfer";

}  // namespace

Peer::Peer(std::string name, Levels levels, std::span<void* const> layers, std::span<const BF16> q,
           std::uint32_t heads, cudaStream_t stream)
    : name_(std::move(name)),
      levels_(std::move(levels)),
      rows_(static_cast<std::uint32_t>(q.size()) / (heads * kHeadDim)),
      heads_(heads),
      stream_(stream),
      q_(static_cast<std::int64_t>(q.size_bytes()), kOp),
      out_(q_.size_bytes(), kOp),
      lse_(std::int64_t{4} * rows_ * heads_, kOp),
      level_out_(q_.size_bytes(), kOp),
      level_lse_(lse_.size_bytes(), kOp) {
  cuda::check(cudaMemcpy(q_.data(), q.data(), q.size_bytes(), cudaMemcpyHostToDevice), kOp);
  launch(layers.front());  // what a first launch sets up may not be captured
  wait();
  cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), kOp);
  for (void* layer : layers) launch(layer);
  cudaGraph_t graph = nullptr;
  cuda::check(cudaStreamEndCapture(stream_, &graph), kOp);
  const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  cuda::check(status, kOp);
}

Peer::~Peer() {
  cudaStreamSynchronize(stream_);
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void Peer::launch(void* layer) {
  auto* lse = reinterpret_cast<float*>(lse_.data());
  auto* level_lse = reinterpret_cast<float*>(level_lse_.data());
  levels_.back()->launch(layer, q_.data(), out_.data(), lse, stream_);
  for (std::size_t i = 0; i + 1 < levels_.size(); ++i) {
    levels_[i]->launch(layer, q_.data(), level_out_.data(), level_lse, stream_);
    merge_in_place(out_.data(), lse, level_out_.data(), level_lse, rows_, heads_, stream_);
  }
}

void Peer::replay() {
  cuda::check(cudaGraphLaunch(graph_, stream_), kOp);
}

void Peer::wait() {
  cuda::check(cudaStreamSynchronize(stream_), kOp);
}

std::vector<float> Peer::result() {
  wait();
  std::vector<BF16> rounded(static_cast<std::size_t>(out_.size_bytes() / 2));
  cuda::check(cudaMemcpy(rounded.data(), out_.data(), 2 * rounded.size(), cudaMemcpyDeviceToHost),
              kOp);
  std::vector<float> values;
  values.reserve(rounded.size());
  for (const BF16 value : rounded) values.push_back(to_f32(value));
  return values;
}

}  // namespace dendrite::bench::fi
