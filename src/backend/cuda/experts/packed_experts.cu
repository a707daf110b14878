#include "backend/cuda/experts/packed_experts.h"

#include <array>
#include <span>

#include "backend/cuda/base/check.h"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/products/packed_layouts.h"
#include "dendrite/error.h"

namespace dendrite::cuda::packed {
namespace {

template <class... Q>
std::span<const ExpertKernels* const> kernels_of_all(Layouts<Q...>) {
  static const std::array all{&expert_kernels_of<Q>()...};
  return all;
}

template <bool kFew>
constexpr int kSharedBytes = 2 * kPieceRoom<kFew>;

/// outputs: of an expert at most; of_warp: of them.
template <bool kFew>
void launch(ExpertKernels::Kernel kernel, const ExpertsArguments& args, int kind, int outputs,
            int of_warp, int multiprocessors, cudaStream_t stream) {
  using Cut = ExpertCut<kFew>;
  const int of_block = Cut::kWarps * of_warp;
  const int parts = (outputs + of_block - 1) / of_block;
  launch_early(kernel, dim3(static_cast<unsigned>(Cut::kBlocks * multiprocessors)), Cut::kThreads,
               kSharedBytes<kFew>, stream, args, kind, parts);
}

/// Products whose outputs are by themselves.
void launch_plain(const ExpertKernels& kernels, const ExpertsArguments& args, int kind, int outputs,
                  int multiprocessors, cudaStream_t stream) {
  if (args.rows <= kFewRows) {
    launch<true>(kernels.downs[0], args, kind, outputs, 8 * ExpertCut<true>::kDownTiles,
                 multiprocessors, stream);
  } else {
    launch<false>(kernels.downs[1], args, kind, outputs, 8 * ExpertCut<false>::kDownTiles,
                  multiprocessors, stream);
  }
}

}  // namespace

const ExpertKernels& prepare_expert_kernels(const PackedLayout& layout) {
  for (const ExpertKernels* kernels : kernels_of_all(Compiled{})) {
    if (kernels->layout != layout) continue;
    for (const ExpertKernels::Kernel kernel : {kernels->gate_ups[1], kernels->downs[1]}) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedBytes<false>),
            "experts");
    }
    return *kernels;
  }
  throw Error("experts: no kernel has the layout of a packed weight");
}

void launch_packed_gate_ups(const ExpertKernels& kernels, const ExpertsArguments& args, int kind,
                            int multiprocessors, cudaStream_t stream) {
  if (args.rows <= kFewRows) {
    launch<true>(kernels.gate_ups[0], args, kind, args.widest, 8, multiprocessors, stream);
  } else {
    launch<false>(kernels.gate_ups[1], args, kind, args.widest, 8, multiprocessors, stream);
  }
}

void launch_packed_ups(const ExpertKernels& kernels, const ExpertsArguments& args, int kind,
                       int multiprocessors, cudaStream_t stream) {
  ExpertsArguments of_ups = args;
  of_ups.ups = true;
  launch_plain(kernels, of_ups, kind, args.widest, multiprocessors, stream);
}

void launch_packed_downs(const ExpertKernels& kernels, const ExpertsArguments& args, int kind,
                         int multiprocessors, cudaStream_t stream) {
  launch_plain(kernels, args, kind, args.dim, multiprocessors, stream);
}

}  // namespace dendrite::cuda::packed
