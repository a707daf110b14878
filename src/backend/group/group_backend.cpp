#include "backend/group/group_backend.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "backend/checks.h"
#include "backend/group/group_buffer.h"
#include "backend/packing.h"
#include "dendrite/error.h"

namespace dendrite {
namespace group {
namespace {

const GroupWeight& own(const Weight& weight) {
  return static_cast<const GroupWeight&>(weight);
}
const GroupKvStore& own(const KvStore& store) {
  return static_cast<const GroupKvStore&>(store);
}

[[noreturn]] void throw_not_shared(const char* op) {
  throw Error(std::string(op) + ": several devices do not share it; expected one");
}

}  // namespace

GroupBackend::GroupBackend(std::vector<std::unique_ptr<Backend>> devices,
                           std::vector<std::size_t> device_of, std::unique_ptr<Exchange> exchange)
    : devices_(std::move(devices)), exchange_(std::move(exchange)), info_(first().info()) {
  std::vector<std::int64_t> ranks_on(devices_.size());
  for (const std::size_t device : device_of) ranks_.push_back({device, ranks_on[device]++});
  most_on_one_ = std::ranges::max(ranks_on);
  info_.name += ", " + number() + " ranks";
  tell_numerics();
  if (devices_.size() > 1 && first().sampler() != nullptr) {
    sampler_.emplace(*first().sampler(), *exchange_);
  }
}

/// Which weights there are may be a part of it.
void GroupBackend::tell_numerics() {
  info_.numerics_key = first().info().numerics_key + "/" + number() + "_ranks";
}

Tensor GroupBackend::on(std::size_t device, Tensor tensor) const {
  tensor.data = places_->on(device, tensor.data);
  return tensor;
}

Rows GroupBackend::on(std::size_t device, Rows rows) const {
  rows.data = places_->on(device, static_cast<float*>(rows.data));
  return rows;
}

Tensor GroupBackend::part_on(const Rank& rank, Tensor tensor) const {
  Tensor part = on(rank.device, part_of(tensor, count()));
  part.data += rank.place * part.rows * part.stride;
  return part;
}

Rows GroupBackend::part_on(const Rank& rank, const Rows& rows, std::int64_t whole_cols) const {
  if (rows.cols == whole_cols) return part_on(rank, rows.tensor());
  Rows part = on(rank.device, rows);
  const std::int64_t value = rows.format == RowFormat::kBF16 ? 2 : 4;
  part.data = static_cast<std::byte*>(part.data) + rank.place * rows.rows * rows.ld * value;
  return part;
}

const float* GroupBackend::part_on(const Rank& rank, const float* values, std::int64_t each) const {
  const float* const all = places_->on(rank.device, values);
  return all == nullptr ? nullptr : all + rank.place * each;
}

RopeStore GroupBackend::on(std::size_t rank, const RopeStore& args) const {
  const std::size_t device = ranks_[rank].device;
  RopeStore local = args;
  local.qkv = part_on(ranks_[rank], args.qkv);
  local.heads /= count();
  local.kv_heads /= count();
  local.cos_sin = places_->on(device, args.cos_sin);
  local.q_norm = places_->on(device, args.q_norm);
  local.k_norm = places_->on(device, args.k_norm);
  local.v_norm = places_->on(device, args.v_norm);
  if (args.kv != nullptr) local.kv = &own(*args.kv).on(rank);
  return local;
}

/// Of so many rows. Logits that ranks can't share evenly, each part at a place that all kernels
/// take, all devices compute.
Split::Of GroupBackend::shared(const Split& split, std::int64_t rows) const {
  const bool uneven = split.of == Split::Of::kLogits && rows % (4 * count()) != 0;
  return uneven ? Split::Of::kNothing : split.of;
}

/// What all devices may still be given where each rank gets as much.
DeviceMemory GroupBackend::memory() const {
  DeviceMemory all;
  all.free = std::numeric_limits<std::int64_t>::max();
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    const DeviceMemory memory = devices_[device]->memory();
    all.total += memory.total;
    all.free = std::min(all.free, memory.free / std::ranges::count(ranks_, device, &Rank::device));
  }
  all.free *= count();
  return all;
}

std::int64_t GroupBackend::pass_bytes(const PassSizes& sizes) const {
  return first().pass_bytes(sizes) * std::ssize(devices_);
}

std::unique_ptr<Buffer> GroupBackend::make_buffer(std::int64_t count) {
  std::vector<std::unique_ptr<Buffer>> of_devices;
  for (const auto& device : devices_) of_devices.push_back(device->make_buffer(count));
  return std::make_unique<GroupBuffer>(std::move(of_devices), places_);
}

void GroupBackend::upload(float* to, std::span<const float> host) {
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->upload(places_->on(device, to), host);
  }
}

