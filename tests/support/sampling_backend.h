#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/logits_sampler.h"
#include "dendrite/error.h"
#include "sample/distribution.h"
#include "sample/sampler.h"

// The CPU as a device that samples: what engines do where logits stay on the device, and begin
// steps before tokens are read, without a GPU. Passes and draws run when they are enqueued.
namespace dendrite::test {

class HostSampler final : public LogitsSampler {
 public:
  void begin_draw(Tensor logits, std::span<const Draw> draws) override {
    if (draws.empty()) return;
    if (begun_.size() == 2) throw Error("begin_draw: 2 draws are begun");
    std::vector<Draw>& results = begun_.emplace_back(draws.begin(), draws.end());
    kept_.clear();
    for (Draw& draw : results) {
      const SamplerSettings settings{.temperature = draw.temperature,
                                     .top_k = draw.top_k,
                                     .top_p = draw.top_p,
                                     .min_p = draw.min_p};
      const std::span<const float> row = row_of(logits, draw.row);
      const Mask mask = draw.mask == nullptr ? Mask{} : Mask{draw.mask, mask_words(row.size())};
      draw.token = sample(row, draw.edits, settings, mask, draw.uniform, scratch_);
      draw.lse = log_sum_exp(row);
      draw.logprob = draw.token < 0 ? -std::numeric_limits<float>::infinity()
                                    : logprob_of(row, draw.token, draw.lse);
      kept_.push_back(std::max(draw.token, 0));
      if (draw.wants_row) rows_.emplace_back(row.begin(), row.end());
    }
  }
  void finish_draw(std::span<Draw> draws) override {
    if (draws.empty()) return;
    if (begun_.empty() || begun_.front().size() != draws.size()) throw Error("finish_draw: others");
    for (std::size_t i = 0; i < draws.size(); ++i) {
      const std::span<float> values = draws[i].values;
      draws[i] = begun_.front()[i];
      draws[i].values = values;
      if (!draws[i].wants_row) continue;
      if (!values.empty()) std::ranges::copy(rows_.front(), values.begin());
      rows_.pop_front();
    }
    begun_.pop_front();
  }
  void forget_draws() override {
    begun_.clear();
    rows_.clear();
  }
  std::int32_t kept_draws() const override { return 64; }
  void log_probs(Tensor logits, std::span<TokenQuery> queries) override {
    for (TokenQuery& query : queries) {
      const std::span<const float> row = row_of(logits, query.row);
      if (query.token < 0 || query.token >= logits.cols) throw Error("log_probs: no such token");
      query.lse = log_sum_exp(row);
      query.logprob = logprob_of(row, query.token, query.lse);
      query.likeliest = argmax(row);
    }
  }

  std::int32_t kept(std::int32_t i) const { return kept_.at(static_cast<std::size_t>(i)); }
  std::size_t begun() const { return begun_.size(); }

 private:
  static std::span<const float> row_of(const Tensor& logits, std::int32_t row) {
    if (row < 0 || row >= logits.rows) throw Error("draw: no such row");
    return {logits.data + row * logits.stride, static_cast<std::size_t>(logits.cols)};
  }
  static float logprob_of(std::span<const float> row, Token token, double lse) {
    return static_cast<float>(row[static_cast<std::size_t>(token)] - lse);
  }

  std::deque<std::vector<Draw>> begun_;
  std::deque<std::vector<float>> rows_;  // of draws that want theirs, in their order
  std::vector<std::int32_t> kept_;
  SamplerScratch scratch_;
};

class SamplingBackend : public Backend {
 public:
  SamplingBackend(Numerics type, int threads, const std::string& kernels)
      : cpu_(make_cpu_backend(type, threads, kernels)) {}

  /// Called before a pass, with the number of its rows whose token nobody has read.
  std::function<void(std::int64_t unread)> on_pass;
  HostSampler& host_sampler() { return sampler_; }

  const DeviceInfo& info() const override { return cpu_->info(); }
  Numerics numerics() const override { return cpu_->numerics(); }
  LogitsSampler* sampler() override { return &sampler_; }

  /// What memory() says, if set.
  std::optional<DeviceMemory> has;
  DeviceMemory memory() const override { return has.value_or(cpu_->memory()); }
  bool takes_pages_at_once() const override { return has.has_value(); }
  PassKind slow_kind;  // what pass_kind() says, if it says anything
  PassKind pass_kind(std::int64_t heads, const KvShape& kv) const override {
    return slow_kind.slow.empty() ? cpu_->pass_kind(heads, kv) : slow_kind;
  }

  std::unique_ptr<Buffer> make_buffer(std::int64_t count) override {
    return cpu_->make_buffer(count);
  }
  void upload(float* device, std::span<const float> host) override { cpu_->upload(device, host); }
  void download(std::span<float> host, const float* device) override {
    cpu_->download(host, device);
  }
  std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) override {
    return cpu_->make_kv_store(shape);
  }
  std::unique_ptr<StateStore> make_state_store(const StateShape& shape) override {
    return cpu_->make_state_store(shape);
  }
  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    return cpu_->pack(parts);
  }
  bool rounds_inputs(const StoredMatrix& matrix) const override {
    return cpu_->rounds_inputs(matrix);
  }
  std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType number,
                                        std::uint64_t seed) override {
    return cpu_->random_weight(rows, cols, number, seed);
  }

  void run_pass(const PassInputs& inputs, const PassOps& ops) override {
    std::vector<std::int32_t> tokens(inputs.tokens.begin(), inputs.tokens.end());
    std::int64_t unread = 0;
    for (std::int32_t& token : tokens) {
      if (token >= 0) continue;
      token = sampler_.kept(PassInputs::token_of_draw(token));
      ++unread;
    }
    if (on_pass) on_pass(unread);
    ++pass_counts_.passes;
    ++pass_counts_.without_graph;
    PassInputs read = inputs;
    read.tokens = tokens;
    cpu_->run_pass(read, ops);
  }

  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override {
    cpu_->embed(out, tokens, weight);
  }
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override {
    cpu_->rms_norm(out, x, weight, eps);
  }
  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override {
    cpu_->matmul(out, x, weight, bias, store);
  }
  void rope_and_store(const RopeStore& args) override { cpu_->rope_and_store(args); }
  void move_kv(const KvMoves& args) override { cpu_->move_kv(args); }
  MoveTotals move_totals() override { return cpu_->move_totals(); }
  void attention(const AttentionArgs& args) override { cpu_->attention(args); }
  void delta_net(const DeltaNet& args) override { cpu_->delta_net(args); }
  void gate(const Rows& out, Tensor x, Tensor gate) override { cpu_->gate(out, x, gate); }
  void silu_mul(Tensor out, Tensor gate_up) override { cpu_->silu_mul(out, gate_up); }
  void copy(Tensor out, Tensor x) override { cpu_->copy(out, x); }
  void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) override {
    cpu_->gather_rows(out, x, rows);
  }

 private:
  std::unique_ptr<Backend> cpu_;
  HostSampler sampler_;
};

}  // namespace dendrite::test
