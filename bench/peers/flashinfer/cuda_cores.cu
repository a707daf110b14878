#include <cmath>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "backend/cuda/base/launch.cuh"
#include "peers/flashinfer/pages.cuh"

namespace dendrite::bench::fi {
namespace {

using Params = flashinfer::BatchDecodeParams<Bf16, Bf16, Bf16, std::int32_t>;
using Variant =
    flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                 /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;
constexpr auto kNoPositions = flashinfer::PosEncodingMode::kNone;

/// The plan asks for the occupancy of the very kernel that launch() runs, so both are in one file.
class CudaCoreAttention final : public Attention {
 public:
  CudaCoreAttention(const Requests& requests, const Shape& shape, cudaStream_t stream)
      : shape_(shape), requests_(requests) {
    std::vector<std::int32_t> pages = requests.page_begin;
    cudaError_t status = cudaErrorInvalidValue;
    DISPATCH_GQA_GROUP_SIZE(shape.heads / shape.kv_heads, kGroup, {
      status = flashinfer::DecodePlan<kHeadDim, kNoPositions, Variant, Params>(
          workspace_.partials(), workspace_.partials_bytes(), workspace_.plan(),
          workspace_.plan_host(), workspace_.plan_bytes(), plan_, pages.data(), requests.count(),
          shape.heads, shape.page_tokens, /*enable_cuda_graph=*/false, stream,
          flashinfer::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<
              kGroup, kHeadDim, kNoPositions, Variant, Params>);
    });
    cuda::check(status, "FlashInfer's DecodePlan");
  }

  void launch(void* layer, void* q, void* out, float* lse, cudaStream_t stream) const override {
    Params params(static_cast<Bf16*>(q), /*q_rope_offset=*/nullptr,
                  paged_kv(requests_, shape_, layer), static_cast<Bf16*>(out), lse,
                  /*maybe_alibi_slopes=*/nullptr, shape_.heads,
                  static_cast<std::int32_t>(shape_.heads * kHeadDim), kHeadDim, /*window_left=*/-1,
                  /*logits_soft_cap=*/0, 1 / std::sqrt(static_cast<float>(kHeadDim)),
                  /*rope_scale=*/1, /*rope_theta=*/1e4F);
    const auto at = [this](std::int64_t offset) {
      return flashinfer::GetPtrFromBaseOffset<std::int32_t>(workspace_.plan(), offset);
    };
    params.request_indices = at(plan_.request_indices_offset);
    params.kv_tile_indices = at(plan_.kv_tile_indices_offset);
    params.o_indptr = at(plan_.o_indptr_offset);
    params.kv_chunk_size_ptr = at(plan_.kv_chunk_size_ptr_offset);
    params.padded_batch_size = static_cast<std::uint32_t>(plan_.padded_batch_size);
    Bf16* partials = nullptr;
    float* partial_lse = nullptr;
    if (plan_.split_kv) {
      partials = flashinfer::GetPtrFromBaseOffset<Bf16>(workspace_.partials(), plan_.v_offset);
      partial_lse = flashinfer::GetPtrFromBaseOffset<float>(workspace_.partials(), plan_.s_offset);
    }
    cuda::check(
        flashinfer::BatchDecodeWithPagedKVCacheDispatched<kHeadDim, kNoPositions, Variant, Params>(
            params, partials, partial_lse, /*enable_pdl=*/cuda::device_launches_early(), stream),
        "FlashInfer's BatchDecodeWithPagedKVCache");
  }

 private:
  Shape shape_;
  DeviceRequests requests_;
  Workspace workspace_;
  flashinfer::DecodePlanInfo plan_;
};

}  // namespace

std::unique_ptr<Attention> make_cuda_core_attention(const Requests& requests, const Shape& shape,
                                                    cudaStream_t stream) {
  return std::make_unique<CudaCoreAttention>(requests, shape, stream);
}

}  // namespace dendrite::bench::fi
