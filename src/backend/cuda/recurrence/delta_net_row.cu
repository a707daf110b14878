// The gated delta network for runs of one row, as decoding has them, with heads of 128 x 32 n: to
// the bit what delta_net.cu computes. A thread block has a run and a value head. Half of its state
// is in registers and half in shared memory, so that four blocks of 128 columns share a
// multiprocessor. Both halves come by way of shared memory, the first before anything else, the
// second while the row is convolved and normed: loads to registers would keep all others of the
// multiprocessor waiting behind them. A warp has 32 columns, a thread four of them and every fourth
// row. So four threads have the four chains of a column's sums over key_dim.
// Floor: the state read once from the GPU's memory.
#include "backend/cuda/base/hopper.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kKeyDim = 128;
constexpr int kTaps = 4;
constexpr int kMostValueDim = 256;
constexpr int kGates = 32;  // the thread that works them out: of a warp that does not normalise
constexpr int kRowsOfThread = kKeyDim / kParts;
constexpr int kHalfRows = kRowsOfThread / 2;  // the first are in registers, the others shared
constexpr int kKeyRow = kKeyDim + 4;          // rows of keys in shared memory begin in other banks

/// For heads of up to kColumns values.
template <int kColumns>
struct Memory {
  alignas(16) float keys[kRows][kKeyRow];  // by place in the chunk
  alignas(16) float query[kKeyDim];
  alignas(16) float writes[kRows][kColumns];
  alignas(16) float values[kColumns];
  alignas(16) float state[kHalfRows * kParts][kColumns];
  float on_keys[kRows];  // of the row's key and that of a place before it, decayed
  float on_queries[kRows];
  float decayed[kRows];  // logarithms since the chunk began
  float writing;         // how much is written
  std::int32_t known[kRows];
  std::uint64_t state_there;  // a barrier
};

/// 16 bytes to shared memory, in the background.
__device__ inline void copy_four(float* to, const float* from) {
  copy_async(shared_address(to), from, true);
}

template <int kColumns>
class RowWalk {
 public:
  __device__ RowWalk(const DeltaNetArguments& args, const RecurrencePlan::Run& run,
                     Memory<kColumns>& memory)
      : a_(args),
        run_(run),
        s_(memory),
        thread_(static_cast<int>(threadIdx.x)),
        head_(static_cast<int>(blockIdx.x)),
        key_head_(head_ / (args.value_heads / args.key_heads)),
        part_(thread_ % 32 / 8),
        column_(thread_ / 32 * 32 + thread_ % 8 * 4),
        keys_(args.key_heads * kKeyDim),
        channels_(2 * keys_ + args.value_heads * args.value_dim),
        first_of_key_head_(head_ % (args.value_heads / args.key_heads) == 0) {}

  __device__ void go() {
    begin_half(0);
    if (thread_ < run_.known) s_.known[thread_] = a_.known[run_.known_begin + thread_];
    __syncthreads();
    load_known();
    const bool has_row = run_.row_end > run_.row_begin;
    if (has_row) load_known_channels();
    let_next_begin();
    take_half();
    wait_for_earlier();  // what is not of this pass needs no wait
    int anchor = run_.anchors_begin;
    int place = run_.known;
    if (place == kRows) {
      const int slot = a_.new_anchors[anchor++];
      if (slot >= 0 || has_row) {
        await_copies();
        fold();
        if (slot >= 0) store_anchor(slot, 0);
        place = 0;
      }
    }
    if (has_row) {
      row(place);
      if (place + 1 == kRows) {
        const int slot = a_.new_anchors[anchor];
        if (slot >= 0) {
          fold();
          store_anchor(slot, 1);
        }
      }
    }
    await_copies();
    await_half(1);  // also where nothing read it
  }

