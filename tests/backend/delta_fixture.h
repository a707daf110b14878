#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "test_support.h"

// A gated delta network with random weights, its stores, and branches over them. No test framework
// here: kernels_selftest.cpp uses it too.
namespace dendrite::testing_support {

/// What is read of a state is normed: where it is small next to what it is a sum of, the rounding
/// of f32 shows. States themselves are within 1e-5.
inline constexpr double kDeltaTolerance = 4e-5;

/// A path as the owner of the stores knows it.
struct DeltaBranch {
  std::vector<std::int64_t> rows;      // of DeltaFixture::in, from position 0 on
  std::int32_t anchor = -1;            // before the journals
  std::vector<std::int32_t> journals;  // up to a whole chunk of them
};

class DeltaFixture {
 public:
  static constexpr std::int64_t kLayers = 2;
  static constexpr std::int64_t kLayer = 1;  // the one that runs

  /// `gate_scale` of how much is written and decays.
  DeltaFixture(Backend& backend, const DeltaNetSizes& shape, std::uint32_t seed,
               float gate_scale = 1)
      : backend_(backend), random_(seed), gate_scale_(gate_scale), net_{shape} {
    net_.norm_eps = 1e-6F;
    net_.layer = kLayer;
    conv_ = random_.normal(net_.channels() * net_.taps, 0.6F);
    decay_ = random_.normal(net_.value_heads);
    for (float& decay : decay_) decay = std::exp(decay);
    dt_bias_ = random_.normal(net_.value_heads);
    for (float& bias : dt_bias_) bias -= 2;  // so that states last for some rows
    norm_ = random_.normal(net_.value_dim, 0.25F);
    for (float& weight : norm_) weight += 1;
    net_.conv = to_device(conv_);
    net_.decay = to_device(decay_);
    net_.dt_bias = to_device(dt_bias_);
    net_.norm = to_device(norm_);
    clear_states();
  }

  const DeltaNet& net() const { return net_; }
  StateStore& states() { return *states_; }
  std::int64_t width() const { return net_.in_columns(); }
  std::int64_t out_width() const { return net_.out_columns(); }

  void clear_states() {
    states_ = backend_.make_state_store(
        {kLayers, net_.anchor_values(), net_.journal_values(), kAnchors, kJournals});
    anchors_used_ = journals_used_ = 0;
  }

  /// New rows of input; the first one's number.
  std::int64_t make_rows(std::int64_t count) {
    const std::int64_t first = std::ssize(in) / width();
    std::vector<float> made = random_.normal(count * width());
    for (std::int64_t i = 0; i < std::ssize(made); ++i) {
      if (i % width() >= width() - 2 * net_.value_heads)
        made[static_cast<std::size_t>(i)] *= gate_scale_;
    }
    in.insert(in.end(), made.begin(), made.end());
    out.resize(static_cast<std::size_t>((first + count) * out_width()), kNan);
    return first;
  }

