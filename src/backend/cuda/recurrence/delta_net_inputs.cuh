#pragma once

#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

// A run of a gated delta network as a thread block sees it, and its convolutions.
namespace dendrite::cuda {

class RunInputs {
 public:
  __device__ RunInputs(const DeltaNetArguments& args, const RecurrencePlan::Run& run, float* memory)
      : a_(args),
        run_(run),
        s_(shared_of(args, memory)),
        head_(static_cast<int>(blockIdx.x)),
        key_head_(head_ / (args.value_heads / args.key_heads)),
        begin_(static_cast<int>(blockIdx.y) * kColumns),
        width_(min(kColumns, args.value_dim - begin_)),
        channels_(2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim),
        first_of_key_head_(begin_ == 0 && head_ % (args.value_heads / args.key_heads) == 0) {}

 protected:
  __device__ float* anchor(int slot) const { return a_.anchors + slot * a_.anchor_stride; }
  __device__ float* journal(int slot) const { return a_.journals + slot * a_.journal_stride; }
  __device__ int state_values() const { return a_.value_heads * a_.key_dim * a_.value_dim; }
  // Where the parts of a journal begin.
  __device__ int writes_at() const { return a_.key_heads * a_.key_dim; }
  __device__ int decayed_at() const { return writes_at() + a_.value_heads * a_.value_dim; }
  __device__ int convolved_at() const { return decayed_at() + a_.decay_columns; }

  /// What is convolved, `row` rows after the run's first one; before it where that is negative.
  __device__ float convolved(int row, int channel) const {
    return load(convolved_row(a_, run_, s_.known, row), channel);
  }

  /// What comes out of the convolution of one channel, of `count` rows from `first` on. TAPS: how
  /// many, or 0: whatever the model has. All that it reads is asked for at once, since a read takes
  /// longer than all the rest.
  template <int TAPS, typename Put>
  __device__ void convolve(int first, int count, int channel, const Put& put) const {
    const float* weights = a_.conv + channel * a_.taps;
    if constexpr (TAPS == 0) {
      for (int t = 0; t < count; ++t) {
        float sum = 0;
        for (int tap = 0; tap < a_.taps; ++tap) {
          sum = fmaf(weights[tap], convolved(first + t - (a_.taps - 1) + tap, channel), sum);
        }
        put(t, silu(sum));
      }
    } else {
      float in[kRows + TAPS - 1];
      float weight[TAPS];
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) weight[tap] = weights[tap];
#pragma unroll
      for (int i = 0; i < kRows + TAPS - 1; ++i) {
        in[i] = i < count + TAPS - 1 ? convolved(first + i - (TAPS - 1), channel) : 0.0f;
      }
#pragma unroll
      for (int t = 0; t < kRows; ++t) {
        if (t >= count) break;
        float sum = 0;
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) sum = fmaf(weight[tap], in[t + tap], sum);
        put(t, silu(sum));
      }
    }
  }

  /// One channel of one row, and where its output goes.
  template <int TAPS>
  struct Channel {
    float in[TAPS];
    float weights[TAPS];

    __device__ void load(const RunInputs& run, int row, int channel) {
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        in[tap] = run.convolved(row - (TAPS - 1) + tap, channel);
        weights[tap] = run.a_.conv[channel * TAPS + tap];
      }
    }
    __device__ float out() const {
      float sum = 0;
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) sum = fmaf(weights[tap], in[tap], sum);
      return silu(sum);
    }
  };

  /// The same of one row alone: all that it reads is one wait.
  template <int TAPS>
  __device__ void convolve_row(int row, int place) {
    const int thread = static_cast<int>(threadIdx.x);
    const int keys = a_.key_heads * a_.key_dim;
    Channel<TAPS> value;
    if (thread < width_) value.load(*this, row, 2 * keys + head_ * a_.value_dim + begin_ + thread);
    for (int i = thread; i < a_.key_dim; i += kThreads) {
      Channel<TAPS> query;
      Channel<TAPS> key;
      query.load(*this, row, key_head_ * a_.key_dim + i);
      key.load(*this, row, keys + key_head_ * a_.key_dim + i);
      s_.queries[i * kKeyStride] = query.out();
      s_.keys[i * kKeyStride + place] = key.out();
    }
    if (thread < width_) s_.values[thread] = value.out();
  }

  template <int TAPS>
  __device__ void convolve_all(int first, int count, int place) {
    const int keys = a_.key_heads * a_.key_dim;
    for (int i = static_cast<int>(threadIdx.x); i < a_.key_dim; i += kThreads) {
      const int channel = key_head_ * a_.key_dim + i;
      convolve<TAPS>(first, count, channel,
                     [&](int t, float value) { s_.queries[i * kKeyStride + t] = value; });
      convolve<TAPS>(first, count, keys + channel,
                     [&](int t, float value) { s_.keys[i * kKeyStride + place + t] = value; });
    }
    for (int v = static_cast<int>(threadIdx.x); v < width_; v += kThreads) {
      convolve<TAPS>(first, count, 2 * keys + head_ * a_.value_dim + begin_ + v,
                     [&](int t, float value) { s_.values[t * kColumns + v] = value; });
    }
  }

  const DeltaNetArguments& a_;
  const RecurrencePlan::Run run_;
  const Shared s_;
  const int head_;
  const int key_head_;
  const int begin_;  // of the block's columns
  const int width_;  // how many there are
  const int channels_;
  const bool first_of_key_head_;
};

}  // namespace dendrite::cuda
