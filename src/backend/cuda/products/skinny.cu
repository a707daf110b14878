// Products of a few rows: y = x W^T with W [n, k] in bf16, row-major, and at most 8 rows of x.
// Floor: the bytes of W over read bandwidth.
//
// One block a multiprocessor walks over units of 16 outputs. Its warps split k into fixed slices
// and their sums meet in shared memory in a fixed order: a row's bits depend on the row and W
// alone. A warp's step is 16 outputs by 32 k: lane (g, t) = (lane / 4, lane % 4) holds
// W[g][8t..8t+8) and W[g + 8][the same], 16 bytes each, which are the A fragments of two
// mma.m16n8k16, with k permuted; x is the B operand, permuted alike. Lanes copy their own 16 bytes
// to shared memory asynchronously and read them back themselves, so that kStages steps a warp are
// in flight and no warp waits for another. W does not depend on earlier kernels: its first steps,
// as much as shared memory holds, are fetched before wait_for_earlier(), which keeps memory busy
// from one product to the next. A block takes a multiprocessor for itself: with room for two, some
// multiprocessors get two blocks of a product and others none.
#include <algorithm>

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/products/skinny.h"
#include "backend/cuda/stores/rope.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kStepK = 32;
constexpr int kTileOutputs = 16;
constexpr int kRowTile = 8;
constexpr int kRowStride = 20;  // of a warp's sums [rows][16 outputs]: no bank conflicts

/// kResident: a warp holds its slice of x in registers, at most kGroup steps; else it loads kGroup
/// steps ahead.
template <int kGroup_, bool kResident_, int kStages_>
struct Plan {
  static constexpr int kWarps = 16;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = kStages_;
  static constexpr int kGroup = kGroup_;
  static constexpr bool kResident = kResident_;
  static constexpr int kSums = kRowTile * kRowStride;  // of a warp
  static constexpr int kStepBytes = 2 * kThreads * 16;
  static constexpr int kRingBytes = kStages * kStepBytes;
  static constexpr int kSharedBytes = kRingBytes + 2 * kWarps * kSums * 4;
};

struct Arguments {
  const bf16* weight;
  std::int64_t ld;
  int units;
  int steps;  // of 32 k
  int ffn;
  int rows;
  const float* bias;
  const bf16* x;
  std::int64_t x_stride;
  void* out;
  std::int64_t out_stride;
  RopeArguments rope;
};

/// kRope: pair `index` of a unit, which is 8 pairs of one head.
__device__ HeadPair pair_of(const RopeArguments& rope, int unit, int index) {
  const int units = HeadPair::half(rope) / 8;  // of a head
  return {unit / units, unit % units * 8 + index};
}

__device__ void copy_async(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared), "l"(global)
               : "memory");
}
/// The warp's stream of steps: unit after unit of this block, its slice of k in each.
template <class P, Epilogue kEpilogue>
class Stream {
 public:
  __device__ Stream(const Arguments& args, std::uint32_t ring, int first, int count)
      : args_(args),
        ring_(ring + threadIdx.x * 16),
        k_(first * kStepK + static_cast<int>(threadIdx.x) % 4 * 8),
        count_(count),
        unit_(static_cast<int>(blockIdx.x)) {
    enter_unit();
  }

  /// Fetches the next step into the ring. Ends the group of copies also when there is none.
  __device__ void fetch() {
    if (unit_ < args_.units && step_ < count_) {
      const std::uint32_t target = slot();
      copy_async(target, next_);
      copy_async(target + P::kThreads * 16, next_ + partner() * args_.ld);
      next_ += kStepK;
      if (++step_ == count_) {
        step_ = 0;
        unit_ += static_cast<int>(gridDim.x);
        enter_unit();
      }
    }
    commit_copies();
    slot_ = slot_ + 1 == P::kStages ? 0 : slot_ + 1;
  }

  /// The oldest step: sums += W x. The next one takes its place. Requires kStages fetches before.
  __device__ void consume(float (&sums)[4], const uint4& x) {
    wait_copies<P::kStages - 1>();
    const uint4 a = load_shared(slot());
    const uint4 b = load_shared(slot() + P::kThreads * 16);
    multiply_add(sums, {a.x, b.x, a.y, b.y}, x.x, x.y);
    multiply_add(sums, {a.z, b.z, a.w, b.w}, x.z, x.w);
    fetch();
  }

 private:
  /// Rows of W from one of a unit's first 8 to one of its last 8.
  __device__ int partner() const {
    if constexpr (kEpilogue == Epilogue::kSiluMul) return args_.ffn;
    if constexpr (kEpilogue == Epilogue::kRope) return HeadPair::half(args_.rope);
    return 8;
  }
  __device__ std::uint32_t slot() const { return ring_ + slot_ * P::kStepBytes; }
  __device__ void enter_unit() {
    const auto g = threadIdx.x % 32 / 4;
    const int row = kEpilogue == Epilogue::kRope
                        ? pair_of(args_.rope, unit_, static_cast<int>(g)).column(args_.rope)
                        : unit_ * (kEpilogue == Epilogue::kSiluMul ? 8 : kTileOutputs) + g;
    next_ = args_.weight + row * args_.ld + k_;
  }