void GroupBackend::upload_split(float* to, std::span<const float> host, const Split& split) {
  if (split.of == Split::Of::kNothing) return upload(to, host);
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    std::vector<float> values;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].device != device) continue;
      for (const auto& [begin, end] : rows_on(split.runs, rank, ranks_.size())) {
        values.insert(values.end(), host.begin() + begin, host.begin() + end);
      }
    }
    devices_[device]->upload(places_->on(device, to), values);
  }
}

std::unique_ptr<KvStore> GroupBackend::make_kv_store(const KvShape& shape) {
  check_kv_shape(shape);
  if (shape.kv_heads % count() != 0 || shape.wide.layers > 0) throw_not_shared("make_kv_store");
  KvShape of_rank = shape;
  of_rank.kv_heads /= count();
  std::vector<std::unique_ptr<KvStore>> stores;
  for (const Rank& rank : ranks_) stores.push_back(of(rank).make_kv_store(of_rank));
  return std::make_unique<GroupKvStore>(shape, std::move(stores));
}

std::unique_ptr<StateStore> GroupBackend::make_state_store(const StateShape&) {
  throw_not_shared("make_state_store");
}

std::unique_ptr<Weight> GroupBackend::pack_split(std::span<const StoredMatrix> parts,
                                                 const Split& split) {
  const Split::Of shared_by = shared(split, stacked_rows(parts));
  std::vector<std::unique_ptr<Weight>> weights;
  if (shared_by == Split::Of::kNothing) {
    for (const auto& device : devices_) weights.push_back(device->pack(parts));
  } else {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const SharedParts of_rank(parts, split, rank, ranks_.size());
      weights.push_back(of(ranks_[rank]).pack(of_rank.views()));
    }
  }
  tell_numerics();
  return std::make_unique<GroupWeight>(std::move(weights), shared_by);
}

std::unique_ptr<Weight> GroupBackend::random_split(std::int64_t rows, std::int64_t cols,
                                                   DType number, std::uint64_t seed,
                                                   const Split& split) {
  const Split::Of shared_by = shared(split, rows);
  std::vector<std::unique_ptr<Weight>> weights;
  if (shared_by == Split::Of::kNothing) {
    for (const auto& device : devices_) {
      weights.push_back(device->random_weight(rows, cols, number, seed));
    }
    return std::make_unique<GroupWeight>(std::move(weights), shared_by);
  }
  (shared_by == Split::Of::kInputs ? cols : rows) /= count();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    weights.push_back(
        of(ranks_[rank]).random_weight(rows, cols, number, seed * ranks_.size() + rank));
  }
  return std::make_unique<GroupWeight>(std::move(weights), shared_by);
}

PassKind GroupBackend::pass_kind(const KvShape& kv) const {
  KvShape of_rank = kv;
  of_rank.kv_heads /= count();
  return first().pass_kind(of_rank);
}

void GroupBackend::run_pass(const PassInputs& inputs, const PassOps& ops) {
  const PassCounts before = first().pass_counts();
  run_pass_from(0, inputs, inputs, ops);
  const PassCounts& now = first().pass_counts();
  pass_counts_.passes += now.passes - before.passes;
  pass_counts_.without_graph += now.without_graph - before.without_graph;
  pass_counts_.without_tensor_cores += now.without_tensor_cores - before.without_tensor_cores;
}

/// Inside the passes of the devices before, which may have padded the inputs, so that ops are
/// enqueued, or recorded, in turns on all. A device that replays its recording does not call what
/// is inside: the next ones then replay theirs, which were made together.
void GroupBackend::run_pass_from(std::size_t device, const PassInputs& whole,
                                 const PassInputs& padded, const PassOps& ops) {
  PassInputs local = padded;
  if (device == devices_.size()) {
    local.heads = whole.heads;
    local.kv = whole.kv;
    local.tables = whole.tables;
    return ops(local);
  }
  local.heads = whole.heads / count();
  if (whole.kv != nullptr) {
    const auto rank = std::ranges::find(ranks_, device, &Rank::device) - ranks_.begin();
    local.kv = &own(*whole.kv).on(static_cast<std::size_t>(rank));
  }
  std::vector<PassTable> tables(whole.tables.begin(), whole.tables.end());
  for (PassTable& table : tables) table.device = places_->on(device, table.device);
  local.tables = tables;
  bool inside = false;
  devices_[device]->run_pass(local, [&](const PassInputs& inputs) {
    inside = true;
    run_pass_from(device + 1, whole, inputs, ops);
  });
  if (!inside) run_pass_from(device + 1, whole, padded, [](const PassInputs&) {});
}

