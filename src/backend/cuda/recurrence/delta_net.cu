// The gated delta network. A thread block has a run and some columns of a value head's state, in
// shared memory; four threads have a column, each every fourth row of it. Rows of a chunk share the
// reads of the state, up to 16 at a time; each row's sums keep their order however many there are:
// over key_dim by four chains of fused multiply-adds, which are folded by halves, then over the
// rows of the chunk before it, oldest first. What comes out is normed and gated by a second kernel.
// Where channels decay by themselves, keys of the chunk lie there decayed, row by row; a key and a
// query meet the state before the chunk times what is left of each channel.
// Floor: the state read once a chunk and head from the GPU's memory; arithmetic of a prompt's chunk
// 5 key_dim * value_dim multiply-adds a row.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_inputs.cuh"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

namespace dendrite::cuda {
namespace {

/// A run as its thread block goes over it. kByChannel: channels of k decay by themselves.
template <bool kByChannel>
class Walk : public RunInputs {
 public:
  using RunInputs::RunInputs;

  __device__ void go() {
    if (static_cast<int>(threadIdx.x) < run_.known) {
      s_.known[threadIdx.x] = a_.known[run_.known_begin + static_cast<int>(threadIdx.x)];
    }
    load_state();
    __syncthreads();
    load_known();
    let_next_begin();
    wait_for_earlier();  // what is not of this pass needs no wait
    int place = run_.known;
    int anchor = run_.anchors_begin;
    const int rows = run_.row_end - run_.row_begin;
    int row = 0;
    while (true) {
      if (place == kRows) {
        const int slot = a_.new_anchors[anchor++];
        if (slot < 0 && row == rows) break;
        if (row == 0) {
          await_copies();
          take_known(place);
        }
        fold();
        if (slot >= 0) store_anchor(slot, row);
        place = 0;
      }
      if (row == rows) break;
      const int count = min(kRows - place, rows - row);
      piece(row, count, place);
      row += count;
      place += count;
    }
    wait_for_copies();
  }

 private:
  /// Of an anchor: the head's state from its first column on that is the block's.
  __device__ float* state_of(int slot) const {
    return anchor(slot) + static_cast<std::int64_t>(head_) * a_.key_dim * a_.value_dim + begin_;
  }
  __device__ int column() const { return static_cast<int>(threadIdx.x) % kColumns; }
  __device__ int first_row() const { return static_cast<int>(threadIdx.x) / kColumns; }

  /// In the background, as what is known: the first piece is convolved meanwhile.
  __device__ void load_state() {
    const float* from = run_.anchor < 0 ? nullptr : state_of(run_.anchor);
#pragma unroll 8
    for (int i = first_row(); i < a_.key_dim; i += kParts) {
      float* const to = &s_.state[i * kStride + column()];
      if (from != nullptr && column() < width_) {
        copy_async(to, from + static_cast<std::int64_t>(i) * a_.value_dim + column());
      } else {
        *to = 0.0f;
      }
    }
  }

  __device__ void load_known() {
    for (int place = 0; place < run_.known; ++place) {
      const float* keys = journal(s_.known[place]) + key_head_ * a_.key_dim;
      for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim; i += kThreads) {
        copy_async(&s_.keys[i * kKeyStride + place], keys + i);
        if constexpr (kByChannel) {
          copy_async(&s_.left[i * kKeyStride + place], keys + decayed_at() + i);
        }
      }
    }
    for (int place = first_row(); place < run_.known; place += kParts) {
      if (column() >= width_) break;
      copy_async(&s_.writes[place * kColumns + column()],
                 journal(s_.known[place]) + writes_at() + head_ * a_.value_dim + begin_ + column());
    }
    if (!kByChannel && static_cast<int>(threadIdx.x) < run_.known) {
      copy_async(&s_.decayed[threadIdx.x], journal(s_.known[threadIdx.x]) + decayed_at() + head_);
    }
  }
  __device__ static void wait_for_copies() {
    commit_copies();
    wait_copies<0>();
  }
  __device__ static void await_copies() {
    wait_for_copies();
    __syncthreads();
  }

  /// Rows [first, first + count) of the run, at places [place, place + count) of their chunk.
  __device__ void piece(int first, int count, int place) {
    const int slot = a_.row_journals[run_.row_begin + first];  // (asked for early)
    prepare(first, count, place);
    if constexpr (kByChannel) {
      decayed_dots(count, place);
    } else {
      dots(count, place);
    }
    if (place == 0 && count > 1) {
      columns<kRows>(0, count, 0);
    } else {
      for (int t = 0; t < count; ++t) columns<1>(t, 1, place + t);
    }
    __syncthreads();
    store_rows(first, count);
    store_journals(first, count, place, slot);
    __syncthreads();
  }

