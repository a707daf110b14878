#include "peers/flashinfer/kernels.h"

#include <span>

namespace dendrite::bench::fi {
namespace {

constexpr std::int64_t kPartialsBytes = std::int64_t{256} << 20;
constexpr std::int64_t kPlanBytes = std::int64_t{8} << 20;
constexpr const char* kWhat = "FlashInfer's requests";

cuda::Memory on_device(std::span<const std::int32_t> values) {
  cuda::Memory memory(static_cast<std::int64_t>(values.size_bytes()), kWhat);
  cuda::check(cudaMemcpy(memory.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
              kWhat);
  return memory;
}

}  // namespace

DeviceRequests::DeviceRequests(const Requests& requests)
    : count_(requests.count()),
      row_begin_(on_device(requests.row_begin)),
      page_begin_(on_device(requests.page_begin)),
      pages_(on_device(requests.pages)),
      last_page_tokens_(on_device(requests.last_page_tokens)) {}

Workspace::Workspace()
    : partials_(kPartialsBytes, "FlashInfer's partial results"),
      plan_(kPlanBytes, "FlashInfer's plan") {
  cuda::check(cudaMallocHost(&plan_host_, plan_bytes()), "FlashInfer's plan");
}

Workspace::~Workspace() {
  cudaFreeHost(plan_host_);
}

}  // namespace dendrite::bench::fi
