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

#include "backend/forwarding_backend.h"
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

class SamplingBackend : public ForwardingBackend {
 public:
  SamplingBackend(Numerics type, int threads, const std::string& kernels)
      : ForwardingBackend(make_cpu_backend(type, threads, kernels)) {}

  /// Called before a pass, with the number of its rows whose token nobody has read.
  std::function<void(std::int64_t unread)> on_pass;
  HostSampler& host_sampler() { return sampler_; }

  std::int64_t downloads = 0;
  void download(std::span<float> host, const float* device) override {
    ++downloads;
    ForwardingBackend::download(host, device);
  }

  LogitsSampler* sampler() override { return &sampler_; }

  /// What memory() says, if set.
  std::optional<DeviceMemory> has;
  DeviceMemory memory() const override { return has.value_or(ForwardingBackend::memory()); }
  bool takes_pages_at_once() const override { return has.has_value(); }
  PassKind slow_kind;  // what pass_kind() says, if it says anything
  PassKind pass_kind(const KvShape& kv) const override {
    return slow_kind.slow.empty() ? ForwardingBackend::pass_kind(kv) : slow_kind;
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
    to().run_pass(read, ops);
  }

 private:
  HostSampler sampler_;
};

}  // namespace dendrite::test
