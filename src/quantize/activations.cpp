#include "quantize/activations.h"

#include <cmath>
#include <memory>
#include <utility>

#include "backend/forwarding_backend.h"
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
class WatchingBackend final : public ForwardingBackend {
 public:
  WatchingBackend(Numerics numerics, int threads)
      : ForwardingBackend(make_cpu_backend(numerics, threads)) {}

  std::map<std::string, InputMoments> take() const {
    std::map<std::string, InputMoments> out;
    for (const auto& [weight, sums] : sums_) out.emplace(names_.at(weight), sums.moments());
    return out;
  }

  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    auto weight = ForwardingBackend::pack(parts);
    names_.emplace(weight.get(), parts.front().name);
    return weight;
  }
  std::unique_ptr<Weight> pack_expert(std::span<const StoredMatrix> parts) override {
    auto weight = ForwardingBackend::pack_expert(parts);
    names_.emplace(weight.get(), parts.front().name);
    return weight;
  }
  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override {
    sums_[&weight].add(x);
    ForwardingBackend::matmul(out, x, weight, bias, store);
  }

 private:
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