void GroupBackend::embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) {
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->embed(on(device, out), tokens, own(weight).at(device));
  }
}

void GroupBackend::rms_norm(Tensor out, Tensor x, const float* weight, float eps) {
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->rms_norm(on(device, out), on(device, x), places_->on(device, weight), eps);
  }
}

void GroupBackend::scale(Tensor x, float factor, float cap) {
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->scale(on(device, x), factor, cap);
  }
}

void GroupBackend::add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) {
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->add_normed(on(device, out), on(device, x), places_->on(device, weight), eps,
                                 factor);
  }
}

void GroupBackend::copy(Tensor out, Tensor x) {
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->copy(on(device, out), on(device, x));
  }
}

void GroupBackend::gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) {
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->gather_rows(on(device, out), on(device, x), rows);
  }
}

void GroupBackend::rope_and_store(const RopeStore& args) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    of(ranks_[rank]).rope_and_store(on(rank, args));
  }
}

void GroupBackend::attention(const AttentionArgs& args) {
  const std::int64_t heads = args.heads / count();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    AttentionArgs local = args;
    local.out = part_on(ranks_[rank], args.out, args.q.cols);
    local.q = part_on(ranks_[rank], args.q);
    local.heads = heads;
    local.sinks = part_on(ranks_[rank], args.sinks, heads);
    local.kv = &own(*args.kv).on(rank);
    of(ranks_[rank]).attention(local);
  }
}

void GroupBackend::scale_rows(Tensor x, const float* factors) {
  for (const Rank& rank : ranks_) {
    of(rank).scale_rows(part_on(rank, x), places_->on(rank.device, factors));
  }
}

void GroupBackend::silu_mul(Tensor out, Tensor gate_up) {
  for (const Rank& rank : ranks_) of(rank).silu_mul(part_on(rank, out), part_on(rank, gate_up));
}

void GroupBackend::activate(Tensor out, Tensor gate_up, const Activation& activation) {
  for (const Rank& rank : ranks_) {
    of(rank).activate(part_on(rank, out), part_on(rank, gate_up), activation);
  }
}

void GroupBackend::squared_relu(Tensor x) {
  for (const Rank& rank : ranks_) of(rank).squared_relu(part_on(rank, x));
}

std::vector<Tensor> GroupBackend::partial(std::int64_t rows, std::int64_t cols) {
  const std::int64_t size = rows * cols;
  if (partials_.empty() || partials_.back()->count() < most_on_one_ * size) {
    partials_.push_back(make_buffer(2 * most_on_one_ * size));
  }
  std::vector<Tensor> parts;
  for (const Rank& rank : ranks_) {
    const Tensor part{partials_.back()->data() + rank.place * size, rows, cols, cols};
    parts.push_back(on(rank.device, part));
  }
  return parts;
}

/// A rank's product. args: what is whole. out, bias: the rank's.
void GroupBackend::product_on(std::size_t number, const Product& args, Tensor out,
                              const float* bias) {
  const Rank& rank = ranks_[number];
  const GroupWeight& weight = own(*args.weight);
  Product local = args;
  local.weight = &weight.at(number);
  local.in = weight.shared() == Split::Of::kInputs ? part_on(rank, args.in, weight.cols())
                                                   : on(rank.device, args.in);
  local.x = on(rank.device, args.x);
  local.norm = places_->on(rank.device, args.norm);
  local.bias = bias;
  local.out = out;
  if (args.act.data != nullptr) local.act = part_on(rank, args.act, weight.rows() / 2);
  RopeStore rope;
  if (args.rope != nullptr) {
    rope = on(number, *args.rope);
    local.rope = &rope;
  }
  of(rank).product(local);
}