 private:
  __device__ float* anchor(int slot) const { return a_.anchors + slot * a_.anchor_stride; }
  __device__ float* journal(int slot) const { return a_.journals + slot * a_.journal_stride; }
  __device__ int state_values() const { return a_.value_heads * kKeyDim * a_.value_dim; }
  // Where the parts of a journal begin.
  __device__ int writes_at() const { return keys_; }
  __device__ int decayed_at() const { return writes_at() + a_.value_heads * a_.value_dim; }
  __device__ int convolved_at() const { return decayed_at() + a_.value_heads; }
  // Channels of what is convolved.
  __device__ int query_channel() const { return key_head_ * kKeyDim + thread_; }
  __device__ int value_channel() const { return 2 * keys_ + head_ * a_.value_dim + thread_; }

  /// The thread's columns of its row number r of an anchor's state.
  __device__ float4* state_row(int slot, int r) const {
    float* const state = anchor(slot) + static_cast<std::int64_t>(head_) * kKeyDim * a_.value_dim;
    return reinterpret_cast<float4*>(
        state + static_cast<std::int64_t>(part_ + r * kParts) * a_.value_dim + column_);
  }

  /// The same of the half in shared memory.
  __device__ float4* shared_row(int r) const {
    return reinterpret_cast<float4*>(&s_.state[part_ + r * kParts][column_]);
  }

  /// Brings a half of the state to shared memory, in the background.
  __device__ void begin_half(int half) const {
    if (run_.anchor < 0) return;
#if __CUDA_ARCH__ >= 900
    if (thread_ != 0) return;
    const std::uint32_t barrier = shared_address(&s_.state_there);
    if (half == 0) {
      init_barrier(barrier, 1);
      publish_barriers();
    }
    constexpr int kHalf = kHalfRows * kParts;
    const float* const from =
        anchor(run_.anchor) +
        (static_cast<std::int64_t>(head_) * kKeyDim + half * kHalf) * a_.value_dim;
    arrive_for_bytes(barrier, kHalf * a_.value_dim * 4);
    const int rows = a_.value_dim == kColumns ? kHalf : 1;  // that follow each other in both
    for (int row = 0; row < kHalf; row += rows) {
      copy_bytes(shared_address(&s_.state[row][0]), from + row * a_.value_dim,
                 rows * a_.value_dim * 4, barrier);
    }
#else
#pragma unroll
    for (int r = 0; r < kHalfRows; ++r) {
      copy_async(shared_address(shared_row(r)), state_row(run_.anchor, half * kHalfRows + r), true);
    }
#endif
  }
  __device__ void await_half([[maybe_unused]] int half) const {
    if (run_.anchor < 0) return;
#if __CUDA_ARCH__ >= 900
    wait_barrier(shared_address(&s_.state_there), half);
#else
    commit_copies();
    wait_copies<0>();
#endif
  }
  /// The first half to registers, after which the second begins to come.
  __device__ void take_half() {
    await_half(0);
#pragma unroll
    for (int r = 0; r < kHalfRows; ++r) {
      state_[r] = run_.anchor < 0 ? make_float4(0, 0, 0, 0) : *shared_row(r);
    }
    __syncthreads();
    begin_half(1);
    if (run_.anchor >= 0) return;
#pragma unroll
    for (int r = 0; r < kHalfRows; ++r) *shared_row(r) = make_float4(0, 0, 0, 0);
  }

  __device__ void load_known() {
    const int warps = a_.value_dim / 32;
    for (int place = thread_ / 32; place < run_.known; place += warps) {
      const float* const from = journal(s_.known[place]);
      const int four = thread_ % 32 * 4;
      copy_four(&s_.keys[place][four], from + key_head_ * kKeyDim + four);
      for (int i = four; i < a_.value_dim; i += kKeyDim) {
        copy_four(&s_.writes[place][i], from + writes_at() + head_ * a_.value_dim + i);
      }
    }
    if (thread_ < run_.known) {
      copy_async(&s_.decayed[thread_], journal(s_.known[thread_]) + decayed_at() + head_);
    }
  }
  __device__ static void await_copies() {
    commit_copies();
    wait_copies<0>();
    __syncthreads();
  }

