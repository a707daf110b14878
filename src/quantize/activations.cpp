#include "quantize/activations.h"

#include <cmath>
#include <memory>
#include <utility>

#include "backend/backend.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"

namespace dendrite {
namespace {

/// Sums of one matrix.
struct Sums {
  std::vector<double> means, squares;
  std::int64_t rows = 0;

  void add(Tensor x) {
    const auto cols = static_cast<std::size_t>(x.cols);
    means.resize(cols);
    squares.resize(cols);
    for (std::int64_t r = 0; r < x.rows; ++r) {
      const std::span<const float> row(x.data + r * x.stride, cols);
      double length2 = 0;
      for (const float value : row) length2 += static_cast<double>(value) * value;
      if (!(length2 > 0)) continue;
      const double factor = std::sqrt(static_cast<double>(x.cols) / length2);
      for (std::size_t k = 0; k < cols; ++k) {
        const double value = std::abs(row[k]) * factor;
        means[k] += value;
        squares[k] += value * value;
      }
      ++rows;
    }
  }

  InputMoments moments() const {
    InputMoments out;
    const double factor = rows > 0 ? 1 / static_cast<double>(rows) : 0;
    for (const double sum : means) out.means.push_back(static_cast<float>(sum * factor));
    for (const double sum : squares) out.squares.push_back(static_cast<float>(sum * factor));
    return out;
  }
};

/// The CPU, whose products are watched: each is a matmul of its own here.
class WatchingBackend final : public Backend {
 public:
  WatchingBackend(Numerics numerics, int threads) : cpu_(make_cpu_backend(numerics, threads)) {}

  std::map<std::string, InputMoments> take() const {
    std::map<std::string, InputMoments> out;
    for (const auto& [weight, sums] : sums_) out.emplace(names_.at(weight), sums.moments());
    return out;
  }

  const DeviceInfo& info() const override { return cpu_->info(); }
  Numerics numerics() const override { return cpu_->numerics(); }
  DeviceMemory memory() const override { return cpu_->memory(); }
  PassKind pass_kind(std::int64_t heads, const KvShape& kv) const override {
    return cpu_->pass_kind(heads, kv);
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
  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    auto weight = cpu_->pack(parts);
    names_.emplace(weight.get(), parts.front().name);
    return weight;
  }
  std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType number,
                                        std::uint64_t seed) override {
    return cpu_->random_weight(rows, cols, number, seed);
  }
  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override {
    cpu_->embed(out, tokens, weight);
  }
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override {
    cpu_->rms_norm(out, x, weight, eps);
  }
  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override {
    sums_[&weight].add(x);
    cpu_->matmul(out, x, weight, bias, store);
  }
  void rope_and_store(const RopeStore& args) override { cpu_->rope_and_store(args); }
  void move_kv(const KvMoves& args) override { cpu_->move_kv(args); }
  void attention(const AttentionArgs& args) override { cpu_->attention(args); }
  void silu_mul(Tensor out, Tensor gate_up) override { cpu_->silu_mul(out, gate_up); }
  void copy(Tensor out, Tensor x) override { cpu_->copy(out, x); }
  void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) override {
    cpu_->gather_rows(out, x, rows);
  }

 private:
  std::unique_ptr<Backend> cpu_;
  std::map<const Weight*, std::string> names_;
  std::map<const Weight*, Sums> sums_;
};

}  // namespace

Activations activations_of(const std::string& model, std::span<const TextSample> samples,
                           const ActivationParams& params) {
  WatchingBackend* watching = nullptr;
  const EngineOptions options{.threads = params.threads};
  const Engine engine = handle_of(load_core(model, options, [&](Numerics numerics, int threads) {
    auto backend = std::make_unique<WatchingBackend>(numerics, threads);
    watching = backend.get();
    return backend;
  }));
  const Perplexity run = perplexity(
      engine, samples,
      {.tokens = params.tokens, .cancel = params.cancel, .on_progress = params.on_progress});
  return {watching->take(), run.tokens, run.cancelled};
}

}  // namespace dendrite