  __device__ void prepare(int first, int count, int place) {
    const int mine = static_cast<int>(threadIdx.x);
    float write = 0;  // asked for before what is convolved, and looked at behind it
    float decay = 0;
    float bias = 0;
    if (mine < count) {
      const float* writes =
          a_.in + (run_.row_begin + first + mine) * a_.in_stride + a_.writes_at + head_;
      write = writes[0];
      if constexpr (!kByChannel) {
        decay = writes[a_.value_heads];
        bias = a_.dt_bias[head_];
      }
    }
    if constexpr (kByChannel) decay_channels(first, count, place);
    if (a_.taps == 4 && count == 1) {
      convolve_row<4>(first, place);
    } else if (a_.taps == 4) {
      convolve_all<4>(first, count, place);
    } else {
      convolve_all<0>(first, count, place);
    }
    if (mine < count) {
      s_.writing[mine] = sigmoid(write);
      if constexpr (!kByChannel) {
        s_.decayed[place + mine] = fmaxf(kLeastDecay, -(a_.decay[head_] * softplus(decay + bias)));
      }
    }
    await_copies();
    if (first == 0) take_known(place);
    if (!kByChannel && threadIdx.x == 0) {
      float sum = place == 0 ? 0.0f : s_.decayed[place - 1];
      for (int t = 0; t < count; ++t) {
        sum += s_.decayed[place + t];
        s_.decayed[place + t] = sum;
      }
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const float scale = 1.0f / sqrtf(static_cast<float>(a_.key_dim));
    for (int i = warp; i < 2 * count; i += kWarps) {
      if (i % 2 != 0) {
        normalise(s_.keys + place + i / 2, kKeyStride, 1.0f);
      } else {
        normalise(s_.queries + i / 2, kKeyStride, scale);
      }
    }
    __syncthreads();
  }

  /// A vector of key_dim values, one in `stride` of memory, by a warp.
  __device__ void normalise(float* vector, int stride, float scale) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum = 0;
    for (int i = lane; i < a_.key_dim; i += 32) {
      sum = fmaf(vector[i * stride], vector[i * stride], sum);
    }
    const float factor = scale / sqrtf(warp_sum(sum) + 1e-6f);
    for (int i = lane; i < a_.key_dim; i += 32) vector[i * stride] *= factor;
  }

  /// Of rows of the run: what is left of each channel behind them.
  __device__ void decay_channels(int first, int count, int place) const {
    const int at = key_head_ * a_.key_dim;
    const float decay = a_.decay[head_];
    for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim; i += kThreads) {
      const float* in = a_.in + (run_.row_begin + first) * a_.in_stride + a_.decays_at + at + i;
      for (int t = 0; t < count; ++t) {
        const float g = -__fmul_rn(decay, softplus(in[t * a_.in_stride] + a_.dt_bias[at + i]));
        s_.left[i * kKeyStride + place + t] = expf(fmaxf(kLeastDecay, g));
      }
    }
  }

