// The products of products.cu in passes of few rows, in the same order of sums. Reading the experts
// that are taken is all that takes time then, and few are spread over all multiprocessors: a warp
// has 8 gates and their ups, or 16 outputs of `down` or of ups without gates. Lanes copy their own
// weights to shared memory, some steps ahead (as in skinny.cu).
// Floor: the bytes of the experts that are taken.
#include "backend/cuda/experts/few_products.h"

#include <algorithm>

#include "backend/cuda/base/activations.cuh"
#include "backend/cuda/base/check.h"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kStepK = 32;      // a lane has 8 of them of each row
constexpr int kMostWarps = 12;  // of a block
constexpr int kStages = 6;
constexpr int kPieceBytes = 512;  // 16 of each lane
constexpr int kStageBytes = 3 * kPieceBytes;
constexpr int kRingBytes = kStages * kStageBytes;

int warps_of(const Device& device) {
  return std::min(kMostWarps, device.shared_bytes() / kRingBytes);
}
/// More than half of a multiprocessor's, as blocks are to have one each: there may be fewer units
/// than warps, and where several blocks find room on one multiprocessor, others have none.
int shared_bytes(const Device& device) {
  constexpr int kMoreThanHalf = 116 << 10;
  static_assert(kMostWarps * kRingBytes <= kMoreThanHalf);
  return std::min(kMoreThanHalf, device.shared_bytes());
}

/// Some outputs of an item's expert.
struct Unit {
  ExpertItem item{};
  DeviceMatrix matrix{};
  int ffn = 0;
  int act_cols = 0;  // of its `act`: ffn, and zeros
  int outputs = 0;   // of the matrix, gates without ups
  int cols = 0;      // values of its rows
  int column = 0;    // the unit's first output

  /// This lane's first values of an output's weights; of one that is there.
  __device__ const bf16* weights(int output) const {
    return static_cast<const bf16*>(matrix.data) +
           static_cast<std::int64_t>(min(output, outputs - 1)) * cols + first_k();
  }
  static __device__ int first_k() { return static_cast<int>(threadIdx.x) % 4 * 8; }
  /// Eights of outputs and of the item's rows are spread over lanes alike.
  static __device__ int of_eight() { return static_cast<int>(threadIdx.x) % 32 / 4; }
};

/// A warp's units. kDown: of `down`, or of ups alone.
template <bool kDown>
class Units {
 public:
  static constexpr int kColumns = kDown ? 16 : 8;

  __device__ Units(const ExpertsArguments& args, int kind, int parts)
      : args_(args),
        kind_(kind),
        parts_(parts),
        end_(*args.item_count * parts),
        at_(static_cast<int>(blockIdx.x + threadIdx.x / 32 * gridDim.x)) {}

  /// False: there is none left.
  __device__ bool next(Unit& unit) {
    const int step = static_cast<int>(blockDim.x / 32 * gridDim.x);
    for (; at_ < end_; at_ += step) {
      unit.item = args_.items[at_ / parts_];
      const DeviceExpert& expert = args_.matrices[unit.item.expert];
      const bool of_down = kDown && !args_.ups;
      unit.matrix = of_down ? expert.down : expert.gate_up;
      unit.ffn = expert.ffn;
      unit.act_cols = expert.down_ld;
      unit.outputs = of_down ? args_.dim : expert.ffn;
      unit.cols = of_down ? expert.down_ld : args_.x_ld;
      unit.column = at_ % parts_ * kColumns;
      if (unit.matrix.kind != kind_ || unit.column >= unit.outputs) continue;
      at_ += step;
      return true;
    }
    return false;
  }

 private:
  const ExpertsArguments& args_;
  int kind_;
  int parts_;
  int end_;
  int at_;
};

/// Brings what units multiply to shared memory, step by step: two eights of rows of weights, and
/// the item's rows. These by way of the L1 cache: asked of the L2 cache by all warps at once, which
/// go over k alike, one row took three times as long as the weights.
template <bool kDown>
class Stream {
 public:
  __device__ Stream(const ExpertsArguments& args, const Units<kDown>& units, std::uint32_t rings)
      : args_(args),
        units_(units),
        ring_(rings + threadIdx.x / 32 * kRingBytes + threadIdx.x % 32 * 16) {
    enter_unit();
  }

  /// The next step. Ends the group of copies also where there is none.
  __device__ void fetch() {
    if (is_there_) {
      const bool is_there = k_ + Unit::first_k() < cols_;
      copy_async(slot(), from_[0] + k_, is_there);
      copy_async(slot() + kPieceBytes, from_[1] + k_, is_there);
      copy_async_cached(slot() + 2 * kPieceBytes, from_[2] + k_, is_there);
      k_ += kStepK;
      if (k_ >= cols_) enter_unit();
    }
    commit_copies();
    slot_ = slot_ + 1 == kStages ? 0 : slot_ + 1;
  }

