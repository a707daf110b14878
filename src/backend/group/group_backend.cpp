#include "backend/group/group_backend.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "backend/checks.h"
#include "backend/group/host_exchange.h"
#include "backend/packing.h"
#include "dendrite/error.h"

namespace dendrite {
namespace group {
namespace {

class GroupBuffer final : public Buffer {
 public:
  GroupBuffer(std::vector<std::unique_ptr<Buffer>> of_ranks, std::shared_ptr<Places> places)
      : of_ranks_(std::move(of_ranks)), places_(std::move(places)) {
    std::vector<float*> bases;
    for (const auto& buffer : of_ranks_) bases.push_back(buffer->data());
    places_->add(std::move(bases), count());
  }
  ~GroupBuffer() override {
    if (count() > 0) places_->remove(data());
  }
  GroupBuffer(const GroupBuffer&) = delete;
  GroupBuffer& operator=(const GroupBuffer&) = delete;

  float* data() override { return of_ranks_.front()->data(); }
  std::int64_t count() const override { return of_ranks_.front()->count(); }

 private:
  std::vector<std::unique_ptr<Buffer>> of_ranks_;
  std::shared_ptr<Places> places_;
};

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

GroupBackend::GroupBackend(std::vector<std::unique_ptr<Backend>> ranks, std::vector<int> devices,
                           std::unique_ptr<Exchange> exchange)
    : ranks_(std::move(ranks)),
      devices_(std::move(devices)),
      exchange_(std::move(exchange)),
      info_(first().info()) {
  info_.name += ", " + number() + " ranks";
  tell_numerics();
  if (first().sampler() != nullptr) sampler_.emplace(*first().sampler());
}

/// Which weights there are may be a part of it.
void GroupBackend::tell_numerics() {
  info_.numerics_key = first().info().numerics_key + "/" + number() + "_ranks";
}

Tensor GroupBackend::on(std::size_t rank, Tensor tensor) const {
  tensor.data = places_->on(rank, tensor.data);
  return tensor;
}

Rows GroupBackend::on(std::size_t rank, Rows rows) const {
  rows.data = places_->on(rank, static_cast<float*>(rows.data));
  return rows;
}

Rows GroupBackend::part_on(std::size_t rank, const Rows& rows, std::int64_t whole_cols) const {
  if (rows.cols != whole_cols) return on(rank, rows);
  return part_on(rank, rows.tensor());
}

RopeStore GroupBackend::on(std::size_t rank, const RopeStore& args) const {
  RopeStore local = args;
  local.qkv = part_on(rank, args.qkv);
  local.heads /= count();
  local.kv_heads /= count();
  local.cos_sin = places_->on(rank, args.cos_sin);
  local.q_norm = places_->on(rank, args.q_norm);
  local.k_norm = places_->on(rank, args.k_norm);
  local.v_norm = places_->on(rank, args.v_norm);
  if (args.kv != nullptr) local.kv = &own(*args.kv).on(rank);
  return local;
}

/// Of so many rows; logits that can't be shared evenly all ranks compute.
Split::Of GroupBackend::shared(const Split& split, std::int64_t rows) const {
  const bool uneven = split.of == Split::Of::kLogits && rows % count() != 0;
  return uneven ? Split::Of::kNothing : split.of;
}

/// What all devices may still be given where each gives as much: a rank's share times their number.
DeviceMemory GroupBackend::memory() const {
  std::map<int, std::int64_t> ranks_of;
  for (const int device : devices_) ++ranks_of[device];
  DeviceMemory all;
  std::int64_t least_share = std::numeric_limits<std::int64_t>::max();
  for (const auto& [device, ranks_there] : ranks_of) {
    const auto rank = std::ranges::find(devices_, device) - devices_.begin();
    const DeviceMemory memory = ranks_[static_cast<std::size_t>(rank)]->memory();
    all.total += memory.total;
    least_share = std::min(least_share, memory.free / ranks_there);
  }
  all.free = least_share * count();
  return all;
}

std::int64_t GroupBackend::pass_bytes(const PassSizes& sizes) const {
  return first().pass_bytes(sizes) * count();
}

std::unique_ptr<Buffer> GroupBackend::make_buffer(std::int64_t count) {
  std::vector<std::unique_ptr<Buffer>> of_ranks;
  for (const auto& rank : ranks_) of_ranks.push_back(rank->make_buffer(count));
  return std::make_unique<GroupBuffer>(std::move(of_ranks), places_);
}

void GroupBackend::upload(float* device, std::span<const float> host) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->upload(places_->on(rank, device), host);
  }
}

void GroupBackend::upload_split(float* device, std::span<const float> host, const Split& split) {
  if (split.of == Split::Of::kNothing) return upload(device, host);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::vector<float> values;
    for (const auto& [begin, end] : rows_on(split.runs, rank, ranks_.size())) {
      values.insert(values.end(), host.begin() + begin, host.begin() + end);
    }
    ranks_[rank]->upload(places_->on(rank, device), values);
  }
}