  enum class Keep : std::uint8_t { kAll, kNothing };
  /// Plans rows [first, first + count) of `in` behind a branch, which they become part of. With
  /// kAll, of the states behind chunks the last one alone is kept if it can be, or all: `eager`.
  void add(DeltaBranch& branch, std::int64_t first, std::int64_t count, Keep keep = Keep::kAll,
           bool eager = true) {
    RecurrencePlan::Run run;
    run.row_begin = static_cast<std::int32_t>(planned_.size());
    run.row_end = static_cast<std::int32_t>(run.row_begin + count);
    run.first_position = std::ssize(branch.rows);
    run.anchor = branch.anchor;
    run.known = static_cast<std::int32_t>(branch.journals.size());
    run.known_begin = static_cast<std::int32_t>(plan.known.size());
    run.anchors_begin = static_cast<std::int32_t>(plan.anchors.size());
    plan.known.insert(plan.known.end(), branch.journals.begin(), branch.journals.end());
    for (std::int64_t i = 0; i < count; ++i) {
      planned_.push_back(first + i);
      branch.rows.push_back(first + i);
      plan.journals.push_back(keep == Keep::kAll ? journals_used_++ : -1);
    }
    const std::int64_t position = std::ssize(branch.rows);
    // Without a state behind a chunk that ends with the run, its journals stay what is known.
    const bool lazy = count > 0 && position % kChunkTokens == 0 && !eager;
    const std::int64_t ended = RecurrencePlan::chunks_ended(run);
    for (std::int64_t i = 0; i < ended; ++i) {
      const bool last = i + 1 == ended;
      const bool kept = keep == Keep::kAll && (last ? !lazy : eager || (lazy && i + 2 == ended));
      plan.anchors.push_back(kept ? anchors_used_++ : -1);
    }
    const std::int64_t made = lazy ? ended - 1 : ended;
    if (made > 0) {
      branch.anchor = plan.anchors[static_cast<std::size_t>(run.anchors_begin + made - 1)];
      branch.journals.clear();
    }
    const std::int64_t own =
        lazy ? kChunkTokens : position % kChunkTokens;  // journals of the chunk
    const std::int64_t missing = own - std::ssize(branch.journals);
    branch.journals.insert(branch.journals.end(), plan.journals.end() - missing,
                           plan.journals.end());
    plan.runs.push_back(run);
  }

  /// Runs what was planned, with rows of NaN behind as padding, and begins anew. False if padding
  /// or the other layer was touched.
  bool run() {
    const auto rows = std::ssize(planned_);
    const std::int64_t padding = 2;
    Owned input(backend_, rows + padding, width(), width() + 3);
    Owned output(backend_, rows + padding, out_width(), out_width() + 1);
    std::vector<float> values(static_cast<std::size_t>((rows + padding) * width()), kNan);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(in.begin() + planned_[static_cast<std::size_t>(i)] * width(), width(),
                  values.begin() + i * width());
    }
    input.set(backend_, values);
    DeltaNet args = net_;
    args.in = input.tensor;
    args.out = output.tensor;
    args.states = states_.get();
    args.plan = &plan;
    backend_.delta_net(args);
    const std::vector<float> got = output.get(backend_);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(got.begin() + i * out_width(), out_width(),
                  out.begin() + planned_[static_cast<std::size_t>(i)] * out_width());
    }
    const bool clean = std::all_of(got.begin() + rows * out_width(), got.end(),
                                   [](float x) { return std::isnan(x) || x == 0; });
    planned_.clear();
    plan.clear();
    return clean;
  }

  std::vector<float> out_of(std::span<const std::int64_t> rows) const {
    std::vector<float> values;
    for (const std::int64_t row : rows) {
      const auto from = out.begin() + row * out_width();
      values.insert(values.end(), from, from + out_width());
    }
    return values;
  }
  /// The same rows in one run that keeps nothing.
  std::vector<float> replayed(std::span<const std::int64_t> rows) {
    const std::vector<float> before = out;
    DeltaBranch branch;
    const std::int64_t first = std::ssize(in) / width();
    for (const std::int64_t row : rows) {
      for (std::int64_t i = 0; i < width(); ++i)
        in.push_back(in[static_cast<std::size_t>(row * width() + i)]);
    }
    out.resize(static_cast<std::size_t>(std::ssize(in) / width() * out_width()));
    add(branch, first, std::ssize(rows), Keep::kNothing, false);
    run();
    std::vector<float> values = out_of(branch.rows);
    in.resize(static_cast<std::size_t>(first * width()));
    out = before;
    return values;
  }
  std::vector<float> anchor(std::int32_t slot) const {
    std::vector<float> values(static_cast<std::size_t>(kLayers * net_.anchor_values()));
    states_->read_anchor(slot, values);
    return values;
  }

  struct Reference {
    std::vector<double> out;
    std::vector<double> state;  // [value_heads][key_dim][value_dim] behind the last row
  };
  /// Token by token in double precision.
  Reference reference(std::span<const std::int64_t> rows) const;

  std::vector<float> in;   // [rows][width]
  std::vector<float> out;  // [rows][out_width]
  RecurrencePlan plan;

 private:
  static constexpr std::int64_t kAnchors = 120;
  static constexpr std::int64_t kJournals = 2000;

  const float* to_device(std::span<const float> values) {
    buffers_.push_back(backend_.make_buffer(std::ssize(values)));
    backend_.upload(buffers_.back()->data(), values);
    return buffers_.back()->data();
  }

  Backend& backend_;
  Random random_;
  float gate_scale_;
  DeltaNet net_;
  std::vector<float> conv_, decay_, dt_bias_, norm_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<StateStore> states_;
  std::int32_t anchors_used_ = 0;
  std::int32_t journals_used_ = 0;
  std::vector<std::int64_t> planned_;  // rows of `in`
};

