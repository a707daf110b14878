#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/base/device.h"

// FlashInfer's kernels behind plain functions: its headers are seen by the .cu files of this folder
// alone. https://github.com/flashinfer-ai/flashinfer (Ye et al. 2025, arXiv:2501.01005)
namespace dendrite::bench::fi {

constexpr std::uint32_t kHeadDim = 128;  // the one that is compiled

/// A page holds, for each KV head, page_tokens K and then page_tokens V of kHeadDim bf16 values.
struct Shape {
  std::uint32_t heads = 32;
  std::uint32_t kv_heads = 8;
  std::uint32_t page_tokens = 16;
};

/// Requests: queries of rows [row_begin[i], row_begin[i + 1]) attend to all tokens of the pages
/// pages[page_begin[i] .. page_begin[i + 1]), the last of which holds last_page_tokens[i].
struct Requests {
  std::vector<std::int32_t> row_begin = {0};
  std::vector<std::int32_t> page_begin = {0};
  std::vector<std::int32_t> pages;
  std::vector<std::int32_t> last_page_tokens;

  std::uint32_t count() const { return static_cast<std::uint32_t>(last_page_tokens.size()); }
  std::uint32_t rows() const { return static_cast<std::uint32_t>(row_begin.back()); }
};

/// Requests as its kernels take them.
class DeviceRequests {
 public:
  explicit DeviceRequests(const Requests& requests);
  std::int32_t* row_begin() const { return at(row_begin_); }
  std::int32_t* page_begin() const { return at(page_begin_); }
  std::int32_t* pages() const { return at(pages_); }
  std::int32_t* last_page_tokens() const { return at(last_page_tokens_); }
  std::uint32_t count() const { return count_; }

 private:
  static std::int32_t* at(const cuda::Memory& memory) {
    return reinterpret_cast<std::int32_t*>(memory.data());
  }
  std::uint32_t count_;
  cuda::Memory row_begin_;
  cuda::Memory page_begin_;
  cuda::Memory pages_;
  cuda::Memory last_page_tokens_;
};

/// What a plan lies in, as FlashInfer wants it: device memory for partial results, and for the plan
/// with a page-locked copy on the host.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* partials() const { return partials_.data(); }
  std::size_t partials_bytes() const { return static_cast<std::size_t>(partials_.size_bytes()); }
  void* plan() const { return plan_.data(); }
  void* plan_host() const { return plan_host_; }
  std::size_t plan_bytes() const { return static_cast<std::size_t>(plan_.size_bytes()); }

 private:
  cuda::Memory partials_;
  cuda::Memory plan_;
  void* plan_host_ = nullptr;
};

/// Attention of requests, planned once and launched for any layer.
class Attention {
 public:
  virtual ~Attention() = default;
  /// `layer`: its first page. q, out: bf16 [rows][heads][kHeadDim]; lse [rows][heads], base 2.
  /// Scores are scaled by 1 / sqrt(kHeadDim). Allocates nothing and may be captured.
  virtual void launch(void* layer, void* q, void* out, float* lse, cudaStream_t stream) const = 0;
};

/// Its FlashAttention-2 kernel for paged prefill, which is also its decoding on tensor cores.
std::unique_ptr<Attention> make_tensor_core_attention(const Requests& requests, const Shape& shape,
                                                      cudaStream_t stream);
/// Its paged decoding on CUDA cores. Requires requests of one row each.
std::unique_ptr<Attention> make_cuda_core_attention(const Requests& requests, const Shape& shape,
                                                    cudaStream_t stream);
/// out, lse = attention over the tokens of both sides, each as Attention::launch leaves it.
void merge_in_place(void* out, float* lse, void* other, float* other_lse, std::uint32_t rows,
                    std::uint32_t heads, cudaStream_t stream);

}  // namespace dendrite::bench::fi
