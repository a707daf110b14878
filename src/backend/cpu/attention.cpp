#include "backend/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "backend/cpu/kv_store.h"

namespace dendrite::cpu {
namespace {

/// Partial states of one pass over the rows are kept below this, by taking fewer rows at a time.
constexpr std::int64_t kMaxStateBytes = std::int64_t{48} << 20;
/// A region of threads costs some microseconds: below this much work one thread does it all.
constexpr double kSerialMicroseconds = 15;
/// Rows of a slice: enough for whole tiles, and for scratch to stay in L2.
constexpr std::int64_t kSliceMicroRows = 192;

void grow(Memory& memory, std::int64_t bytes) {
  if (memory.size_bytes() < bytes) memory = Memory(bytes + bytes / 4);
}

}  // namespace

/// What all passes share.
struct Attention::Job {
  const AttentionArgs& args;
  StepFormat format;
  const CpuKvStore& store;
  std::int64_t group;
};

void Attention::run(const AttentionArgs& args, StepFormat format) {
  const auto& store = static_cast<const CpuKvStore&>(*args.kv);
  const AttentionPlan& plan = *args.plan;
  const auto rows = static_cast<std::int64_t>(plan.positions.size());
  if (rows == 0) return;
  const Job job{args, format, store, args.heads / store.shape().kv_heads};
  const std::int64_t row_bytes = static_cast<std::int64_t>(plan.super_blocks.size()) * args.heads *
                                 state_floats(store.layout().padded_dim) * 4;
  const std::int64_t pass =
      std::clamp<std::int64_t>(row_bytes > 0 ? kMaxStateBytes / row_bytes : rows, 1, rows);
  for (std::int64_t row = 0; row < rows; row += pass) {
    run_rows(job, row, std::min(row + pass, rows));
  }
}

void Attention::run_rows(const Job& job, std::int64_t row_begin, std::int64_t row_end) {
  const AttentionPlan& plan = *job.args.plan;
  const KvLayout& layout = job.store.layout();
  const std::int64_t rows = row_end - row_begin;
  const std::int64_t kv_heads = job.store.shape().kv_heads;
  const auto super_blocks = static_cast<std::int64_t>(plan.super_blocks.size());

  double flops = 0;
  for (const AttentionItem& item : plan.items) {
    const auto seen = std::min<std::int64_t>(item.row_end, row_end) -
                      std::max<std::int64_t>(item.row_begin, row_begin);
    if (seen > 0) flops += static_cast<double>(seen) * static_cast<double>(item.end - item.begin);
  }
  flops *= 4.0 * static_cast<double>(job.args.heads * layout.head_dim);
  const bool serial = pool_.threads() == 1 || flops / kernels_.gflops / 1e3 < kSerialMicroseconds;
  const std::int64_t threads = serial ? 1 : pool_.threads();

  // Slices of rows: whole tiles at least, and more of them when heads and super-blocks alone do not
  // give every thread a few tasks.
  std::int64_t slices = (rows * job.group + kSliceMicroRows - 1) / kSliceMicroRows;
  if (threads > 1) {
    const std::int64_t wanted = (3 * threads + kv_heads * super_blocks - 1) /
                                std::max<std::int64_t>(kv_heads * super_blocks, 1);
    const std::int64_t possible = std::max<std::int64_t>(rows * job.group / 6, 1);
    slices = std::max(slices, std::min(wanted, possible));
  }
  slices = std::clamp<std::int64_t>(slices, 1, rows);
  const auto slice_begin = [&](std::int64_t slice) { return row_begin + rows * slice / slices; };
  const std::int64_t slice_rows = (rows + slices - 1) / slices;

  // An output is a (kv head, slice). Where there are enough of them a thread takes one with all its
  // super-blocks, so that the partial states stay in its cache; else super-blocks go to all
  // threads.
  const std::int64_t outputs = kv_heads * slices;
  const bool whole = serial || outputs >= 4 * threads;
  const std::int64_t record = state_floats(layout.padded_dim);
  const std::int64_t output_states = slice_rows * job.group * record;
  const std::int64_t super_stride = whole ? output_states : outputs * output_states;
  grow(states_, (whole ? threads : 1) * super_blocks * super_stride * 4);
  const std::int64_t scratch_words =
      (attention_scratch_words(slice_rows * job.group, layout) + 63) / 64 * 64;
  grow(scratch_, threads * scratch_words * 4);
  auto* states = reinterpret_cast<float*>(states_.data());
  const float* q = job.args.q.data;
  const Tensor out = job.args.out.tensor();
  const float cap = job.args.soft_cap;
  const float scale_log2e = (cap > 0 ? 1.0f : job.args.scale) * 1.44269504f;

  const auto run_task = [&](std::int64_t output, std::int64_t super, float* first_states,
                            std::uint32_t* scratch) {
    const std::int64_t head = output % kv_heads;
    const std::int64_t slice = output / kv_heads;
    const auto& items = plan.super_blocks[static_cast<std::size_t>(super)];
    AttentionTask task;
    task.format = job.format;
    task.layout = layout;
    task.pages = job.store.layer_data(job.args.layer) + head * layout.head_stride;
    task.q = q + head * job.group * layout.head_dim;
    task.q_stride = job.args.q.stride;
    task.group = job.group;
    task.scale_log2e = scale_log2e;
    task.cap = cap;
    task.cap_factor = cap > 0 ? job.args.scale / cap : 0.0f;
    task.items = plan.items.data() + items.item_begin;
    task.item_count = items.item_end - items.item_begin;
    task.page_ids = plan.pages.data();
    task.positions = plan.positions.data();
    task.window = plan.window;
    task.row_begin = slice_begin(slice);
    task.row_end = slice_begin(slice + 1);
    task.states = first_states + super * super_stride;
    task.scratch = scratch;
    kernels_.attention(task);
  };
  const auto fold = [&](std::int64_t output, const float* first_states) {
    const std::int64_t head = output % kv_heads;
    const std::int64_t slice = output / kv_heads;
    const std::int64_t begin = slice_begin(slice);
    FoldArgs fold;
    fold.states = first_states;
    fold.super_stride = super_stride;
    fold.super_blocks = super_blocks;
    fold.group = job.group;
    fold.head_dim = layout.head_dim;
    fold.padded_dim = layout.padded_dim;
    fold.scale_log2e = scale_log2e;
    if (job.args.sinks != nullptr) fold.sinks = job.args.sinks + head * job.group;
    fold.out = out.data + begin * out.stride + head * job.group * layout.head_dim;
    fold.out_stride = out.stride;
    kernels_.fold(fold, slice_begin(slice + 1) - begin);
  };

  auto* scratch = reinterpret_cast<std::uint32_t*>(scratch_.data());
  const auto run_output = [&](std::int64_t output, std::int64_t thread) {
    float* own = states + thread * super_blocks * super_stride;
    for (std::int64_t super = 0; super < super_blocks; ++super) {
      run_task(output, super, own, scratch + thread * scratch_words);
    }
    fold(output, own);
  };
  if (serial) {
    for (std::int64_t output = 0; output < outputs; ++output) run_output(output, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};  // tasks differ in length: taken one by one
  if (whole) {
    pool_.parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        for (std::int64_t i = next++; i < outputs; i = next++) run_output(i, part);
      }
    });
    return;
  }
  // Whoever finishes the last super-block of an output folds it: no second region.
  const auto left =
      std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < outputs; ++i) left[static_cast<std::size_t>(i)] = super_blocks;
  const std::int64_t tasks = outputs * super_blocks;
  pool_.parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      for (std::int64_t task = next++; task < tasks; task = next++) {
        const std::int64_t output = task / super_blocks;
        float* own = states + output * output_states;
        run_task(output, task % super_blocks, own, scratch + part * scratch_words);
        if (left[static_cast<std::size_t>(output)].fetch_sub(1) == 1) fold(output, own);
      }
    }
  });
}

}  // namespace dendrite::cpu
