#include "backend/cpu/short_conv.h"

#include <algorithm>

#include "backend/cpu/state_store.h"

namespace dendrite::cpu {
namespace {

/// A region of threads costs some microseconds: below this much work one thread does it all.
constexpr double kSerialMicroseconds = 15;
/// What one thread does, for that decision only: multiply-adds of a tap, and what they read.
constexpr double kTapsPerMicrosecond = 4000;

void grow(Memory& memory, std::int64_t bytes) {
  if (memory.size_bytes() < bytes) memory = Memory(bytes);
}

}  // namespace

void ShortConvs::run(const ShortConv& args) {
  const auto& store = static_cast<const CpuStateStore&>(*args.states);
  const StateShape& shape = store.shape();
  const RecurrencePlan& plan = *args.plan;
  const Tensor out = args.out.tensor();
  grow(zeros_, args.channels * 4);

  ShortConvTask task;
  task.channels = args.channels;
  task.taps = args.taps;
  task.in = args.in.data;
  task.in_stride = args.in.stride;
  task.conv = args.conv;
  task.bias = args.bias;
  task.out = out.data;
  task.out_stride = out.stride;
  task.anchors = store.anchors(args.layer);
  task.anchor_stride = shape.layers * shape.anchor_values;
  task.journals = store.journals(args.layer);
  task.journal_stride = shape.layers * shape.journal_values;
  task.runs = plan.runs.data();
  task.run_count = std::ssize(plan.runs);
  task.row_journals = plan.journals.data();
  task.known = plan.known.data();
  task.new_anchors = plan.anchors.data();
  task.zeros = reinterpret_cast<const float*>(zeros_.data());

  const auto taps = static_cast<double>(std::ssize(plan.journals) * args.channels * args.taps);
  const bool serial = pool_.threads() == 1 || taps / kTapsPerMicrosecond < kSerialMicroseconds;
  // In whole vectors, whatever their width.
  const std::int64_t blocks = (args.channels + kHeadPad - 1) / kHeadPad;
  const std::int64_t parts = serial ? 1 : std::min<std::int64_t>(pool_.threads(), blocks);
  const std::int64_t floats = short_conv_scratch_floats(args.taps, args.channels);
  grow(scratch_, parts * floats * 4);
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