  __device__ const float* convolved(int row) const {
    return convolved_row(a_, run_, s_.known, row);
  }

  /// A channel of the row.
  struct Channel {
    float in[kTaps];
    float weights[kTaps];

    /// What is there before the row is, of the rows before it.
    __device__ void load_known(const float* const (&before)[kTaps - 1], const float* conv,
                               int channel) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        if (tap < kTaps - 1) in[tap] = load(before[tap], channel);
        weights[tap] = conv[channel * kTaps + tap];
      }
    }
    __device__ float out() const {
      float sum = 0;
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) sum = fmaf(weights[tap], in[tap], sum);
      return silu(sum);
    }
  };

  __device__ void load_known_channels() {
    const float* before[kTaps - 1];
#pragma unroll
    for (int tap = 0; tap < kTaps - 1; ++tap) before[tap] = convolved(tap - (kTaps - 1));
    value_.load_known(before, a_.conv, value_channel());
    if (thread_ >= kKeyDim) return;
    query_.load_known(before, a_.conv, query_channel());
    key_.load_known(before, a_.conv, keys_ + query_channel());
  }

  /// The run's row, at this place of its chunk.
  __device__ void row(int place) {
    const int slot = a_.row_journals[run_.row_begin];  // (asked for early)
    prepare(place, slot);
    dots(place);
    columns(place);
    __syncthreads();
    store(place, slot);
  }

  /// Query, key and value, and gates. What the journal keeps of what is convolved goes there.
  __device__ void prepare(int place, int slot) {
    float write = 0;
    float decay = 0;
    float bias = 0;
    if (thread_ == kGates) {
      const float* gates =
          a_.in + run_.row_begin * a_.in_stride + channels_ + a_.value_heads * a_.value_dim + head_;
      write = gates[0];
      decay = gates[a_.value_heads];
      bias = a_.dt_bias[head_];
    }
    const float* const own = convolved(0);
    value_.in[kTaps - 1] = own[value_channel()];
    if (thread_ < kKeyDim) {
      query_.in[kTaps - 1] = own[query_channel()];
      key_.in[kTaps - 1] = own[keys_ + query_channel()];
    }
    if (slot >= 0) {
      float* const to = journal(slot) + convolved_at();
      if (thread_ < kKeyDim && first_of_key_head_) {
        to[query_channel()] = query_.in[kTaps - 1];
        to[keys_ + query_channel()] = key_.in[kTaps - 1];
      }
      to[value_channel()] = value_.in[kTaps - 1];
    }
    await_copies();  // a chunk's places may be known until here
    if (thread_ < kKeyDim) {
      s_.query[thread_] = query_.out();
      s_.keys[place][thread_] = key_.out();
    }
    s_.values[thread_] = value_.out();
    __syncthreads();
    if (thread_ == kGates) {
      s_.writing = sigmoid(write);
      const float mine = fmaxf(kLeastDecay, -(a_.decay[head_] * softplus(decay + bias)));
      s_.decayed[place] = (place == 0 ? 0.0f : s_.decayed[place - 1]) + mine;
    }
    const float scale = 1.0f / sqrtf(static_cast<float>(kKeyDim));
    if (thread_ / 32 == 0) normalise(s_.query, scale);
    if (thread_ / 32 == a_.value_dim / 32 - 1) normalise(s_.keys[place], 1.0f);
    __syncthreads();
  }

  /// By a warp.
  __device__ static void normalise(float* vector, float scale) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum = 0;
#pragma unroll
    for (int i = lane; i < kKeyDim; i += 32) sum = fmaf(vector[i], vector[i], sum);
    const float factor = scale / sqrtf(warp_sum(sum) + 1e-6f);
