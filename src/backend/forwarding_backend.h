#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "backend/backend.h"

namespace dendrite {

/// Hands every op to another backend, for who changes some of them. Passes, products and
/// experts are its own: they come to it op by op.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> to) : to_(std::move(to)) {}

  const DeviceInfo& info() const override { return to_->info(); }
  Numerics numerics() const override { return to_->numerics(); }
  DeviceMemory memory() const override { return to_->memory(); }
  PassKind pass_kind(const KvShape& kv) const override { return to_->pass_kind(kv); }
  std::unique_ptr<Buffer> make_buffer(std::int64_t count) override {
    return to_->make_buffer(count);
  }
  void upload(float* device, std::span<const float> host) override { to_->upload(device, host); }
  void download(std::span<float> host, const float* device) override {
    to_->download(host, device);
  }
  std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) override {
    return to_->make_kv_store(shape);
  }
  std::unique_ptr<StateStore> make_state_store(const StateShape& shape) override {
    return to_->make_state_store(shape);
  }
  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    return to_->pack(parts);
  }
  bool rounds_inputs(const StoredMatrix& matrix) const override {
    return to_->rounds_inputs(matrix);
  }
  std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType number,
                                        std::uint64_t seed) override {
    return to_->random_weight(rows, cols, number, seed);
  }
  MoveTotals move_totals() override { return to_->move_totals(); }

  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override {
    to_->embed(out, tokens, weight);
  }
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override {
    to_->rms_norm(out, x, weight, eps);
  }
  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override {
    to_->matmul(out, x, weight, bias, store);
  }
  void rope_and_store(const RopeStore& args) override { to_->rope_and_store(args); }
  void move_kv(const KvMoves& args) override { to_->move_kv(args); }
  void attention(const AttentionArgs& args) override { to_->attention(args); }
  void delta_net(const DeltaNet& args) override { to_->delta_net(args); }
  void short_conv(const ShortConv& args) override { to_->short_conv(args); }
  void mamba(const Mamba& args) override { to_->mamba(args); }
  void gate(const Rows& out, Tensor x, Tensor gate) override { to_->gate(out, x, gate); }
  bool has_experts() const override { return to_->has_experts(); }
  std::unique_ptr<Weight> pack_expert(std::span<const StoredMatrix> parts) override {
    return to_->pack_expert(parts);
  }
  void add_experts(std::span<const Expert> experts) override { to_->add_experts(experts); }
  void choose_experts(std::span<ExpertChoice> out, Tensor logits, const Routing& routing,
                      const float* correction, const float* factors) override {
    to_->choose_experts(out, logits, routing, correction, factors);
  }
  void add_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows,
                std::span<const float> factors) override {
    to_->add_rows(out, x, rows, factors);
  }
  void silu_mul(Tensor out, Tensor gate_up) override { to_->silu_mul(out, gate_up); }
  void activate(Tensor out, Tensor gate_up, const Activation& activation) override {
    to_->activate(out, gate_up, activation);
  }
  void squared_relu(Tensor x) override { to_->squared_relu(x); }
  void scale(Tensor x, float factor, float cap) override { to_->scale(x, factor, cap); }
  void scale_rows(Tensor x, const float* factors) override { to_->scale_rows(x, factors); }
  void add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) override {
    to_->add_normed(out, x, weight, eps, factor);
  }
  void copy(Tensor out, Tensor x) override { to_->copy(out, x); }
  void head_products(const HeadProducts& args) override { to_->head_products(args); }
  void copy_heads(const HeadCopies& args) override { to_->copy_heads(args); }
  void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) override {
    to_->gather_rows(out, x, rows);
  }

 protected:
  Backend& to() { return *to_; }

 private:
  std::unique_ptr<Backend> to_;
};

}  // namespace dendrite