  /// By channel, which a thread has alone: keys of the chunk decay by the row at this place.
  __device__ void take_place(int i, int place) const {
    const float left = s_.left[i * kKeyStride + place];
    float* const decayed = s_.decayed_keys + i * kKeyStride;
    for (int j = 0; j < place; ++j) decayed[j] *= left;
    decayed[place] = s_.keys[i * kKeyStride + place];
    s_.all_left[i] *= left;
  }
  /// Where the run begins: the `known` places before it.
  __device__ void take_known(int known) const {
    if constexpr (kByChannel) {
      for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim; i += kThreads) {
        s_.all_left[i] = 1.0f;
        for (int place = 0; place < known; ++place) take_place(i, place);
      }
      __syncthreads();
    }
  }

  /// Row by row: its key and its query on decayed keys up to it, four threads a sum; and how both
  /// meet the state before the chunk.
  __device__ void decayed_dots(int count, int place) {
    const int part = static_cast<int>(threadIdx.x) % kParts;
    const int j = static_cast<int>(threadIdx.x) / kParts / 2;
    const bool on_key = static_cast<int>(threadIdx.x) / kParts % 2 == 0;
    for (int t = 0; t < count; ++t) {
      for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim; i += kThreads) {
        take_place(i, place + t);
        s_.met_keys[i * kKeyStride + t] = s_.all_left[i] * s_.keys[i * kKeyStride + place + t];
      }
      __syncthreads();
      const float* const mine = on_key ? s_.keys + place + t : s_.queries + t;
      float sum = 0;
      for (int i = part; i < a_.key_dim && j <= place + t; i += kParts) {
        sum = fmaf(mine[i * kKeyStride], s_.decayed_keys[i * kKeyStride + j], sum);
      }
      for (int width = 1; width < kParts; width *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, width);
      }
      if (part == 0 && j <= place + t) (on_key ? s_.on_keys : s_.on_queries)[t * kRows + j] = sum;
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim; i += kThreads) {
        s_.queries[i * kKeyStride + t] *= s_.all_left[i];
      }
    }
    __syncthreads();
  }

  /// Keys of rows on those before them in the chunk, queries also on their own.
  __device__ void dots(int count, int place) {
    for (int pair = static_cast<int>(threadIdx.x); pair < count * kRows; pair += kThreads) {
      const int t = pair / kRows;
      const int j = pair % kRows;
      if (j > place + t) continue;
      float on_keys = 0;
      float on_queries = 0;
#pragma unroll 8
      for (int i = 0; i < a_.key_dim; ++i) {
        const float key = s_.keys[i * kKeyStride + j];
        on_keys = fmaf(s_.keys[i * kKeyStride + place + t], key, on_keys);
        on_queries = fmaf(s_.queries[i * kKeyStride + t], key, on_queries);
      }
      const float left = expf(s_.decayed[place + t] - s_.decayed[j]);
      s_.on_keys[pair] = left * on_keys;
      s_.on_queries[pair] = left * on_queries;
    }
    __syncthreads();
  }

  /// A column of the state: what rows [first, first + count) of the piece write, and what comes
  /// out. N: as many, or more.
  template <int N>
  __device__ void columns(int first, int count, int place) {
    const int part = static_cast<int>(threadIdx.x) % kParts;
    const int v = static_cast<int>(threadIdx.x) / kParts;
    float on_keys[N];
    float on_queries[N];
#pragma unroll
    for (int t = 0; t < N; ++t) on_keys[t] = on_queries[t] = 0;
#pragma unroll 4
    for (int i = part; i < a_.key_dim; i += kParts) {
      const float state = s_.state[i * kStride + v];
      const float* keys =
          kByChannel ? s_.met_keys + i * kKeyStride + first : s_.keys + i * kKeyStride + place;
      const float* queries = s_.queries + i * kKeyStride + first;
#pragma unroll
      for (int t = 0; t < N; ++t) {
        // (Of rows that are not there whatever lies there: nothing is made of it.)
        on_keys[t] = fmaf(state, keys[t], on_keys[t]);
        on_queries[t] = fmaf(state, queries[t], on_queries[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < N; ++t) {
      for (int width = 1; width < kParts; width *= 2) {
        on_keys[t] += __shfl_xor_sync(0xffffffffu, on_keys[t], width);
        on_queries[t] += __shfl_xor_sync(0xffffffffu, on_queries[t], width);
      }
    }
#pragma unroll
    for (int t = 0; t < N; ++t) {
      if (t >= count) break;
      const float left = kByChannel ? 1.0f : expf(s_.decayed[place + t]);
      // (Rounded here, whether or not anything is added.)
      float known = __fmul_rn(left, on_keys[t]);
      float out = __fmul_rn(left, on_queries[t]);
      for (int j = 0; j < place + t; ++j) {
        const float write = s_.writes[j * kColumns + v];
        known = fmaf(s_.on_keys[(first + t) * kRows + j], write, known);
        out = fmaf(s_.on_queries[(first + t) * kRows + j], write, out);
      }
      float& value = s_.values[(first + t) * kColumns + v];
      const float write = s_.writing[first + t] * (value - known);
      __syncwarp();
      if (part == 0) {
        s_.writes[(place + t) * kColumns + v] = write;
        value = fmaf(s_.on_queries[(first + t) * kRows + place + t], write, out);
      }
      __syncwarp();
    }
  }

  /// What comes out, not normed yet.
  __device__ void store_rows(int first, int count) const {
    for (int t = first_row(); t < count; t += kParts) {
      if (column() >= width_) break;
      a_.values[(run_.row_begin + first + t) * static_cast<std::int64_t>(a_.value_heads) *
                    a_.value_dim +
                head_ * a_.value_dim + begin_ + column()] = s_.values[t * kColumns + column()];
    }
  }

  __device__ void store_journals(int first, int count, int place, int first_slot) const {
    const int keys = a_.key_heads * a_.key_dim;
    for (int t = 0; t < count; ++t) {
      const int slot = t == 0 ? first_slot : a_.row_journals[run_.row_begin + first + t];
      if (slot < 0) continue;
      float* to = journal(slot);
      for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim && first_of_key_head_;
           i += kThreads) {
        const int channel = key_head_ * a_.key_dim + i;
        to[channel] = s_.keys[i * kKeyStride + place + t];
        if constexpr (kByChannel) to[decayed_at() + channel] = s_.left[i * kKeyStride + place + t];
        to[convolved_at() + channel] = convolved(first + t, channel);
        to[convolved_at() + keys + channel] = convolved(first + t, keys + channel);
      }
      for (int v = static_cast<int>(threadIdx.x); v < width_; v += kThreads) {
        const int channel = head_ * a_.value_dim + begin_ + v;
        to[writes_at() + channel] = s_.writes[(place + t) * kColumns + v];
        to[convolved_at() + 2 * keys + channel] = convolved(first + t, 2 * keys + channel);
      }
      if (!kByChannel && threadIdx.x == 0 && begin_ == 0)
        to[decayed_at() + head_] = s_.decayed[place + t];
    }
  }

  /// The state goes behind the chunk.
  __device__ void fold() {
    const float all = kByChannel ? 0.0f : s_.decayed[kRows - 1];
    float writes[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      writes[j] = s_.writes[j * kColumns + column()];
      if constexpr (!kByChannel) writes[j] *= expf(all - s_.decayed[j]);
    }
    const float left = expf(all);
    const float* const decayed = kByChannel ? s_.decayed_keys : s_.keys;
#pragma unroll 4
    for (int i = first_row(); i < a_.key_dim; i += kParts) {
      float state = (kByChannel ? s_.all_left[i] : left) * s_.state[i * kStride + column()];
#pragma unroll
      for (int j = 0; j < kRows; ++j) state = fmaf(decayed[i * kKeyStride + j], writes[j], state);
      s_.state[i * kStride + column()] = state;
    }
    __syncthreads();
    take_known(0);
  }

  /// Behind the chunk that ends before the run's row number `row`.
  __device__ void store_anchor(int slot, int row) const {
    float* to = state_of(slot);
    for (int i = first_row(); i < a_.key_dim; i += kParts) {
      if (column() >= width_) break;
      to[static_cast<std::int64_t>(i) * a_.value_dim + column()] = s_.state[i * kStride + column()];
    }
    const int keys = a_.key_heads * a_.key_dim;
    float* tail = anchor(slot) + state_values();
    for (int back = 0; back < a_.taps - 1; ++back, tail += channels_) {
      const int of = row - (a_.taps - 1) + back;
      for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim && first_of_key_head_;
           i += kThreads) {
        const int channel = key_head_ * a_.key_dim + i;
        tail[channel] = convolved(of, channel);
        tail[keys + channel] = convolved(of, keys + channel);
      }
      for (int v = static_cast<int>(threadIdx.x); v < width_; v += kThreads) {
        const int channel = 2 * keys + head_ * a_.value_dim + begin_ + v;
        tail[channel] = convolved(of, channel);
      }
    }
    __syncthreads();
  }
};