  const Arguments& args_;
  std::uint32_t ring_;
  int k_;
  int count_;
  int unit_;
  int step_ = 0;
  int slot_ = 0;
  const bf16* next_;  // row g of the unit
};

/// The B fragment of one step of bf16 x.
__device__ uint4 load_x(const bf16* row, int step, int count) {
  if (row == nullptr || step >= count) return make_uint4(0, 0, 0, 0);
  return __ldcg(reinterpret_cast<const uint4*>(row + step * kStepK));
}

/// What a thread does at the end of a unit: one output of one row. Threads take turns at being
/// first, so that no warp falls behind the others.
template <class P, Epilogue kEpilogue>
struct Output {
  static constexpr bool kPairs = kEpilogue == Epilogue::kSiluMul || kEpilogue == Epilogue::kRope;
  static constexpr int kColumns = kPairs ? 8 : kTileOutputs;
  static_assert(P::kThreads >= kColumns * kRowTile);

  int row;
  int column;  // in the unit

  __device__ explicit Output(int turn) {
    const int index =
        (static_cast<int>(threadIdx.x) + turn * kColumns * kRowTile) & (P::kThreads - 1);
    row = index / kColumns;
    column = index % kColumns;
  }

  __device__ float* target(const Arguments& args, int unit) const {
    return static_cast<float*>(args.out) + row * args.out_stride + unit * kColumns + column;
  }

  /// The warps' sums in order.
  __device__ float total(const float* sums, int at) const {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < P::kWarps; ++warp) total += sums[warp * P::kSums + at];
    return total;
  }

  /// What is needed besides the sums.
  struct Early {
    float old = 0;           // kAdd
    float2 angle{};          // kRope
    std::int64_t slot = -1;  // kRope
  };
  __device__ Early load(const Arguments& args, int unit) const {
    Early early;
    if (row >= args.rows) return early;
    if constexpr (kEpilogue == Epilogue::kAdd) early.old = __ldcg(target(args, unit));
    if constexpr (kEpilogue == Epilogue::kRope) {
      early.angle = pair_of(args.rope, unit, column).load_angle(args.rope, row);
      early.slot = args.rope.slots[row];
    }
    return early;
  }

  __device__ void store(const Arguments& args, int unit, const float* sums,
                        const Early& early) const {
    if constexpr (kEpilogue == Epilogue::kRope) return store_pair(args, unit, sums, early);
    const int at = row * kRowStride + column;
    const int output = unit * kColumns + column;
    float sum = total(sums, at);
    if (args.bias != nullptr) sum += args.bias[output];
    if constexpr (kEpilogue == Epilogue::kSiluMul) {
      float up = total(sums, at + 8);
      if (args.bias != nullptr) up += args.bias[args.ffn + output];
      static_cast<bf16*>(args.out)[row * args.out_stride + output] = narrow<bf16>(silu(sum) * up);
    } else {
      *target(args, unit) = kEpilogue == Epilogue::kAdd ? early.old + sum : sum;
    }
  }

  __device__ void store_pair(const Arguments& args, int unit, const float* sums,
                             const Early& early) const {
    const RopeArguments& rope = args.rope;
    const HeadPair pair = pair_of(rope, unit, column);
    float a = total(sums, row * kRowStride + column);
    float b = total(sums, row * kRowStride + column + 8);
    pair.put(rope, args.bias, early.angle, early.slot,
             static_cast<float*>(args.out) + row * args.out_stride, a, b);
    if (pair.is_query(rope)) return;
    ExtraStores(rope, row).each(rope, [&](std::int64_t slot) { pair.store(rope, slot, a, b); });
  }
};

template <class P, Epilogue kEpilogue>
__global__ void __launch_bounds__(P::kThreads, 1)
    skinny_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 shared[];
  auto* sums = reinterpret_cast<float*>(shared + P::kRingBytes / 16);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first = args.steps * warp / P::kWarps;
  const int count = args.steps * (warp + 1) / P::kWarps - first;
  const int slice = first * kStepK + t * 8;
  let_next_begin();
  Stream<P, kEpilogue> stream(args, shared_address(shared), first, count);
#pragma unroll
  for (int i = 0; i < P::kStages; ++i) stream.fetch();
  wait_for_earlier();

  const bf16* row = g < args.rows ? args.x + g * args.x_stride + slice : nullptr;
  uint4 x[P::kGroup];
