#include <cmath>

#include <flashinfer/attention/cascade.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "backend/cuda/base/launch.cuh"
#include "peers/flashinfer/pages.cuh"

namespace dendrite::bench::fi {
namespace {

using Params = flashinfer::BatchPrefillPagedParams<Bf16, Bf16, Bf16, std::int32_t>;
using Variant =
    flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                 /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;

template <std::uint32_t kTileRows>
cudaError_t launch_tile(const Params& params, Bf16* partials, float* partial_lse,
                        cudaStream_t stream) {
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      /*SAME_KV_STRIDES=*/true, kTileRows, kHeadDim, kHeadDim, flashinfer::PosEncodingMode::kNone,
      /*USE_FP16_QK_REDUCTION=*/false, flashinfer::MaskMode::kNone, Variant, Params>(
      params, partials, partial_lse, /*enable_pdl=*/cuda::device_launches_early(), stream);
}

class TensorCoreAttention final : public Attention {
 public:
  TensorCoreAttention(const Requests& requests, const Shape& shape, cudaStream_t stream)
      : shape_(shape), requests_(requests) {
    std::vector<std::int32_t> rows = requests.row_begin;
    std::vector<std::int32_t> pages = requests.page_begin;
    cuda::check(
        flashinfer::PrefillPlan<std::int32_t>(
            workspace_.partials(), workspace_.partials_bytes(), workspace_.plan(),
            workspace_.plan_host(), workspace_.plan_bytes(), plan_, rows.data(), pages.data(),
            requests.rows(), requests.count(), shape.heads, shape.kv_heads, kHeadDim, kHeadDim,
            shape.page_tokens, /*enable_cuda_graph=*/false, sizeof(Bf16), /*window_left=*/-1,
            /*fixed_split_size=*/-1, /*disable_split_kv=*/false, /*num_colocated_ctas=*/0,
            /*uniform_q_len=*/0, stream, sizeof(Bf16)),
        "FlashInfer's PrefillPlan");
  }

  void launch(void* layer, void* q, void* out, float* lse, cudaStream_t stream) const override {
    Params params(static_cast<Bf16*>(q), paged_kv(requests_, shape_, layer),
                  /*maybe_custom_mask=*/nullptr, requests_.row_begin(),
                  /*maybe_mask_indptr=*/nullptr, /*maybe_q_rope_offset=*/nullptr,
                  static_cast<Bf16*>(out), lse, /*maybe_alibi_slopes=*/nullptr, shape_.heads,
                  static_cast<std::int32_t>(shape_.heads * kHeadDim), kHeadDim, /*window_left=*/-1,
                  /*logits_soft_cap=*/0, 1 / std::sqrt(static_cast<float>(kHeadDim)),
                  /*rope_scale=*/1, /*rope_theta=*/1e4F);
    const auto at = [this](std::int64_t offset) {
      return flashinfer::GetPtrFromBaseOffset<std::int32_t>(workspace_.plan(), offset);
    };
    params.request_indices = at(plan_.request_indices_offset);
    params.qo_tile_indices = at(plan_.qo_tile_indices_offset);
    params.kv_tile_indices = at(plan_.kv_tile_indices_offset);
    params.o_indptr = at(plan_.o_indptr_offset);
    params.kv_chunk_size_ptr = at(plan_.kv_chunk_size_ptr_offset);
    params.padded_batch_size = static_cast<std::uint32_t>(plan_.padded_batch_size);
    params.max_total_num_rows = static_cast<std::uint32_t>(plan_.total_num_rows);
    Bf16* partials = nullptr;
    float* partial_lse = nullptr;
    if (plan_.split_kv) {
      params.merge_indptr = at(plan_.merge_indptr_offset);
      partials = flashinfer::GetPtrFromBaseOffset<Bf16>(workspace_.partials(), plan_.v_offset);
      partial_lse = flashinfer::GetPtrFromBaseOffset<float>(workspace_.partials(), plan_.s_offset);
    }
    cudaError_t status = cudaErrorInvalidValue;  // a tile that no plan has at this head_dim
    if (plan_.cta_tile_q == 16) status = launch_tile<16>(params, partials, partial_lse, stream);
    if (plan_.cta_tile_q == 64) status = launch_tile<64>(params, partials, partial_lse, stream);
    if (plan_.cta_tile_q == 128) status = launch_tile<128>(params, partials, partial_lse, stream);
    cuda::check(status, "FlashInfer's BatchPrefillWithPagedKVCache");
  }

 private:
  Shape shape_;
  DeviceRequests requests_;
  Workspace workspace_;
  flashinfer::PrefillPlanInfo plan_;
};

}  // namespace

std::unique_ptr<Attention> make_tensor_core_attention(const Requests& requests, const Shape& shape,
                                                      cudaStream_t stream) {
  return std::make_unique<TensorCoreAttention>(requests, shape, stream);
}

void merge_in_place(void* out, float* lse, void* other, float* other_lse, std::uint32_t rows,
                    std::uint32_t heads, cudaStream_t stream) {
  cuda::check(flashinfer::MergeStateInPlace<Bf16>(static_cast<Bf16*>(out), lse,
                                                  static_cast<Bf16*>(other), other_lse, rows, heads,
                                                  kHeadDim, /*mask=*/nullptr, stream),
              "FlashInfer's MergeStateInPlace");
}

}  // namespace dendrite::bench::fi
