// Mamba-2 behind its convolution, which is short_conv's kernel. A thread block has a run and some
// columns of a head's state, in shared memory; four threads have a column, each every fourth row of
// it. Rows of a chunk share the reads of the state, up to 16 at a time; each row's sums keep their
// order however many there are: over state_dim by four chains of fused multiply-adds, which are
// folded by halves, then over the rows of the chunk up to it, oldest first. Decays between two rows
// are added in the order of the rows. What comes out is gated and normed by a second kernel.
// Floor: the state read once a chunk and head from the GPU's memory; arithmetic of a prompt's chunk
// 2 state_dim * head_dim multiply-adds a row.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/mamba.h"

namespace dendrite::cuda {
namespace {

constexpr int kRows = static_cast<int>(kChunkTokens);
constexpr int kThreads = 128;
constexpr int kColumns = 32;                 // of a thread block
constexpr int kParts = kThreads / kColumns;  // threads of a column
// From row to row of the state, and of B and C: in other banks.
constexpr int kStride = kColumns + 8;
constexpr int kKeyStride = kRows + 4;

/// Of a row's logarithm: e to it is 0, and sums of them stay finite.
constexpr float kLeastDecay = -88.0f;

/// log(1 + e^x)
__device__ inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

/// A block's shared memory.
struct Shared {
  float* state;    // [state_dim][kStride], of the block's columns
  float* keys;     // [state_dim][kKeyStride]: B, by place in the chunk
  float* queries;  // [state_dim][kKeyStride]: C, by row of the piece
  float* writes;   // [16][kColumns]: dt x, by place in the chunk
  float* weights;  // [16][16]: of a row of the piece and a place up to it, decayed
  float* decays;   // [16]: logarithms, by place
  float* behind;   // [16]: their sums over the places behind each
  float* left;     // [16]: what is left of the state at a row of the piece
  float* steps;    // [16]: dt of a row of the piece
};

constexpr std::int64_t shared_floats(std::int64_t state_dim) {
  return state_dim * (kStride + 2 * kKeyStride) + kRows * (kColumns + kRows + 4);
}

__device__ inline Shared shared_of(int state_dim, float* memory) {
  const auto take = [&memory](int count) {
    float* const begin = memory;
    memory += count;
    return begin;
  };
  Shared s;
  s.keys = take(state_dim * kKeyStride);
  s.queries = take(state_dim * kKeyStride);
  s.state = take(state_dim * kStride);
  s.writes = take(kRows * kColumns);
  s.weights = take(kRows * kRows);
  s.decays = take(kRows);
  s.behind = take(kRows);
  s.left = take(kRows);
  s.steps = take(kRows);
  return s;
}

/// A run as its thread block goes over it.
class Scan {
 public:
  __device__ Scan(const MambaArguments& args, const RecurrencePlan::Run& run, float* memory)
      : a_(args),
        run_(run),
        s_(shared_of(args.state_dim, memory)),
        head_(static_cast<int>(blockIdx.x)),
        key_at_(head_ / (args.heads / args.groups) * args.state_dim),
        begin_(static_cast<int>(blockIdx.y) * kColumns),
        width_(min(kColumns, args.head_dim - begin_)) {}