#pragma unroll
    for (int i = lane; i < kKeyDim; i += 32) vector[i] *= factor;
  }

  /// The row's key on those before it in the chunk, its query also on its own: a thread a sum.
  __device__ void dots(int place) {
    const int j = thread_ / 2;
    if (j <= place) {
      const float* const mine = thread_ % 2 == 0 ? s_.keys[place] : s_.query;
      float sum = 0;
#pragma unroll 8
      for (int i = 0; i < kKeyDim; i += 4) {
        const float4 a = *reinterpret_cast<const float4*>(mine + i);
        const float4 b = *reinterpret_cast<const float4*>(&s_.keys[j][i]);
        sum = fmaf(a.x, b.x, sum);
        sum = fmaf(a.y, b.y, sum);
        sum = fmaf(a.z, b.z, sum);
        sum = fmaf(a.w, b.w, sum);
      }
      const float left = expf(s_.decayed[place] - s_.decayed[j]);
      (thread_ % 2 == 0 ? s_.on_keys : s_.on_queries)[j] = left * sum;
    }
    __syncthreads();
  }

  /// What the row writes to its columns, and what comes out.
  __device__ void columns(int place) {
    float on_keys[4] = {};
    float on_queries[4] = {};
    await_half(1);
#pragma unroll
    for (int r = 0; r < kRowsOfThread; ++r) {
      const float key = s_.keys[place][part_ + r * kParts];
      const float query = s_.query[part_ + r * kParts];
      const float4 row = r < kHalfRows ? state_[r] : *shared_row(r - kHalfRows);
      const float state[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        on_keys[c] = fmaf(state[c], key, on_keys[c]);
        on_queries[c] = fmaf(state[c], query, on_queries[c]);
      }
    }
    const float left = expf(s_.decayed[place]);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      for (int width = 8; width < 32; width *= 2) {
        on_keys[c] += __shfl_xor_sync(0xffffffffu, on_keys[c], width);
        on_queries[c] += __shfl_xor_sync(0xffffffffu, on_queries[c], width);
      }
      on_keys[c] = __fmul_rn(left, on_keys[c]);
      on_queries[c] = __fmul_rn(left, on_queries[c]);
    }
    for (int j = 0; j < place; ++j) {
      const float4 write = *reinterpret_cast<const float4*>(&s_.writes[j][column_]);
      const float writes[4] = {write.x, write.y, write.z, write.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        on_keys[c] = fmaf(s_.on_keys[j], writes[c], on_keys[c]);
        on_queries[c] = fmaf(s_.on_queries[j], writes[c], on_queries[c]);
      }
    }
    if (part_ != 0) return;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float write = s_.writing * (s_.values[column_ + c] - on_keys[c]);
      s_.writes[place][column_ + c] = write;
      s_.values[column_ + c] = fmaf(s_.on_queries[place], write, on_queries[c]);
    }
  }

  /// What comes out, not normed yet, and the rest of the journal.
  __device__ void store(int place, int slot) const {
    const int value = head_ * a_.value_dim + thread_;
    a_.values[run_.row_begin * static_cast<std::int64_t>(a_.value_heads) * a_.value_dim + value] =
        s_.values[thread_];
    if (slot < 0) return;
    float* const to = journal(slot);
    if (thread_ < kKeyDim && first_of_key_head_) to[query_channel()] = s_.keys[place][thread_];
    to[writes_at() + value] = s_.writes[place][thread_];
    if (thread_ == 0) to[decayed_at() + head_] = s_.decayed[place];
  }

  /// The state goes behind the chunk.
  __device__ void fold() {
    constexpr int kAtATime = kHalfRows / 2;
    await_half(1);
#pragma unroll 1
    for (int first = 0; first < kHalfRows; first += kAtATime) {
      float4 rows[kAtATime];
#pragma unroll
      for (int r = 0; r < kAtATime; ++r) rows[r] = *shared_row(first + r);
      fold(rows, kHalfRows + first);
#pragma unroll
      for (int r = 0; r < kAtATime; ++r) *shared_row(first + r) = rows[r];
    }
    fold(state_, 0);
    __syncthreads();  // places are free
  }

  /// The thread's rows from number `first` on.
  template <int kCount>
  __device__ void fold(float4 (&rows)[kCount], int first) const {
    const float all = s_.decayed[kRows - 1];
    const float left = expf(all);
#pragma unroll
    for (float4& row : rows) {
      row.x *= left;
      row.y *= left;
      row.z *= left;
      row.w *= left;
    }
#pragma unroll 1
    for (int j = 0; j < kRows; ++j) {
      const float4 write = *reinterpret_cast<const float4*>(&s_.writes[j][column_]);
      const float of_row = expf(all - s_.decayed[j]);
      const float writes[4] = {of_row * write.x, of_row * write.y, of_row * write.z,
                               of_row * write.w};
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        const float key = s_.keys[j][part_ + (first + r) * kParts];
        rows[r].x = fmaf(key, writes[0], rows[r].x);
        rows[r].y = fmaf(key, writes[1], rows[r].y);
        rows[r].z = fmaf(key, writes[2], rows[r].z);
        rows[r].w = fmaf(key, writes[3], rows[r].w);
      }
    }
  }

  /// Behind the chunk that ends before the run's row number `row`.
  __device__ void store_anchor(int slot, int row) const {
#pragma unroll
    for (int r = 0; r < kRowsOfThread; ++r) {
      *state_row(slot, r) = r < kHalfRows ? state_[r] : *shared_row(r - kHalfRows);
    }
    float* tail = anchor(slot) + state_values();
#pragma unroll
    for (int back = 0; back < kTaps - 1; ++back, tail += channels_) {
      const float* const row_of = convolved(row - (kTaps - 1) + back);
      if (thread_ < kKeyDim && first_of_key_head_) {
        tail[query_channel()] = load(row_of, query_channel());
        tail[keys_ + query_channel()] = load(row_of, keys_ + query_channel());
      }
      tail[value_channel()] = load(row_of, value_channel());
    }
  }

  const DeltaNetArguments& a_;
  const RecurrencePlan::Run run_;
  Memory<kColumns>& s_;
  const int thread_;
  const int head_;
  const int key_head_;
  const int part_;
  const int column_;  // first of four
  const int keys_;
  const int channels_;
  const bool first_of_key_head_;
  float4 state_[kHalfRows];
  Channel query_;
  Channel key_;
  Channel value_;
};

