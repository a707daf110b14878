#include "backend/cpu/mamba.h"

#include <algorithm>

#include "backend/cpu/recurrence_task.h"

namespace dendrite::cpu {
namespace {

/// A region of threads costs some microseconds: below this much work one thread does it all.
constexpr double kSerialMicroseconds = 15;
/// What one thread does, for that decision only: multiply-adds of taps, and bytes that it reads of
/// states in a far cache or memory.
constexpr double kTapsPerMicrosecond = 4000;
constexpr double kReadBytesPerMicrosecond = 20e3;

}  // namespace

template <class Kernel>
void Mambas::spread(std::int64_t count, bool serial, std::int64_t floats, const Kernel& kernel) {
  const std::int64_t parts = serial ? 1 : std::min<std::int64_t>(pool_.threads(), count);
  scratch_.grow(parts * floats * 4);
  const auto run_parts = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      kernel(reinterpret_cast<float*>(scratch_.data()) + part * floats, count * part / parts,
             count * (part + 1) / parts);
    }
  };
  if (parts <= 1) return run_parts(0, parts);
  pool_.parallel_for(parts, 1, run_parts);
}

void Mambas::convolve(const Mamba& args, const MambaTask& task) {
  ShortConvTask conv{task};
  conv.in += args.out_columns();
  conv.out = reinterpret_cast<float*>(convolved_.data());
  conv.out_stride = args.channels();
  conv.anchors += args.state_values();
  conv.journals += args.convolved_at();
  conv.channels = args.channels();
  conv.taps = args.taps;
  conv.conv = args.conv;
  conv.bias = args.conv_bias;
  conv.gated = false;
  conv.kept = task.journals;
  conv.kept_begin = args.out_columns();
  conv.kept_end = args.out_columns() + args.group_columns();
  const auto taps =
      static_cast<double>(std::ssize(args.plan->journals) * args.channels() * args.taps);
  // In whole vectors, whatever their width.
  spread((conv.channels + kHeadPad - 1) / kHeadPad,
         taps / kTapsPerMicrosecond < kSerialMicroseconds,
         short_conv_scratch_floats(conv.taps, conv.channels),
         [&](float* scratch, std::int64_t begin, std::int64_t end) {
           kernels_.short_conv(conv, scratch, begin * kHeadPad,
                               std::min(conv.channels, end * kHeadPad));
         });
}

void Mambas::run(const Mamba& args) {
  const RecurrencePlan& plan = *args.plan;
  const std::int64_t rows = std::ssize(plan.journals);
  MambaTask task;
  begin(task, args, args.channels(), zeros_);
  convolved_.grow(rows * args.channels() * 4);
  task.sizes = args;
  task.convolved = reinterpret_cast<const float*>(convolved_.data());
  task.decay = args.decay;
  task.dt_bias = args.dt_bias;
  task.skip = args.skip;
  task.norm = args.norm;
  task.norm_eps = args.norm_eps;
  task.least_dt = args.least_dt;
  task.most_dt = args.most_dt;
  convolve(args, task);

  // Of each state that is read or made, and of each row: one pass over a state's values.
  const auto state_values = static_cast<double>(args.state_values());
  std::int64_t states = 0;
  for (const RecurrencePlan::Run& run : plan.runs) {
    states += 1 + RecurrencePlan::chunks_ended(run);
  }
  const double read_time =
      4 * state_values * static_cast<double>(states) / kReadBytesPerMicrosecond;
  const double arithmetic_time =
      4 * state_values * static_cast<double>(rows) / (kernels_.gflops * 1e3);
  const bool serial = std::max(read_time, arithmetic_time) < kSerialMicroseconds;
  const std::int64_t floats = mamba_scratch_floats(args);
  spread(args.heads, serial, floats, [&](float* scratch, std::int64_t begin, std::int64_t end) {
    kernels_.mamba(task, scratch, begin, end);
  });
  spread(rows, serial || rows == 1, floats,
         [&](float* scratch, std::int64_t begin, std::int64_t end) {
           kernels_.mamba_norm(task, scratch, begin, end);
         });
}

}  // namespace dendrite::cpu