std::unique_ptr<KvStore> GroupBackend::make_kv_store(const KvShape& shape) {
  check_kv_shape(shape);
  if (shape.kv_heads % count() != 0 || shape.wide.layers > 0) throw_not_shared("make_kv_store");
  KvShape of_rank = shape;
  of_rank.kv_heads /= count();
  std::vector<std::unique_ptr<KvStore>> stores;
  for (const auto& rank : ranks_) stores.push_back(rank->make_kv_store(of_rank));
  return std::make_unique<GroupKvStore>(shape, std::move(stores));
}

std::unique_ptr<StateStore> GroupBackend::make_state_store(const StateShape&) {
  throw_not_shared("make_state_store");
}

std::unique_ptr<Weight> GroupBackend::pack_split(std::span<const StoredMatrix> parts,
                                                 const Split& split) {
  const Split::Of of = shared(split, stacked_rows(parts));
  std::vector<std::unique_ptr<Weight>> weights;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (of == Split::Of::kNothing) {
      weights.push_back(ranks_[rank]->pack(parts));
      continue;
    }
    const SharedParts of_rank(parts, split, rank, ranks_.size());
    weights.push_back(ranks_[rank]->pack(of_rank.views()));
  }
  tell_numerics();
  return std::make_unique<GroupWeight>(std::move(weights), of);
}

std::unique_ptr<Weight> GroupBackend::random_split(std::int64_t rows, std::int64_t cols,
                                                   DType number, std::uint64_t seed,
                                                   const Split& split) {
  const Split::Of of = shared(split, rows);
  const bool all = of == Split::Of::kNothing;
  if (of == Split::Of::kInputs) {
    cols /= count();
  } else if (!all) {
    rows /= count();
  }
  std::vector<std::unique_ptr<Weight>> weights;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::uint64_t own_seed = all ? seed : seed * ranks_.size() + rank;
    weights.push_back(ranks_[rank]->random_weight(rows, cols, number, own_seed));
  }
  return std::make_unique<GroupWeight>(std::move(weights), of);
}

PassKind GroupBackend::pass_kind(std::int64_t heads, const KvShape& kv, bool caps_scores) const {
  KvShape of_rank = kv;
  of_rank.kv_heads /= count();
  return first().pass_kind(heads / count(), of_rank, caps_scores);
}

void GroupBackend::run_pass(const PassInputs& inputs, const PassOps& ops) {
  ++pass_counts_.passes;
  run_pass_from(0, inputs, ops);
}

/// Inside the passes of the ranks before.
void GroupBackend::run_pass_from(std::size_t rank, const PassInputs& inputs, const PassOps& ops) {
  if (rank == ranks_.size()) return ops(inputs);
  PassInputs local = inputs;
  local.heads /= count();
  if (inputs.kv != nullptr) local.kv = &own(*inputs.kv).on(rank);
  std::vector<PassTable> tables(inputs.tables.begin(), inputs.tables.end());
  for (PassTable& table : tables) table.device = places_->on(rank, table.device);
  local.tables = tables;
  ranks_[rank]->run_pass(local, [&](const PassInputs&) { run_pass_from(rank + 1, inputs, ops); });
}

void GroupBackend::embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->embed(on(rank, out), tokens, own(weight).on(rank));
  }
}

void GroupBackend::rms_norm(Tensor out, Tensor x, const float* weight, float eps) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->rms_norm(on(rank, out), on(rank, x), places_->on(rank, weight), eps);
  }
}

void GroupBackend::scale(Tensor x, float factor, float cap) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->scale(on(rank, x), factor, cap);
  }
}