  __device__ void go() {
    load_state();
    load_known();
    __syncthreads();
    int place = run_.known;
    int anchor = run_.anchors_begin;
    const int rows = run_.row_end - run_.row_begin;
    int row = 0;
    while (true) {
      if (place == kRows) {
        const int slot = a_.new_anchors[anchor++];
        if (slot < 0 && row == rows) return;
        fold();
        if (slot >= 0) store_state(slot);
        place = 0;
      }
      if (row == rows) return;
      const int count = min(kRows - place, rows - row);
      piece(row, count, place);
      row += count;
      place += count;
    }
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int column() { return thread() % kColumns; }
  __device__ static int first_row() { return thread() / kColumns; }
  __device__ float* journal(int place) const {
    return a_.journals + a_.known[run_.known_begin + place] * a_.journal_stride;
  }
  /// Of an anchor: the head's state from its first column on that is the block's.
  __device__ float* state_of(int slot) const {
    return a_.anchors + slot * a_.anchor_stride +
           static_cast<std::int64_t>(head_) * a_.state_dim * a_.head_dim + begin_;
  }
  /// Of a row of the run: x, then B, then C, of the first head and group.
  __device__ const float* convolved(int row) const {
    return a_.convolved + static_cast<std::int64_t>(run_.row_begin + row) * a_.channels;
  }
  /// The block's first column among those of all heads.
  __device__ int value_at() const { return head_ * a_.head_dim + begin_; }

  __device__ void load_state() {
    const float* from = run_.anchor < 0 ? nullptr : state_of(run_.anchor);
    for (int i = first_row(); i < a_.state_dim; i += kParts) {
      s_.state[i * kStride + column()] =
          from != nullptr && column() < width_
              ? from[static_cast<std::int64_t>(i) * a_.head_dim + column()]
              : 0.0f;
    }
  }

  __device__ void load_known() {
    for (int place = 0; place < run_.known; ++place) {
      const float* keys = journal(place) + key_at_;
      for (int i = thread(); i < a_.state_dim; i += kThreads) {
        s_.keys[i * kKeyStride + place] = keys[i];
      }
    }
    for (int place = first_row(); place < run_.known; place += kParts) {
      s_.writes[place * kColumns + column()] =
          column() < width_ ? journal(place)[a_.group_columns + value_at() + column()] : 0.0f;
    }
    if (thread() < run_.known) s_.decays[thread()] = journal(thread())[a_.decays_at + head_];
  }

  /// Rows [first, first + count) of the run, at places [place, place + count) of their chunk.
  __device__ void piece(int first, int count, int place) {
    take_rows(first, count, place);
    weigh(count, place);
    if (count == 1) {
      columns<1>(first, 1, place);
    } else {
      columns<kRows>(first, count, place);
    }
    store_journals(first, count, place);
    __syncthreads();
  }

  __device__ void take_rows(int first, int count, int place) {
    if (thread() < count) {
      const float in = a_.in[(run_.row_begin + first + thread()) * a_.in_stride + a_.columns +
                             a_.channels + head_];
      const float step = fminf(fmaxf(softplus(in + a_.dt_bias[head_]), a_.least_dt), a_.most_dt);
      s_.steps[thread()] = step;
      s_.decays[place + thread()] = fmaxf(kLeastDecay, -__fmul_rn(a_.decay[head_], step));
    }
    for (int t = 0; t < count; ++t) {
      const float* keys = convolved(first + t) + a_.columns + key_at_;
      for (int i = thread(); i < a_.state_dim; i += kThreads) {
        s_.keys[i * kKeyStride + place + t] = keys[i];
        s_.queries[i * kKeyStride + t] = keys[a_.group_columns + i];
      }
    }
    __syncthreads();
    for (int t = first_row(); t < count; t += kParts) {
      s_.writes[(place + t) * kColumns + column()] =
          column() < width_ ? __fmul_rn(s_.steps[t], convolved(first + t)[value_at() + column()])
                            : 0.0f;
    }
  }

  /// The sum of logarithms of places (from, to], in their order.
  __device__ float decay_between(int from, int to) const {
    float sum = 0;
    for (int i = from + 1; i <= to; ++i) sum += s_.decays[i];
    return sum;
  }

  /// What a row reads of those up to it, and what is left of the state there.
  __device__ void weigh(int count, int place) {
    for (int pair = thread(); pair < count * kRows; pair += kThreads) {
      const int t = pair / kRows;
      const int j = pair % kRows;
      if (j > place + t) continue;
      float dot = 0;
#pragma unroll 8
      for (int i = 0; i < a_.state_dim; ++i) {
        dot = fmaf(s_.keys[i * kKeyStride + j], s_.queries[i * kKeyStride + t], dot);
      }
      s_.weights[pair] = __fmul_rn(expf(decay_between(j, place + t)), dot);
    }
    if (thread() < count) s_.left[thread()] = expf(decay_between(-1, place + thread()));
    __syncthreads();
  }

  /// A column of the state: what comes out. N: as many rows, or more.
  template <int N>
  __device__ void columns(int first, int count, int place) {
    const int part = thread() % kParts;
    const int v = thread() / kParts;
    float sums[N];
#pragma unroll
    for (int t = 0; t < N; ++t) sums[t] = 0;
#pragma unroll 4
    for (int i = part; i < a_.state_dim; i += kParts) {
      const float state = s_.state[i * kStride + v];
      const float* queries = s_.queries + i * kKeyStride;
#pragma unroll
      for (int t = 0; t < N; ++t) {
        // (Of rows that are not there whatever lies there: nothing is made of it.)
        sums[t] = fmaf(state, queries[t], sums[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < N; ++t) {
      for (int width = 1; width < kParts; width *= 2) {
        sums[t] += __shfl_xor_sync(0xffffffffu, sums[t], width);
      }
    }
    if (part != 0 || v >= width_) return;
    const float skip = a_.skip[head_];
#pragma unroll
    for (int t = 0; t < N; ++t) {
      if (t >= count) break;
      float out = __fmul_rn(s_.left[t], sums[t]);
      for (int j = 0; j <= place + t; ++j) {
        out = fmaf(s_.weights[t * kRows + j], s_.writes[j * kColumns + v], out);
      }
      const std::int64_t row = run_.row_begin + first + t;
      const int at = value_at() + v;
      a_.values[row * a_.columns + at] = fmaf(skip, convolved(first + t)[at], out);
    }
  }

  __device__ void store_journals(int first, int count, int place) const {
    for (int t = first_row(); t < count; t += kParts) {
      const int slot = a_.row_journals[run_.row_begin + first + t];
      if (slot < 0) continue;
      float* to = a_.journals + slot * a_.journal_stride;
      if (column() < width_) {
        to[a_.group_columns + value_at() + column()] = s_.writes[(place + t) * kColumns + column()];
      }
      if (column() == 0 && begin_ == 0) to[a_.decays_at + head_] = s_.decays[place + t];
    }
  }

  /// The state goes behind the chunk.
  __device__ void fold() {
    if (thread() < kRows) s_.behind[thread()] = expf(decay_between(thread(), kRows - 1));
    __syncthreads();
    const float left = expf(decay_between(-1, kRows - 1));
    float writes[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      writes[j] = __fmul_rn(s_.behind[j], s_.writes[j * kColumns + column()]);
    }
#pragma unroll 4
    for (int i = first_row(); i < a_.state_dim; i += kParts) {
      float state = __fmul_rn(left, s_.state[i * kStride + column()]);
#pragma unroll
      for (int j = 0; j < kRows; ++j) state = fmaf(s_.keys[i * kKeyStride + j], writes[j], state);
      s_.state[i * kStride + column()] = state;
    }
    __syncthreads();
  }

  __device__ void store_state(int slot) const {
    if (column() >= width_) return;
    float* to = state_of(slot);
    for (int i = first_row(); i < a_.state_dim; i += kParts) {
      to[static_cast<std::int64_t>(i) * a_.head_dim + column()] = s_.state[i * kStride + column()];
    }
  }

  const MambaArguments& a_;
  const RecurrencePlan::Run run_;
  const Shared s_;
  const int head_;
  const int key_at_;  // where the columns of the head's group begin
  const int begin_;   // of the block's columns
  const int width_;   // how many there are
};

/// grid (heads, parts of head_dim, runs)
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const __grid_constant__ MambaArguments args, std::int32_t level) {
  extern __shared__ float4 memory[];
  let_next_begin();
  wait_for_earlier();
  const LeveledRun& of = args.runs[blockIdx.z];
  if (of.level != level) return;
  Scan(args, of.run, reinterpret_cast<float*>(memory)).go();
}

/// A block has a row's group: gated, normed. grid (groups, rows)
__global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ MambaArguments a) {
  let_next_begin();
  wait_for_earlier();
  __shared__ float sums[kThreads / 32];
  const int group = static_cast<int>(blockIdx.x);
  const std::int64_t row = blockIdx.y;
  const int cols = a.columns / a.groups;
  const float* values = a.values + row * a.columns + group * cols;
  const float* gates = a.in + row * a.in_stride + group * cols;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = thread; i < cols; i += kThreads) {
    const float gated = __fmul_rn(values[i], silu(gates[i]));
    sum = fmaf(gated, gated, sum);
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  float all = 0;
  for (const float of_warp : sums) all += of_warp;
  const float factor = 1.0f / sqrtf(all / static_cast<float>(cols) + a.norm_eps);
  const std::int64_t at = row * a.out_ld + group * cols;
  for (int i = thread; i < cols; i += kThreads) {
    const float gated = __fmul_rn(values[i], silu(gates[i]));
    const float out = a.norm[group * cols + i] * (gated * factor);
    if (a.out_bf16) {
      static_cast<bf16*>(a.out)[at + i] = narrow<bf16>(out);
    } else {
      static_cast<float*>(a.out)[at + i] = out;
    }
  }
  if (!a.out_bf16 || group != a.groups - 1) return;
  for (std::int64_t i = a.columns + thread; i < a.out_ld; i += kThreads) {
    static_cast<bf16*>(a.out)[row * a.out_ld + i] = narrow<bf16>(0.0f);
  }
}

}  // namespace

std::int64_t mamba_shared_bytes(const MambaArguments& args) {
  return 4 * shared_floats(args.state_dim);
}

void launch_mamba(const MambaArguments& args, std::int32_t level, cudaStream_t stream) {
  const std::int64_t bytes = mamba_shared_bytes(args);
  cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  const dim3 grid(static_cast<unsigned>(args.heads),
                  static_cast<unsigned>((args.head_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(args.run_count));
  launch_early(scan_kernel, grid, kThreads, static_cast<std::size_t>(bytes), stream, args, level);
}

void launch_mamba_norm(const MambaArguments& args, std::int64_t rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.groups), static_cast<unsigned>(rows));
  launch_early(norm_kernel, grid, kThreads, 0, stream, args);
}

}  // namespace dendrite::cuda