/// grid (value_heads, 1, runs), value_dim threads
template <int kColumns>
__global__ void __launch_bounds__(kColumns, 512 / kColumns)
    delta_net_row_kernel(const __grid_constant__ DeltaNetArguments args, std::int32_t level) {
  extern __shared__ __align__(16) std::byte memory[];
  const LeveledRun& of = args.runs[blockIdx.z];
  if (level > 0 || of.level != level) wait_for_earlier();
  if (of.level != level) return;
  RowWalk<kColumns>(args, of.run, *reinterpret_cast<Memory<kColumns>*>(memory)).go();
}

}  // namespace

bool fits_delta_net_row(const DeltaNetArguments& args) {
  return args.one_row && !args.by_channel && args.taps == kTaps && args.key_dim == kKeyDim &&
         args.value_dim % 32 == 0 && args.value_dim >= kKeyDim && args.value_dim <= kMostValueDim &&
         args.value_heads % 4 == 0;  // journals are whole fours of floats
}

void launch_delta_net_row(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.value_heads), 1,
                  static_cast<unsigned>(args.run_count));
  const auto launch = [&]<int kColumns>() {
    const auto kernel = delta_net_row_kernel<kColumns>;
    constexpr auto kBytes = sizeof(Memory<kColumns>);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    launch_early(kernel, grid, static_cast<unsigned>(args.value_dim), kBytes, stream, args, level);
  };
  args.value_dim <= 128 ? launch.template operator()<128>() : launch.template operator()<256>();
}

}  // namespace dendrite::cuda