void GroupBackend::add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->add_normed(on(rank, out), on(rank, x), places_->on(rank, weight), eps, factor);
  }
}

void GroupBackend::copy(Tensor out, Tensor x) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->copy(on(rank, out), on(rank, x));
  }
}

void GroupBackend::gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->gather_rows(on(rank, out), on(rank, x), rows);
  }
}

void GroupBackend::rope_and_store(const RopeStore& args) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->rope_and_store(on(rank, args));
  }
}

void GroupBackend::attention(const AttentionArgs& args) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    AttentionArgs local = args;
    local.out = part_on(rank, args.out, args.q.cols);
    local.q = part_on(rank, args.q);
    local.heads /= count();
    local.sinks = places_->on(rank, args.sinks);
    local.kv = &own(*args.kv).on(rank);
    ranks_[rank]->attention(local);
  }
}

void GroupBackend::scale_rows(Tensor x, const float* factors) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->scale_rows(part_on(rank, x), places_->on(rank, factors));
  }
}

void GroupBackend::silu_mul(Tensor out, Tensor gate_up) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->silu_mul(part_on(rank, out), part_on(rank, gate_up));
  }
}

void GroupBackend::activate(Tensor out, Tensor gate_up, const Activation& activation) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->activate(part_on(rank, out), part_on(rank, gate_up), activation);
  }
}

void GroupBackend::squared_relu(Tensor x) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->squared_relu(part_on(rank, x));
  }
}

std::vector<Tensor> GroupBackend::partial(std::int64_t rows, std::int64_t cols) {
  if (partials_ == nullptr || partials_->count() < rows * cols) {
    partials_ = make_buffer(rows * cols);
  }
  std::vector<Tensor> parts;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    parts.push_back(on(rank, Tensor{partials_->data(), rows, cols, cols}));
  }
  return parts;
}

void GroupBackend::product(const Product& args) {
  const GroupWeight& weight = own(*args.weight);
  const Split::Of of = weight.shared();
  const bool sums = of == Split::Of::kInputs;
  const std::int64_t rows = args.out.rows;
  std::vector<Tensor> parts;  // of what ranks give each other
  if (sums) parts = partial(rows, weight.rows());
  if (of == Split::Of::kLogits) parts = partial(rows, weight.rows() / count());
  std::vector<Tensor> outs;
  std::vector<const float*> biases;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    Product local = args;
    local.weight = &weight.on(rank);
    local.in = sums ? part_on(rank, args.in, weight.cols()) : on(rank, args.in);
    local.x = on(rank, args.x);
    local.norm = places_->on(rank, args.norm);
    local.bias = places_->on(rank, args.bias);
    local.out = of == Split::Of::kOutputs ? part_on(rank, args.out) : on(rank, args.out);
    local.act = on(rank, args.act);
    RopeStore rope;
    if (args.rope != nullptr) {
      rope = on(rank, *args.rope);
      local.rope = &rope;
    }
    if (sums) {
      outs.push_back(local.out);
      biases.push_back(std::exchange(local.bias, nullptr));
      local.epilogue = Epilogue::kStore;
    }
    if (!parts.empty()) local.out = parts[rank];
    ranks_[rank]->product(local);
  }
  if (sums) {
    exchange_->sum(outs, parts, biases,
                   args.epilogue == Epilogue::kAdd ? Store::kAdd : Store::kOverwrite);
  } else if (!parts.empty()) {
    exchange_->gather(args.out, parts);
  }
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
    std::vector<const float*> angles;
    for (const float* const block : args.angles) angles.push_back(places_->on(rank, block));
    KvMoves local = args;
    local.angles = angles;
    local.kv = &own(*args.kv).on(rank);
    ranks_[rank]->move_kv(local);
  }
}

MoveTotals GroupBackend::move_totals() {
  MoveTotals all;
  for (const auto& rank : ranks_) {
    const MoveTotals of_rank = rank->move_totals();
    all.bytes += of_rank.bytes;
    all.seconds += of_rank.seconds;
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
  std::vector<std::unique_ptr<Backend>> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(make_cpu_backend(numerics, threads, kernels));
  }
  return std::make_unique<group::GroupBackend>(std::move(all),
                                               std::vector<int>(static_cast<std::size_t>(ranks)),
                                               std::make_unique<group::HostExchange>());
}

}  // namespace dendrite
