#pragma once

#include <iterator>

#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/state_store.h"

namespace dendrite::cpu {

/// Of DeltaNet or ShortConv: what goes in and out, and where its layer keeps states. `zeros` gets
/// as many as are convolved of a row.
template <class Args>
void begin(RecurrenceTask& task, const Args& args, std::int64_t convolved, Memory& zeros) {
  const auto& store = static_cast<const CpuStateStore&>(*args.states);
  const StateShape& shape = store.shape();
  const RecurrencePlan& plan = *args.plan;
  const Tensor out = args.out.tensor();
  zeros.grow(convolved * 4);
  task.in = args.in.data;
  task.in_stride = args.in.stride;
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
  task.zeros = reinterpret_cast<const float*>(zeros.data());
}

}  // namespace dendrite::cpu