  /// sums += the oldest step's; the next one takes its place. Requires kStages fetches before.
  __device__ void consume(float (&sums)[4]) {
    wait_copies<kStages - 1>();
    const uint4 above = load_shared(slot());
    const uint4 below = load_shared(slot() + kPieceBytes);
    const uint4 rows = load_shared(slot() + 2 * kPieceBytes);
    multiply_add(sums, {above.x, below.x, above.y, below.y}, rows.x, rows.y);
    multiply_add(sums, {above.z, below.z, above.w, below.w}, rows.z, rows.w);
    fetch();
  }

 private:
  __device__ std::uint32_t slot() const { return ring_ + slot_ * kStageBytes; }

  __device__ void enter_unit() {
    Unit unit;
    is_there_ = units_.next(unit);
    if (!is_there_) return;
    k_ = 0;
    cols_ = unit.cols;
    from_[0] = unit.weights(unit.column + Unit::of_eight());
    from_[1] = kDown ? unit.weights(unit.column + Unit::of_eight() + 8)
                     : from_[0] + static_cast<std::int64_t>(unit.ffn) * unit.cols;
    const std::int64_t pair = unit.item.begin + min(Unit::of_eight(), unit.item.count - 1);
    const auto* const row =
        kDown && !args_.ups
            ? static_cast<const bf16*>(args_.act) + pair * args_.act_ld
            : static_cast<const bf16*>(args_.x) + std::int64_t{args_.pair_row[pair]} * args_.x_ld;
    from_[2] = row + Unit::first_k();
  }

  const ExpertsArguments& args_;
  Units<kDown> units_;
  std::uint32_t ring_;
  bool is_there_ = false;
  int cols_ = 0;
  int k_ = 0;  // of the next step
  int slot_ = 0;
  const bf16* from_[3] = {};
};

/// `act` of a column and of pair j of the item's that this thread has, zeros behind ffn.
__device__ void put_act(const ExpertsArguments& a, const Unit& unit, int column, int j,
                        float value) {
  const int row = static_cast<int>(threadIdx.x) % 4 * 2 + j;
  if (row >= unit.item.count || column >= unit.act_cols) return;
  static_cast<bf16*>(a.act)[std::int64_t{unit.item.begin + row} * a.act_ld + column] =
      narrow<bf16>(column < unit.ffn ? value : 0.0f);
}

__device__ void store_gated(const ExpertsArguments& a, const Unit& unit, float (&sums)[4]) {
  const int column = unit.column + Unit::of_eight();
  if (const float* bias = unit.matrix.bias) {
    const int own = min(column, unit.ffn - 1);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] += bias[j < 2 ? own : unit.ffn + own];
  }
  with_gate(a.activation, [&](auto gate) {
#pragma unroll
    for (int j = 0; j < 2; ++j) put_act(a, unit, column, j, gate(sums[j], sums[2 + j]));
  });
}

__device__ void store_outputs(const ExpertsArguments& a, const Unit& unit, const float (&sums)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = unit.column + 8 * half + Unit::of_eight();
    const float* const bias = unit.matrix.bias;
    const float more = bias != nullptr ? bias[min(column, unit.outputs - 1)] : 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float sum = bias != nullptr ? sums[2 * half + j] + more : sums[2 * half + j];
      const int row = static_cast<int>(threadIdx.x) % 4 * 2 + j;
      if (a.ups) {
        put_act(a, unit, column, j, SquaredRelu{}(sum));
      } else if (row < unit.item.count && column < a.dim) {
        a.down[std::int64_t{unit.item.begin + row} * a.dim + column] = sum;
      }
    }
  }
}

template <bool kDown>
__global__ void __launch_bounds__(kMostWarps * 32, 1)
    few_products_kernel(const __grid_constant__ ExpertsArguments a, int kind, int parts) {
  extern __shared__ __align__(16) std::uint8_t rings[];
  let_next_begin();
  wait_for_earlier();
  Units<kDown> units(a, kind, parts);
  Stream<kDown> stream(a, units, shared_address(rings));
#pragma unroll
  for (int i = 0; i < kStages; ++i) stream.fetch();
  for (Unit unit; units.next(unit);) {
    float sums[4] = {};
    for (int k = 0; k < unit.cols; k += kStepK) stream.consume(sums);
    if constexpr (kDown) {
      store_outputs(a, unit, sums);
    } else {
      store_gated(a, unit, sums);
    }
  }
}

template <bool kDown>
void launch(const ExpertsArguments& args, int kind, const Device& device, int outputs) {
  constexpr int kColumns = Units<kDown>::kColumns;
  launch_early(few_products_kernel<kDown>, dim3(static_cast<unsigned>(device.multiprocessors())),
               static_cast<unsigned>(32 * warps_of(device)),
               static_cast<std::size_t>(shared_bytes(device)), device.stream(), args, kind,
               (outputs + kColumns - 1) / kColumns);
}

}  // namespace

void prepare_few_products(const Device& device) {
  for (const auto kernel : {few_products_kernel<false>, few_products_kernel<true>}) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes(device)),
          "experts");
  }
}

void launch_few_gate_ups(const ExpertsArguments& args, int kind, const Device& device) {
  launch<false>(args, kind, device, args.widest);
}

void launch_few_outputs(const ExpertsArguments& args, int kind, const Device& device) {
  launch<true>(args, kind, device, args.ups ? args.widest : args.dim);
}

}  // namespace dendrite::cuda
