#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/dtype.h"
#include "support/paths.h"
#include "test_support.h"

// Mixtures of experts, and what they are in double precision: on a GPU of weights and activations
// that are rounded to bf16.
namespace dendrite::test {

using testing_support::FileMatrix;
using testing_support::Owned;
using testing_support::Random;

/// Of a layer.
struct ExpertsShape {
  std::int64_t dim, ffn, shared_ffn;
  Routing routing;
  bool corrected = false;
  bool bias = false;
  Activation activation{};
  bool scaled = false;  // weights are, by a factor of each expert
  bool squared_relu = false;
};

inline std::string text_of(const ExpertsShape& s) {
  return std::to_string(s.routing.experts) + " experts, " + std::to_string(s.routing.chosen) +
         " chosen of " + std::to_string(s.routing.groups) + " groups, dim " +
         std::to_string(s.dim) + ", ffn " + std::to_string(s.ffn) + (s.bias ? ", biases" : "") +
         (s.corrected ? ", corrected" : "") + (s.scaled ? ", scaled" : "") +
         (s.squared_relu ? ", without gates" : "") +
         (s.routing.weighs_inputs ? ", inputs weighed" : "");
}

inline void round_to_bf16(std::vector<float>& values) {
  for (float& value : values) value = to_f32(to_bf16(value));
}

/// A matrix of an expert, what it means, and who holds it.
struct Matrix {
  StoredMatrix host;
  std::vector<float> values;
  std::shared_ptr<const void> holder;
};

inline Matrix matrix_of(FileMatrix matrix) {
  const auto held = std::make_shared<FileMatrix>(std::move(matrix));
  return {held->host, held->values, held};
}

inline Matrix plain_matrix(std::int64_t rows, std::int64_t cols, Random& random) {
  return matrix_of(
      FileMatrix(rows, cols, DType::kBF16,
                 random.normal(rows * cols, 1.0F / std::sqrt(static_cast<float>(cols)))));
}

/// A layer's experts with their exact values.
class Mixture {
 public:
  /// Of what `make` gives for a matrix's rows and columns and the expert that it is of.
  using Make = std::function<Matrix(std::int64_t, std::int64_t, std::int64_t)>;

  Mixture(Backend& backend, const ExpertsShape& shape, const Make& make)
      : backend_(backend), shape_(shape) {
    for (std::int64_t e = 0; e < shape.routing.all_experts(); ++e) {
      const std::int64_t ffn = e < shape.routing.experts ? shape.ffn : shape.shared_ffn;
      gate_ups_.push_back(make((shape.squared_relu ? 1 : 2) * ffn, shape.dim, e));
      downs_.push_back(make(shape.dim, ffn, e));
      if (!on_cuda()) continue;
      round_to_bf16(gate_ups_.back().values);
      round_to_bf16(downs_.back().values);
    }
    Random random(31);
    for (const Matrix& matrix : gate_ups_) add_bias(random, matrix.host.rows);
    for (const Matrix& matrix : downs_) add_bias(random, matrix.host.rows);
    if (shape.corrected) correction_ = random.normal(shape.routing.experts);
    if (shape.scaled) factors_ = random.normal(shape.routing.experts);
    pack();
  }

  /// Bytes of all matrices on the device.
  std::int64_t size_bytes() const {
    std::int64_t sum = 0;
    for (const auto& weight : weights_) sum += weight->size_bytes();
    return sum;
  }

  /// What is added to rows of zeros, or of `out`.
  std::vector<float> run(std::span<const float> x, std::span<const float> logits,
                         std::span<const float> out = {}) const {
    const std::int64_t rows = std::ssize(x) / shape_.dim;
    const std::int64_t widest = std::max(shape_.ffn, shape_.shared_ffn);
    Owned rows_in(backend_, rows, shape_.dim, shape_.dim + 3);
    Owned scores(backend_, rows, shape_.routing.logits(), shape_.routing.logits() + 2);
    Owned sums(backend_, rows, shape_.dim);
    Owned in(backend_, rows, shape_.dim);
    Owned gate_up(backend_, rows, 2 * widest);
    Owned act(backend_, rows, widest);
    Owned down(backend_, rows, shape_.dim);
    rows_in.set(backend_, x);
    scores.set(backend_, logits);
    const std::vector<float> zeros(x.size());
    sums.set(backend_, out.empty() ? std::span<const float>(zeros) : out);
    backend_.experts({.x = rows_in.tensor,
                      .logits = scores.tensor,
                      .routing = shape_.routing,
                      .correction = device_correction_ ? device_correction_->tensor.data : nullptr,
                      .factors = device_factors_ ? device_factors_->tensor.data : nullptr,
                      .activation = shape_.activation,
                      .squared_relu = shape_.squared_relu,
                      .experts = experts_,
                      .out = sums.tensor,
                      .in = in.tensor,
                      .gate_up = gate_up.tensor,
                      .act = act.tensor,
                      .down = down.tensor});
    return sums.get(backend_);
  }