void GroupBackend::product(const Product& args) {
  const GroupWeight& weight = own(*args.weight);
  switch (weight.shared()) {
    case Split::Of::kInputs:
      return add_up(args);
    case Split::Of::kLogits:
      return bring_together(args);
    case Split::Of::kOutputs:
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        product_on(rank, args, part_on(ranks_[rank], args.out),
                   part_on(ranks_[rank], args.bias, weight.rows() / count()));
      }
      return;
    case Split::Of::kNothing:
      break;
  }
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    Product local = args;
    local.weight = &weight.at(device);
    local.in = on(device, args.in);
    local.x = on(device, args.x);
    local.norm = places_->on(device, args.norm);
    local.bias = places_->on(device, args.bias);
    local.out = on(device, args.out);
    local.act = on(device, args.act);
    devices_[device]->product(local);
  }
}

/// The first rank's sum has the bias; then the others' are added in their order. On one device each
/// adds its own.
void GroupBackend::add_up(const Product& args) {
  const bool adds = args.epilogue == Epilogue::kAdd;
  if (devices_.size() == 1) {
    Product part = args;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      product_on(rank, part, args.out, rank == 0 ? args.bias : nullptr);
      part.epilogue = Epilogue::kAdd;
    }
    return;
  }
  const std::vector<Tensor> parts = partial(args.out.rows, args.out.cols);
  Product part = args;
  part.epilogue = Epilogue::kStore;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    product_on(rank, part, parts[rank],
               rank == 0 ? places_->on(ranks_[rank].device, args.bias) : nullptr);
  }
  std::vector<Tensor> outs;
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    outs.push_back(on(device, args.out));
  }
  exchange_->sum(outs, parts, adds ? Store::kAdd : Store::kOverwrite);
}

/// Ranks on the first device write their columns themselves, and so do all where they can.
void GroupBackend::bring_together(const Product& args) {
  const std::int64_t each = args.out.cols / count();
  const bool apart = devices_.size() > 1 && !exchange_->writes_to_first();
  std::vector<Tensor> parts;
  if (apart) parts = partial(args.out.rows, each);
  std::vector<Exchange::Columns> columns;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::int64_t begin = static_cast<std::int64_t>(rank) * each;
    const Tensor to = args.out.columns(begin, each);
    const bool on_first = ranks_[rank].device == 0;
    const Tensor out = apart && !on_first ? parts[rank] : to;
    if (!on_first) columns.push_back({ranks_[rank].device, out, to});
    product_on(rank, args, out, part_on(ranks_[rank], args.bias, each));
  }
  if (!columns.empty()) exchange_->gather(columns);
}

void GroupBackend::matmul(Tensor out, Tensor x, const Weight& weight, const float* bias,
                          Store store) {
  Product product;
  product.weight = &weight;
  product.bias = bias;
  product.in = x;
  product.out = out;
  product.epilogue = store == Store::kAdd ? Epilogue::kAdd : Epilogue::kStore;
  this->product(product);
}

void GroupBackend::move_kv(const KvMoves& args) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::size_t device = ranks_[rank].device;
    std::vector<const float*> angles;
    for (const float* const block : args.angles) angles.push_back(places_->on(device, block));
    KvMoves local = args;
    local.angles = angles;
    local.kv = &own(*args.kv).on(rank);
    of(ranks_[rank]).move_kv(local);
  }
}

MoveTotals GroupBackend::move_totals() {
  MoveTotals all;
  for (const auto& device : devices_) {
    const MoveTotals of_device = device->move_totals();
    all.bytes += of_device.bytes;
    all.seconds += of_device.seconds;
  }
  return all;
}

void GroupBackend::delta_net(const DeltaNet&) {
  throw_not_shared("delta_net");
}
void GroupBackend::short_conv(const ShortConv&) {
  throw_not_shared("short_conv");
}
void GroupBackend::mamba(const Mamba&) {
  throw_not_shared("mamba");
}
void GroupBackend::gate(const Rows&, Tensor, Tensor) {
  throw_not_shared("gate");
}

}  // namespace group

std::unique_ptr<Backend> make_cpu_group(Numerics numerics, int threads, int ranks,
                                        const std::string& kernels) {
  std::vector<std::unique_ptr<Backend>> one;
  one.push_back(make_cpu_backend(numerics, threads, kernels));
  return std::make_unique<group::GroupBackend>(
      std::move(one), std::vector<std::size_t>(static_cast<std::size_t>(ranks)), nullptr);
}

}  // namespace dendrite
