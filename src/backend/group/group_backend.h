#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/group/exchange.h"
#include "backend/group/first_sampler.h"
#include "backend/group/group_kv_store.h"
#include "backend/group/group_weight.h"
#include "backend/group/places.h"

namespace dendrite::group {

/// A model's ranks, which compute it together: each has its share of heads, of feed-forward values
/// and of logits, and the devices that ranks are on have all of what lies between (Megatron-LM,
/// Shoeybi et al. 2019, arXiv:1909.08053). Ranks on one device are computed by one backend, one
/// after the other. A buffer is one on each device, of one size; where ranks share a tensor's
/// columns, those on a device have theirs, each packed, behind each other where the whole would be.
/// Tensors and pointers that come in are the first device's.
///
/// A product is cut where ranks meet, and their sums are added in their order to what was there, so
/// results depend on how many ranks there are and not on where they are.
class GroupBackend final : public Backend {
 public:
  /// devices: of one kind. device_of: a rank's each, by its number in `devices`. exchange: between
  /// devices; null where there is one.
  GroupBackend(std::vector<std::unique_ptr<Backend>> devices, std::vector<std::size_t> device_of,
               std::unique_ptr<Exchange> exchange);

  const DeviceInfo& info() const override { return info_; }
  Numerics numerics() const override { return first().numerics(); }
  int ranks() const override { return static_cast<int>(ranks_.size()); }

  double read_gb_per_s() override { return first().read_gb_per_s(); }
  void start_timing() override { first().start_timing(); }
  DeviceTime timing() const override { return first().timing(); }
  LogitsSampler* sampler() override { return sampler_ ? &*sampler_ : first().sampler(); }

  DeviceMemory memory() const override;
  bool takes_pages_at_once() const override { return first().takes_pages_at_once(); }
  std::int64_t pass_bytes(const PassSizes& sizes) const override;
  std::unique_ptr<Buffer> make_buffer(std::int64_t count) override;
  void upload(float* device, std::span<const float> host) override;
  void upload_split(float* device, std::span<const float> host, const Split& split) override;
  void download(std::span<float> host, const float* device) override {
    first().download(host, device);
  }
  std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) override;
  std::unique_ptr<StateStore> make_state_store(const StateShape& shape) override;
  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    return pack_split(parts, {});
  }
  std::unique_ptr<Weight> pack_split(std::span<const StoredMatrix> parts,
                                     const Split& split) override;
  bool rounds_inputs(const StoredMatrix& matrix) const override {
    return first().rounds_inputs(matrix);
  }
  std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType number,
                                        std::uint64_t seed) override {
    return random_split(rows, cols, number, seed, {});
  }
  std::unique_ptr<Weight> random_split(std::int64_t rows, std::int64_t cols, DType number,
                                       std::uint64_t seed, const Split& split) override;
  void run_pass(const PassInputs& inputs, const PassOps& ops) override;
  std::vector<FirstPass> first_passes() const override { return first().first_passes(); }
  PassKind pass_kind(const KvShape& kv) const override;

  // Ops of what every device has all of.
  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override;
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override;
  void scale(Tensor x, float factor, float cap) override;
  void add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) override;
  void copy(Tensor out, Tensor x) override;
  void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) override;

  // Ops between two products of which one shares its outputs and the other its inputs.
  void rope_and_store(const RopeStore& args) override;
  void attention(const AttentionArgs& args) override;
  void scale_rows(Tensor x, const float* factors) override;
  void silu_mul(Tensor out, Tensor gate_up) override;
  void activate(Tensor out, Tensor gate_up, const Activation& activation) override;
  void squared_relu(Tensor x) override;

  void product(const Product& args) override;
  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override;
  void move_kv(const KvMoves& args) override;
  MoveTotals move_totals() override;

  // What ranks do not share; models that have it are refused before they are loaded.
  bool has_experts() const override { return first().has_experts(); }
  void delta_net(const DeltaNet& args) override;
  void short_conv(const ShortConv& args) override;
  void mamba(const Mamba& args) override;
  void gate(const Rows& out, Tensor x, Tensor gate) override;

 private:
  /// Where a rank is: which device, and behind how many other ranks there.
  struct Rank {
    std::size_t device = 0;
    std::int64_t place = 0;
  };

  std::string number() const { return std::to_string(count()); }
  void tell_numerics();
  void run_pass_from(std::size_t device, const PassInputs& whole, const PassInputs& padded,
                     const PassOps& ops);
  Backend& first() const { return *devices_.front(); }
  Backend& of(const Rank& rank) const { return *devices_[rank.device]; }
  std::int64_t count() const { return std::ssize(ranks_); }
  Split::Of shared(const Split& split, std::int64_t rows) const;
  Tensor on(std::size_t device, Tensor tensor) const;
  Rows on(std::size_t device, Rows rows) const;
  /// A rank's part of a tensor whose columns ranks share.
  Tensor part_on(const Rank& rank, Tensor tensor) const;
  /// The same of rows that are the whole's or, as GroupWeight::input gives them, a rank's.
  Rows part_on(const Rank& rank, const Rows& rows, std::int64_t whole_cols) const;
  /// Of something of which each rank has so many values.
  const float* part_on(const Rank& rank, const float* values, std::int64_t each) const;
  RopeStore on(std::size_t rank, const RopeStore& args) const;
  void product_on(std::size_t rank, const Product& args, Tensor out, const float* bias);
  void add_up(const Product& args);
  void bring_together(const Product& args);
  /// A rank's each [rows, cols], for what it gives the others.
  std::vector<Tensor> partial(std::int64_t rows, std::int64_t cols);

  std::vector<std::unique_ptr<Backend>> devices_;
  std::vector<Rank> ranks_;
  std::int64_t most_on_one_ = 0;  // ranks
  std::unique_ptr<Exchange> exchange_;
  std::shared_ptr<Places> places_ = std::make_shared<Places>();
  // Each at least twice as large as the one before, which recorded passes may use.
  std::vector<std::unique_ptr<Buffer>> partials_;
  std::optional<FirstSampler> sampler_;  // of several devices
  DeviceInfo info_;
};

}  // namespace dendrite::group
