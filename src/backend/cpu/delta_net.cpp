#include "backend/cpu/delta_net.h"

#include <algorithm>

#include "backend/cpu/recurrence_task.h"

namespace dendrite::cpu {
namespace {

/// A region of threads costs some microseconds: below this much work one thread does it all.
constexpr double kSerialMicroseconds = 15;
/// What one thread reads of states in a far cache or memory, for that decision only.
constexpr double kReadBytesPerMicrosecond = 20e3;

}  // namespace

void DeltaNets::run(const DeltaNet& args) {
  const RecurrencePlan& plan = *args.plan;
  DeltaNetTask task;
  begin(task, args, args.channels(), zeros_);
  static_cast<DeltaNetSizes&>(task) = args;
  task.conv = args.conv;
  task.decay = args.decay;
  task.dt_bias = args.dt_bias;
  task.norm = args.norm;
  task.norm_eps = args.norm_eps;

  // Of each state that is read or made, and of each row: one pass over a state's values.
  const double state_values = static_cast<double>(args.value_heads * args.key_dim * args.value_dim);
  std::int64_t rows = 0;
  std::int64_t states = 0;
  for (const RecurrencePlan::Run& run : plan.runs) {
    rows += run.row_end - run.row_begin;
    states += 1 + RecurrencePlan::chunks_ended(run);
  }
  const double read_time =
      4 * state_values * static_cast<double>(states) / kReadBytesPerMicrosecond;
  const double arithmetic_time =
      6 * state_values * static_cast<double>(rows) / (kernels_.gflops * 1e3);
  const bool serial =
      pool_.threads() == 1 || std::max(read_time, arithmetic_time) < kSerialMicroseconds;

  const std::int64_t parts = serial ? 1 : std::min<std::int64_t>(pool_.threads(), args.key_heads);
  const std::int64_t floats = delta_net_scratch_floats(task);
  scratch_.grow(parts * floats * 4);
  const auto run_parts = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      kernels_.delta_net(task, reinterpret_cast<float*>(scratch_.data()) + part * floats,
                         args.key_heads * part / parts, args.key_heads * (part + 1) / parts);
    }
  };
  if (serial) return run_parts(0, 1);
  pool_.parallel_for(parts, 1, run_parts);
}

}  // namespace dendrite::cpu