#pragma unroll
  for (int i = 0; i < P::kGroup; ++i) x[i] = load_x(row, i, count);

  int turn = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < args.units;
       unit += static_cast<int>(gridDim.x), ++turn) {
    const Output<P, kEpilogue> output(turn);
    const auto early = output.load(args, unit);
    float c[4] = {};
    for (int base = 0; base < (P::kResident ? 1 : count); base += P::kGroup) {
#pragma unroll
      for (int i = 0; i < P::kGroup; ++i) {
        if (base + i < count) stream.consume(c, x[i]);
        if constexpr (!P::kResident) {
          const int ahead = base + P::kGroup + i;  // behind the last step: the next unit's
          x[i] = load_x(row, ahead < count ? ahead : i, count);
        }
      }
    }
    float* part = sums + turn % 2 * (P::kWarps * P::kSums);  // the other half may still be read
    float* mine = part + warp * P::kSums + 2 * t * kRowStride;
    mine[g] = c[0];
    mine[kRowStride + g] = c[1];
    mine[g + 8] = c[2];
    mine[kRowStride + g + 8] = c[3];
    __syncthreads();
    if (output.row < args.rows) output.store(args, unit, part, early);
  }
}

template <class P, Epilogue kEpilogue>
void launch_plan(const FewRowsProduct& product, const Device& device) {
  const CudaWeight& weight = *product.weight;
  constexpr bool kSilu = kEpilogue == Epilogue::kSiluMul;
  Arguments args{};
  args.weight = reinterpret_cast<const bf16*>(weight.data());
  args.ld = weight.ld();
  args.units = static_cast<int>(weight.rows() / kTileOutputs);
  args.steps = static_cast<int>(weight.cols() / kStepK);
  args.ffn = kSilu ? static_cast<int>(weight.rows() / 2) : 0;
  args.rows = static_cast<int>(product.rows);
  args.bias = product.bias;
  args.x = static_cast<const bf16*>(product.x);
  args.x_stride = product.x_stride;
  args.out = product.out;
  args.out_stride = product.out_stride;
  if constexpr (kEpilogue == Epilogue::kRope) args.rope = *product.rope;
  const auto blocks = static_cast<unsigned>(std::min(args.units, device.multiprocessors()));
  launch_early(skinny_kernel<P, kEpilogue>, dim3(blocks), P::kThreads, P::kSharedBytes,
               device.stream(), args);
}

template <class P>
void launch_epilogue(const FewRowsProduct& product, const Device& device) {
  switch (product.epilogue) {
    case Epilogue::kStore:
      return launch_plan<P, Epilogue::kStore>(product, device);
    case Epilogue::kAdd:
      return launch_plan<P, Epilogue::kAdd>(product, device);
    case Epilogue::kSiluMul:
      return launch_plan<P, Epilogue::kSiluMul>(product, device);
    case Epilogue::kRope:
      return launch_plan<P, Epilogue::kRope>(product, device);
  }
}

// Stages as measured on an H200: at least 6, so that a block has a multiprocessor for itself;
// beyond 10 it gets slower again.
using Narrow = Plan<4, true, 6>;
using Wide = Plan<8, true, 10>;
using Tall = Plan<4, false, 9>;
constexpr int kMostSharedBytes = Wide::kSharedBytes;
static_assert(Narrow::kSharedBytes <= kMostSharedBytes && Tall::kSharedBytes <= kMostSharedBytes);

template <class P>
void allow_shared_bytes() {
  for (const auto kernel :
       {skinny_kernel<P, Epilogue::kStore>, skinny_kernel<P, Epilogue::kAdd>,
        skinny_kernel<P, Epilogue::kSiluMul>, skinny_kernel<P, Epilogue::kRope>}) {
    check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kSharedBytes),
        "matmul");
  }
}

template <class P>
constexpr int kMostSteps = P::kWarps* P::kGroup;

}  // namespace

SkinnyProducts::SkinnyProducts(const Device& device)
    : device_(device), fits_(device.shared_bytes() >= kMostSharedBytes) {
  if (!fits_) return;
  allow_shared_bytes<Narrow>();
  allow_shared_bytes<Wide>();
  allow_shared_bytes<Tall>();
}

bool SkinnyProducts::takes(const CudaWeight& weight) const {
  return fits_ && weight.is_bf16() && weight.cols() % kStepK == 0 &&
         weight.rows() % kTileOutputs == 0;
}

bool SkinnyProducts::rotates(const RopeArguments& rope) {
  return rotates_in_product(rope) && rope.head_dim % kTileOutputs == 0;
}

void SkinnyProducts::launch(const FewRowsProduct& product) const {
  const std::int64_t steps = product.weight->cols() / kStepK;
  if (steps <= kMostSteps<Narrow>) return launch_epilogue<Narrow>(product, device_);
  if (steps <= kMostSteps<Wide>) return launch_epilogue<Wide>(product, device_);
  launch_epilogue<Tall>(product, device_);
}

}  // namespace dendrite::cuda
