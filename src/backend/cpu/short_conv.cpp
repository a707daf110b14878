#include "backend/cpu/short_conv.h"

#include <algorithm>

#include "backend/cpu/recurrence_task.h"

namespace dendrite::cpu {
namespace {

/// A region of threads costs some microseconds: below this much work one thread does it all.
constexpr double kSerialMicroseconds = 15;
/// What one thread does, for that decision only: multiply-adds of a tap, and what they read.
constexpr double kTapsPerMicrosecond = 4000;

}  // namespace

void ShortConvs::run(const ShortConv& args) {
  const RecurrencePlan& plan = *args.plan;
  ShortConvTask task;
  begin(task, args, args.channels, zeros_);
  task.channels = args.channels;
  task.taps = args.taps;
  task.conv = args.conv;
  task.bias = args.bias;

  const auto taps = static_cast<double>(std::ssize(plan.journals) * args.channels * args.taps);
  const bool serial = pool_.threads() == 1 || taps / kTapsPerMicrosecond < kSerialMicroseconds;
  // In whole vectors, whatever their width.
  const std::int64_t blocks = (args.channels + kHeadPad - 1) / kHeadPad;
  const std::int64_t parts = serial ? 1 : std::min<std::int64_t>(pool_.threads(), blocks);
  const std::int64_t floats = short_conv_scratch_floats(args.taps, args.channels);
  scratch_.grow(parts * floats * 4);
  const auto run_parts = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      kernels_.short_conv(task, reinterpret_cast<float*>(scratch_.data()) + part * floats,
                          blocks * part / parts * kHeadPad,
                          std::min(args.channels, blocks * (part + 1) / parts * kHeadPad));
    }
  };
  if (serial) return run_parts(0, 1);
  pool_.parallel_for(parts, 1, run_parts);
}

}  // namespace dendrite::cpu
