// Short convolutions: Backend::short_conv has the formula, and Backend::mamba that of its own;
// RecurrencePlan has the runs.
// A thread has one channel of up to 16 rows of a run, and keeps what it convolves in registers.
// What the rows before left it finds in what comes in, in journals or in an anchor: no block waits
// for another one of its level. A row's sum runs over the taps from the oldest on, whatever shares
// the call. Floor: bytes of what comes in and goes out; a few microseconds of launch rule.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/short_conv.h"

namespace dendrite::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = static_cast<int>(kChunkTokens);  // of a piece of a run

/// One channel of a run.
class Channel {
 public:
  __device__ Channel(const ShortConvArguments& args, const RecurrencePlan::Run& run, int channel)
      : a_(args), run_(run), channel_(channel) {}

  /// What was convolved at a row of the run, below 0 before it; at most taps - 1 positions before.
  __device__ float convolved(int row) const {
    if (row >= 0) {
      const float* in = a_.in + (run_.row_begin + row) * a_.in_stride + channel_;
      return a_.gated ? __fmul_rn(in[0], in[2 * a_.channels]) : in[0];
    }
    const int back = run_.known + row;  // of the chunk's beginning
    if (back >= 0) {
      return a_.journals[a_.known[run_.known_begin + back] * a_.journal_stride + channel_];
    }
    if (run_.anchor < 0) return 0;
    return a_.anchors[run_.anchor * a_.anchor_stride +
                      static_cast<std::int64_t>(back + a_.taps - 1) * a_.channels + channel_];
  }

  /// What is known of a whole chunk becomes the anchor behind it.
  __device__ void keep_known() const {
    keep_anchor(0, [&](int back) { return convolved(back); });
  }

  /// TAPS: as many, or more.
  template <int TAPS>
  __device__ void rows(int begin, int end) const {
    float window[TAPS];  // the last ones, the row's own behind
    float weights[TAPS];
    const int none = TAPS - a_.taps;
#pragma unroll
    for (int j = 0; j < TAPS; ++j) {
      window[j] = j > none ? convolved(begin + j - TAPS) : 0.0f;
      weights[j] = j >= none ? a_.conv[channel_ * a_.taps + j - none] : 0.0f;
    }
    const float bias = a_.bias == nullptr ? 0.0f : a_.bias[channel_];
    for (int row = begin; row < end; ++row) {
#pragma unroll
      for (int j = 0; j + 1 < TAPS; ++j) window[j] = window[j + 1];
      window[TAPS - 1] = convolved(row);
      float sum = bias;
#pragma unroll
      for (int j = 0; j < TAPS; ++j) {
        if (j >= none) sum = fmaf(weights[j], window[j], sum);
      }
      const std::int64_t at = run_.row_begin + row;
      const int slot = a_.row_journals[at];
      if (slot >= 0) a_.journals[slot * a_.journal_stride + channel_] = window[TAPS - 1];
      if (a_.gated) {
        put(at, a_.in[at * a_.in_stride + a_.channels + channel_] * sum);
      } else {
        const float out = silu(sum);
        put(at, out);
        if (slot >= 0 && channel_ >= a_.kept_begin && channel_ < a_.kept_end) {
          a_.kept[slot * a_.journal_stride + channel_ - a_.kept_begin] = out;
        }
      }
      if ((run_.known + row + 1) % kRows != 0) continue;
      keep_anchor((run_.known + row + 1) / kRows - 1,
                  [&](int back) { return convolved(row + 1 + back); });
    }
  }

 private:
  __device__ void put(std::int64_t row, float value) const {
    if (a_.out_bf16) {
      static_cast<bf16*>(a_.out)[row * a_.out_ld + channel_] = narrow<bf16>(value);
    } else {
      static_cast<float*>(a_.out)[row * a_.out_ld + channel_] = value;
    }
  }

  /// The anchor behind the run's chunk number `chunk`; `of`: what was convolved so many positions
  /// before its end, as a number below 0.
  template <typename Convolved>
  __device__ void keep_anchor(int chunk, const Convolved& of) const {
    const int slot = a_.new_anchors[run_.anchors_begin + chunk];
    if (slot < 0) return;
    float* to = a_.anchors + slot * a_.anchor_stride + channel_;
    for (int i = 0; i + 1 < a_.taps; ++i) {
      to[static_cast<std::int64_t>(i) * a_.channels] = of(i - (a_.taps - 1));
    }
  }

  const ShortConvArguments& a_;
  const RecurrencePlan::Run& run_;
  const int channel_;
};

/// grid (channels / kThreads, pieces of a run, runs)
template <int TAPS>
__global__ void __launch_bounds__(kThreads)
    short_conv_kernel(const __grid_constant__ ShortConvArguments args, std::int32_t level) {
  let_next_begin();
  wait_for_earlier();
  const LeveledRun of = args.runs[blockIdx.z];
  if (of.level != level) return;
  const int piece = static_cast<int>(blockIdx.y);
  const int count = of.run.row_end - of.run.row_begin;
  const int begin = piece * kRows;
  if (piece > 0 && begin >= count) return;
  const int end = min(begin + kRows, count);
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < args.channels) {
    const Channel channel(args, of.run, i);
    if (piece == 0 && of.run.known == kRows) channel.keep_known();
    channel.rows<TAPS>(begin, end);
    return;
  }
  if (!args.out_bf16 || i >= args.out_ld) return;
  for (int row = begin; row < end; ++row) {
    static_cast<bf16*>(args.out)[(of.run.row_begin + row) * args.out_ld + i] = narrow<bf16>(0.0f);
  }
}

}  // namespace

void launch_short_conv(const ShortConvArguments& args, std::int32_t level, cudaStream_t stream) {
  const std::int64_t columns = args.out_bf16 ? args.out_ld : args.channels;
  const dim3 grid(
      static_cast<unsigned>((columns + kThreads - 1) / kThreads),
      static_cast<unsigned>(args.most_rows > 0 ? (args.most_rows + kRows - 1) / kRows : 1),
      static_cast<unsigned>(args.run_count));
  const auto kernel = args.taps <= 4   ? short_conv_kernel<4>
                      : args.taps <= 8 ? short_conv_kernel<8>
                                       : short_conv_kernel<16>;
  launch_early(kernel, grid, kThreads, 0, stream, args, level);
}

}  // namespace dendrite::cuda
