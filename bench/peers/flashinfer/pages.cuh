#pragma once

#include <cuda_bf16.h>

#include <flashinfer/page.cuh>

#include "peers/flashinfer/kernels.h"

namespace dendrite::bench::fi {

using Bf16 = __nv_bfloat16;
using PagedKv = flashinfer::paged_kv_t<Bf16, std::int32_t>;

/// Our pages in FlashInfer's words: heads before tokens, K and V of one head side by side.
inline PagedKv paged_kv(const DeviceRequests& requests, const Shape& shape, void* layer) {
  const std::int64_t half = std::int64_t{shape.page_tokens} * kHeadDim;
  const std::int64_t strides[3] = {2 * half * shape.kv_heads, 2 * half, kHeadDim};
  Bf16* k = static_cast<Bf16*>(layer);
  return {shape.kv_heads,
          shape.page_tokens,
          kHeadDim,
          requests.count(),
          flashinfer::QKVLayout::kHND,
          k,
          k + half,
          strides,
          requests.pages(),
          requests.page_begin(),
          requests.last_page_tokens()};
}

}  // namespace dendrite::bench::fi