inline DeltaFixture::Reference DeltaFixture::reference(std::span<const std::int64_t> rows) const {
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const std::int64_t dk = net_.key_dim;
  const std::int64_t dv = net_.value_dim;
  const auto at = [](const auto& values, std::int64_t i) {
    return static_cast<double>(values[static_cast<std::size_t>(i)]);
  };
  Reference result;
  result.state.resize(static_cast<std::size_t>(net_.value_heads * dk * dv));
  for (std::int64_t t = 0; t < std::ssize(rows); ++t) {
    const auto input = [&](std::int64_t position, std::int64_t i) {
      return position < 0 ? 0.0 : at(in, rows[static_cast<std::size_t>(position)] * width() + i);
    };
    std::vector<double> mixed;
    for (std::int64_t c = 0; c < net_.channels(); ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < net_.taps; ++j) {
        sum += at(conv_, c * net_.taps + j) * input(t - (net_.taps - 1) + j, c);
      }
      mixed.push_back(silu(sum));
    }
    for (std::int64_t h = 0; h < net_.value_heads; ++h) {
      const std::int64_t key_head = h / (net_.value_heads / net_.key_heads);
      const auto unit = [&](std::int64_t first) {
        const auto begin = mixed.begin() + first;
        std::vector<double> x(begin, begin + dk);
        double square = 1e-6;
        for (const double value : x) square += value * value;
        for (double& value : x) value /= std::sqrt(square);
        return x;
      };
      const auto q = unit(key_head * dk);
      const auto k = unit((net_.key_heads + key_head) * dk);
      const std::int64_t behind = net_.channels() + out_width();
      const double share = 1 / (1 + std::exp(-input(t, behind + h)));
      const double x = input(t, behind + net_.value_heads + h) + at(dt_bias_, h);
      const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
      const double factor = std::exp(-at(decay_, h) * softplus);
      std::vector<double> o(static_cast<std::size_t>(dv));
      double square = 0;
      for (std::int64_t c = 0; c < dv; ++c) {
        const auto state = [&](std::int64_t i) -> double& {
          return result.state[static_cast<std::size_t>((h * dk + i) * dv + c)];
        };
        double read = 0;
        for (std::int64_t i = 0; i < dk; ++i) {
          state(i) *= factor;
          read += state(i) * at(k, i);
        }
        const double write = share * (at(mixed, 2 * net_.key_heads * dk + h * dv + c) - read);
        double sum = 0;
        for (std::int64_t i = 0; i < dk; ++i) {
          state(i) += at(k, i) * write;
          sum += state(i) * at(q, i);
        }
        o[static_cast<std::size_t>(c)] = sum / std::sqrt(static_cast<double>(dk));
        square += o[static_cast<std::size_t>(c)] * o[static_cast<std::size_t>(c)];
      }
      const double norm =
          1 / std::sqrt(square / static_cast<double>(dv) + static_cast<double>(net_.norm_eps));
      for (std::int64_t c = 0; c < dv; ++c) {
        result.out.push_back(at(norm_, c) * at(o, c) * norm *
                             silu(input(t, net_.channels() + h * dv + c)));
      }
    }
  }
  return result;
}

}  // namespace dendrite::testing_support