/// grid (value_heads, parts of value_dim, runs)
template <bool kByChannel>
__global__ void __launch_bounds__(kThreads, kByChannel ? kChannelBlocks : kBlocks)
    delta_net_kernel(const __grid_constant__ DeltaNetArguments args, std::int32_t level) {
  extern __shared__ float4 memory[];  // a row of keys is read four at a time
  const LeveledRun& of = args.runs[blockIdx.z];
  if (level > 0 || of.level != level) wait_for_earlier();
  if (of.level != level) return;
  Walk<kByChannel>(args, of.run, reinterpret_cast<float*>(memory)).go();
}

}  // namespace

std::int64_t delta_net_shared_bytes(const DeltaNetArguments& args) {
  return shared_bytes(args);
}

void launch_delta_net(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream) {
  if (fits_delta_net_row(args)) return launch_delta_net_row(args, level, stream);
  const std::int64_t bytes = delta_net_shared_bytes(args);
  const auto kernel = args.by_channel ? delta_net_kernel<true> : delta_net_kernel<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  const dim3 grid(static_cast<unsigned>(args.value_heads),
                  static_cast<unsigned>((args.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(args.run_count));
  launch_early(kernel, grid, kThreads, static_cast<std::size_t>(bytes), stream, args, level);
}

}  // namespace dendrite::cuda