  /// Of each row, the experts it takes and how much they weigh.
  std::vector<std::pair<std::size_t, double>> choices(std::span<const float> logits) const {
    const Routing& routing = shape_.routing;
    const auto count = static_cast<std::size_t>(routing.experts);
    const double most = *std::max_element(logits.begin(), logits.begin() + routing.experts);
    double sum = 0;
    for (std::size_t e = 0; e < count; ++e) sum += std::exp(logits[e] - most);
    std::vector<double> scores;
    std::vector<double> ranks;
    for (std::size_t e = 0; e < count; ++e) {
      const auto logit = static_cast<double>(logits[e]);
      const bool sigmoid = routing.score == RouterScore::kSigmoid;
      scores.push_back(sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - most) / sum);
      ranks.push_back(scores.back() + (correction_.empty() ? 0.0 : correction_[e]));
    }
    const std::vector<std::size_t> groups = best_groups(ranks);
    std::vector<std::size_t> order;
    for (std::size_t e = 0; e < count; ++e) {
      const std::size_t of_group = count / static_cast<std::size_t>(routing.groups);
      if (std::ranges::find(groups, e / of_group) != groups.end()) order.push_back(e);
    }
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t e) { return ranks[e]; });
    order.resize(static_cast<std::size_t>(routing.chosen));
    std::vector<std::pair<std::size_t, double>> out;
    double chosen = 0;
    for (const std::size_t e : order) {
      out.emplace_back(e, scores[e]);
      chosen += out.back().second;
    }
    for (auto& [e, weight] : out) {
      weight *= static_cast<double>(routing.scale) /
                (routing.normalised ? chosen + static_cast<double>(routing.sum_bias) : 1);
      if (!factors_.empty()) weight *= static_cast<double>(factors_[e]);
    }
    if (routing.shared == SharedExpert::kPlain) out.emplace_back(count, 1);
    if (routing.shared == SharedExpert::kGated) {
      out.emplace_back(count, 1 / (1 + std::exp(-static_cast<double>(logits[count]))));
    }
    return out;
  }

  std::vector<double> reference(std::span<const float> x, std::span<const float> logits) const {
    const auto dim = static_cast<std::size_t>(shape_.dim);
    const auto width = static_cast<std::size_t>(shape_.routing.logits());
    std::vector<double> out(x.size());
    for (std::size_t row = 0; row < x.size() / dim; ++row) {
      const auto in = x.subspan(row * dim, dim);
      for (const auto& [e, weight] : choices(logits.subspan(row * width, width))) {
        const StoredMatrix& host = gate_ups_[e].host;
        const double inside = shape_.routing.weighs_inputs ? weight : 1;
        std::vector<float> weighed(in.begin(), in.end());
        for (float& value : weighed) value = static_cast<float>(value * inside);
        auto gates = testing_support::reference_matmul(weighed, gate_ups_[e].values, 1, host.rows,
                                                       host.cols);
        const auto ffn = static_cast<std::size_t>(downs_[e].host.cols);
        add_to(gates, biases_[e]);
        std::vector<float> act;
        for (std::size_t i = 0; i < ffn; ++i) {
          const double positive = std::max(gates[i], 0.0);
          act.push_back(static_cast<float>(
              shape_.squared_relu
                  ? positive * positive
                  : testing_support::activated(gates[i], gates[ffn + i], shape_.activation)));
        }
        auto sums = testing_support::reference_matmul(act, downs_[e].values, 1, shape_.dim,
                                                      downs_[e].host.cols);
        add_to(sums, biases_[gate_ups_.size() + e]);
        for (std::size_t i = 0; i < dim; ++i) out[row * dim + i] += weight / inside * sums[i];
      }
    }
    return out;
  }

 private:
  static void add_to(std::vector<double>& sums, const std::vector<float>& bias) {
    for (std::size_t i = 0; i < bias.size(); ++i) sums[i] += static_cast<double>(bias[i]);
  }
  void add_bias(Random& random, std::int64_t rows) {
    biases_.push_back(shape_.bias ? random.normal(rows) : std::vector<float>{});
  }
  /// The groups that experts are chosen from.
  std::vector<std::size_t> best_groups(const std::vector<double>& ranks) const {
    const auto count = static_cast<std::size_t>(shape_.routing.groups);
    const std::size_t of_group = ranks.size() / count;
    std::vector<double> sums;
    for (std::size_t group = 0; group < count; ++group) {
      const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(group * of_group);
      std::vector<double> sorted(begin, begin + static_cast<std::ptrdiff_t>(of_group));
      std::ranges::sort(sorted, std::greater<>());
      sums.push_back(sorted[0] + (of_group > 1 ? sorted[1] : 0.0));
    }
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::size_t group) { return sums[group]; });
    order.resize(static_cast<std::size_t>(shape_.routing.chosen_groups));
    return order;
  }
  const float* on_device(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    device_biases_.emplace_back(backend_, 1, std::ssize(values));
    device_biases_.back().set(backend_, values);
    return device_biases_.back().tensor.data;
  }
  void pack() {
    biases_.resize(2 * gate_ups_.size());
    for (std::size_t e = 0; e < gate_ups_.size(); ++e) {
      weights_.push_back(backend_.pack_expert({&gate_ups_[e].host, 1}));
      weights_.push_back(backend_.pack_expert({&downs_[e].host, 1}));
      experts_.push_back({weights_[2 * e].get(), weights_[2 * e + 1].get(), on_device(biases_[e]),
                          on_device(biases_[gate_ups_.size() + e])});
    }
    backend_.add_experts(experts_);
    const auto on_device = [&](const std::vector<float>& values) {
      if (values.empty()) return std::unique_ptr<Owned>();
      auto owned = std::make_unique<Owned>(backend_, 1, std::ssize(values));
      owned->set(backend_, values);
      return owned;
    };
    device_correction_ = on_device(correction_);
    device_factors_ = on_device(factors_);
  }

  Backend& backend_;
  ExpertsShape shape_;
  std::vector<Matrix> gate_ups_, downs_;
  std::vector<std::vector<float>> biases_;  // of all gate_ups_, then of all downs_
  std::vector<float> correction_, factors_;
  std::deque<Owned> device_biases_;
  std::unique_ptr<Owned> device_correction_, device_factors_;
  std::vector<std::unique_ptr<Weight>> weights_;
  std::vector<Expert> experts_;
};

}  // namespace dendrite::test
