#include "backend/cuda/recurrence/recurrence.h"

#include <algorithm>
#include <bit>
#include <string>
#include <unordered_map>

#include "backend/checks.h"
#include "backend/cuda/base/check.h"
#include "backend/cuda/stores/state_store.h"
#include "dendrite/error.h"

namespace dendrite::cuda {

/// A run comes behind those that write what it reads.
void Recurrence::level(const RecurrencePlan& plan) {
  runs_.clear();
  levels_ = 0;
  has_one_row_ = true;
  std::unordered_map<std::int32_t, std::int32_t> anchors;  // slots, by the level that writes them
  std::unordered_map<std::int32_t, std::int32_t> journals;
  for (const RecurrencePlan::Run& run : plan.runs) {
    std::int32_t level = 0;
    const auto behind = [&level](const auto& written, std::int32_t slot) {
      const auto found = written.find(slot);
      if (found != written.end()) level = std::max(level, found->second + 1);
    };
    behind(anchors, run.anchor);
    for (std::int32_t i = 0; i < run.known; ++i) {
      behind(journals, plan.known[static_cast<std::size_t>(run.known_begin + i)]);
    }
    for (std::int32_t row = run.row_begin; row < run.row_end; ++row) {
      const std::int32_t slot = plan.journals[static_cast<std::size_t>(row)];
      if (slot >= 0) journals[slot] = level;
    }
    for (std::int64_t i = 0; i < RecurrencePlan::chunks_ended(run); ++i) {
      const std::int32_t slot = plan.anchors[static_cast<std::size_t>(run.anchors_begin + i)];
      if (slot >= 0) anchors[slot] = level;
    }
    runs_.push_back({run, level});
    has_one_row_ = has_one_row_ && run.row_end - run.row_begin <= 1;
    levels_ = std::max(levels_, level + 1);
  }
  runs_.resize(std::bit_ceil(runs_.size()), {.run = {}, .level = -1});
  if (has_one_row_) {
    order_.clear();
  } else {
    order_.build(plan, has_families_);
  }
  const auto copy = [](std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
    to.reserve(1);
    to.assign(from.begin(), from.end());
  };
  copy(journals_, plan.journals);
  copy(known_, plan.known);
  copy(anchors_, plan.anchors);
}

/// Rows that a pass was padded with read what lies there. (Zeros come in the order of the stream,
/// else over what its kernels have written.)
void Recurrence::grow_values(std::int64_t size_bytes) {
  if (values_.size_bytes() >= size_bytes) return;
  values_.grow(size_bytes);
  check(cudaMemsetAsync(values_.data(), 0, static_cast<std::size_t>(values_.size_bytes()),
                        device_.stream()),
        "delta_net");
}

bool Recurrence::goes_by_pieces(DeltaNetArguments& launch, std::int64_t rows) {
  if (has_one_row_ || !fits_delta_net_pieces(launch) ||
      delta_net_scan_shared_bytes(launch) > device_.shared_bytes()) {
    return false;
  }
  // Each family ends with fewer than sixteen rows.
  const std::int64_t batches =
      launch.cut.family_count > 0 ? rows / kChunkTokens + launch.cut.family_count : 0;
  records_.grow((launch.cut.count + batches) * delta_net_piece_bytes(launch));
  launch.cut.records = records_.data();
  return true;
}

void Recurrence::go_by_pieces(const DeltaNetArguments& launch) {
  std::int32_t level = 0;
  for (const std::uint8_t kinds : order_.levels()) {
    launch_delta_net_pieces(launch, level, device_.stream());
    if ((kinds & PieceOrder::kAlone) != 0) launch_delta_net_scan(launch, level, device_.stream());
    if ((kinds & PieceOrder::kFamilies) != 0) {
      launch_delta_net_families(launch, level, device_.stream());
    }
    ++level;
  }
}

Passes::Key::Recurrence Recurrence::fixed() const {
  return {.runs = std::ssize(runs_),
          .levels = levels_,
          .one_row = has_one_row_,
          .alone = order_.alone(),
          .pieces = std::ssize(order_.pieces()),
          .families = std::ssize(order_.families()),
          .piece_levels = {order_.levels().begin(), order_.levels().end()}};
}

RunPlaces Recurrence::places(const StateStore& states, std::int64_t layer,
                             const Staged& staged) const {
  const auto& store = static_cast<const CudaStateStore&>(states);
  const StateShape& shape = store.shape();
  RunPlaces places;
  places.anchors = store.anchors(layer);
  places.anchor_stride = shape.layers * shape.anchor_values;
  places.journals = store.journals(layer);
  places.journal_stride = shape.layers * shape.journal_values;
  places.runs = staged.runs;
  places.run_count = static_cast<std::int32_t>(runs_.size());
  places.row_journals = staged.journals;
  places.known = staged.known;
  places.new_anchors = staged.anchors;
  return places;
}

void Recurrence::check_shared(const char* op, std::int64_t bytes, const std::string& heads) const {
  if (bytes <= device_.shared_bytes()) return;
  throw Error(std::string(op) + ": heads of " + heads + " take " + std::to_string(bytes) +
              " bytes of shared memory; expected at most the " +
              std::to_string(device_.shared_bytes()) + " of " + device_.name());
}

void Recurrence::delta_net(const DeltaNet& args) {
  check_delta_net(args);
  if (args.plan->runs.empty()) return;
  if (args.plan != of_pass_) level(*args.plan);

  DeltaNetArguments launch;
  launch.key_heads = static_cast<std::int32_t>(args.key_heads);
  launch.value_heads = static_cast<std::int32_t>(args.value_heads);
  launch.key_dim = static_cast<std::int32_t>(args.key_dim);
  launch.value_dim = static_cast<std::int32_t>(args.value_dim);
  launch.taps = static_cast<std::int32_t>(args.taps);
  launch.by_channel = args.by_channel;
  launch.decay_columns = static_cast<std::int32_t>(args.decay_columns());
  launch.writes_at = static_cast<std::int32_t>(args.writes_at());
  launch.decays_at = static_cast<std::int32_t>(args.decays_at());
  launch.gates_at = static_cast<std::int32_t>(args.gates_at());
  launch.in = args.in.data;
  launch.in_stride = args.in.stride;
  launch.conv = args.conv;
  launch.decay = args.decay;
  launch.dt_bias = args.dt_bias;
  launch.norm = args.norm;
  launch.norm_eps = args.norm_eps;
  launch.out = args.out.data;
  launch.out_ld = args.out.ld;
  launch.out_bf16 = args.out.format == RowFormat::kBF16;
  check_shared("delta_net", delta_net_shared_bytes(launch),
               std::to_string(args.key_dim) + " x " + std::to_string(args.value_dim));
  const Staged staged = stage(staging_);
  static_cast<RunPlaces&>(launch) = places(*args.states, args.layer, staged);
  launch.cut = staged.cut;
  launch.one_row = has_one_row_;
  const std::int64_t rows = args.in.rows;
  grow_values(rows * args.value_heads * args.value_dim * 4);
  launch.values = values_.floats();
  if (goes_by_pieces(launch, rows)) {
    go_by_pieces(launch);
  } else {
    for (std::int32_t i = 0; i < levels_; ++i) launch_delta_net(launch, i, device_.stream());
  }
  if (rows > 0) launch_delta_net_norm(launch, rows, device_.stream());
  check_launch("delta_net", {{"rows", args.in.rows},
                             {"value_heads", args.value_heads},
                             {"key_dim", args.key_dim},
                             {"value_dim", args.value_dim}});
}

void Recurrence::short_conv(const ShortConv& args) {
  check_short_conv(args);
  if (args.plan->runs.empty()) return;
  if (args.plan != of_pass_) level(*args.plan);

  ShortConvArguments launch;
  launch.channels = static_cast<std::int32_t>(args.channels);
  launch.taps = static_cast<std::int32_t>(args.taps);
  launch.in = args.in.data;
  launch.in_stride = args.in.stride;
  launch.conv = args.conv;
  launch.bias = args.bias;
  launch.out = args.out.data;
  launch.out_ld = args.out.ld;
  launch.out_bf16 = args.out.format == RowFormat::kBF16;
  static_cast<RunPlaces&>(launch) = places(*args.states, args.layer, stage(staging_));
  launch.most_rows = most_rows(args.in.rows);
  for (std::int32_t i = 0; i < levels_; ++i) launch_short_conv(launch, i, device_.stream());
  check_launch("short_conv",
               {{"rows", args.in.rows}, {"channels", args.channels}, {"taps", args.taps}});
}

void Recurrence::mamba(const Mamba& args) {
  check_mamba(args);
  if (args.plan->runs.empty()) return;
  if (args.plan != of_pass_) level(*args.plan);
  const std::int64_t rows = args.in.rows;
  grow_values(rows * (args.channels() + args.out_columns()) * 4);
  const Staged staged = stage(staging_);

  ShortConvArguments conv;
  conv.channels = static_cast<std::int32_t>(args.channels());
  conv.taps = static_cast<std::int32_t>(args.taps);
  conv.in = args.in.data + args.out_columns();
  conv.in_stride = args.in.stride;
  conv.conv = args.conv;
  conv.bias = args.conv_bias;
  conv.out = values_.floats();
  conv.out_ld = args.channels();
  static_cast<RunPlaces&>(conv) = places(*args.states, args.layer, staged);
  conv.gated = false;
  conv.kept = conv.journals;
  conv.kept_begin = static_cast<std::int32_t>(args.out_columns());
  conv.kept_end = static_cast<std::int32_t>(args.out_columns() + args.group_columns());
  conv.anchors += args.state_values();
  conv.journals += args.convolved_at();
  conv.most_rows = most_rows(rows);

  MambaArguments launch;
  launch.heads = static_cast<std::int32_t>(args.heads);
  launch.head_dim = static_cast<std::int32_t>(args.head_dim);
  launch.groups = static_cast<std::int32_t>(args.groups);
  launch.state_dim = static_cast<std::int32_t>(args.state_dim);
  launch.columns = static_cast<std::int32_t>(args.out_columns());
  launch.group_columns = static_cast<std::int32_t>(args.group_columns());
  launch.channels = static_cast<std::int32_t>(args.channels());
  launch.decays_at = static_cast<std::int32_t>(args.decays_at());
  launch.in = args.in.data;
  launch.in_stride = args.in.stride;
  launch.decay = args.decay;
  launch.dt_bias = args.dt_bias;
  launch.skip = args.skip;
  launch.norm = args.norm;
  launch.norm_eps = args.norm_eps;
  launch.least_dt = args.least_dt;
  launch.most_dt = args.most_dt;
  launch.out = args.out.data;
  launch.out_ld = args.out.ld;
  launch.out_bf16 = args.out.format == RowFormat::kBF16;
  launch.convolved = values_.floats();
  launch.values = values_.floats() + rows * args.channels();
  static_cast<RunPlaces&>(launch) = places(*args.states, args.layer, staged);
  check_shared("mamba", mamba_shared_bytes(launch),
               std::to_string(args.state_dim) + " x " + std::to_string(args.head_dim));
  for (std::int32_t i = 0; i < levels_; ++i) {
    launch_short_conv(conv, i, device_.stream());
    launch_mamba(launch, i, device_.stream());
  }
  if (rows > 0) launch_mamba_norm(launch, rows, device_.stream());
  check_launch("mamba", {{"rows", rows},
                         {"heads", args.heads},
                         {"state_dim", args.state_dim},
                         {"head_dim", args.head_dim}});
}

void Recurrence::gate(const Rows& out, const Tensor& x, const Tensor& gate) {
  check_gate(out, x, gate);
  if (x.rows == 0) return;
  GateArguments launch;
  launch.out = out.data;
  launch.out_ld = out.ld;
  launch.out_bf16 = out.format == RowFormat::kBF16;
  launch.x = x.data;
  launch.x_stride = x.stride;
  launch.gate = gate.data;
  launch.gate_stride = gate.stride;
  launch.rows = x.rows;
  launch.cols = x.cols;
  launch.of_gate = x.cols / gate.cols;
  launch_gate(launch, device_.stream());
  check_launch("gate", {{"rows", x.rows}, {"cols", x.cols}});
}

void Recurrence::squared_relu(const Tensor& x) {
  check_squared_relu(x);
  if (x.rows == 0) return;
  launch_squared_relu(x.data, x.stride, x.rows, x.cols, device_.stream());
  check_launch("squared_relu", {{"rows", x.rows}, {"cols", x.cols}});
}

}  // namespace dendrite::cuda
