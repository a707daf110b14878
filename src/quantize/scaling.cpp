#include "quantize/scaling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "model/weights.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

constexpr std::int64_t kRowsTried = 256;  // of a matrix, evenly spaced
constexpr int kPowers = 20;               // from 0.05 to 1
constexpr float kLargestFactor = 64;
/// Less is no reason to change a norm.
constexpr double kWorthwhile = 0.98;

/// Where inputs can be scaled: channels that a norm makes, or rows of a matrix.
struct Place {
  std::string source;                // "....input_layernorm.weight"
  bool is_norm = false;              // else a matrix
  std::vector<std::string> readers;  // the first one's input is what was watched
  std::int64_t copies = 1;           // runs of `run` channels are each read so often
  std::int64_t run = 1;

  /// The channel that column k of a reader reads.
  std::size_t channel(std::size_t k) const {
    const auto at = static_cast<std::int64_t>(k);
    return static_cast<std::size_t>(at / (run * copies) * run + at % run);
  }
};

/// The names are Hugging Face's behind the model's `prefix`; all Llama-family classes share them.
std::vector<Place> places_of(const ModelInfo& info, const std::string& prefix) {
  std::vector<Place> places;
  for (std::int64_t i = 0; i < info.sizes.layers; ++i) {
    const std::string layer = prefix + "layers." + std::to_string(i) + ".";
    const auto name = [&layer](const char* part) { return layer + part + ".weight"; };
    if (info.plain_norms) {
      places.push_back(
          {name("input_layernorm"),
           true,
           {name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj")}});
    }
    if (info.plain_values) {
      places.push_back({name("self_attn.v_proj"),
                        false,
                        {name("self_attn.o_proj")},
                        info.sizes.heads / info.sizes.kv_heads,
                        info.sizes.head_dim});
    }
    if (info.plain_norms) {
      places.push_back(
          {name("post_attention_layernorm"), true, {name("mlp.gate_proj"), name("mlp.up_proj")}});
    }
    places.push_back({name("mlp.up_proj"), false, {name("mlp.down_proj")}});
  }
  return places;
}

/// Factors of a place's channels, and what its norm becomes.
struct Factors {
  std::vector<float> channels;
  std::vector<float> norm;
};

class Search {
 public:
  Search(const Place& place, const Matrices& matrices, const InputMoments& inputs,
         const PlainFormat* format, std::vector<float> norm, const ThreadPool& workers,
         const RowPacking& packing)
      : place_(place),
        matrices_(matrices),
        inputs_(inputs),
        format_(format),
        norm_(std::move(norm)),
        workers_(workers),
        packing_(packing) {
    means_ = channel_means();
  }

  /// The best factors there are, if they are worth it, and the error beside that without.
  std::pair<std::optional<Factors>, double> best() const {
    const double without = error_with(std::vector<float>(means_.size(), 1.0F));
    double least = without * kWorthwhile;
    std::optional<Factors> best;
    for (int i = 1; i <= kPowers; ++i) {
      Factors factors = factors_of(static_cast<float>(i) / kPowers);
      const double error = error_with(factors.channels);
      if (!(error < least)) continue;
      least = error;
      best = std::move(factors);
    }
    return {std::move(best), without > 0 && best ? least / without : 1};
  }

  std::vector<float> columns(const std::vector<float>& channels) const {
    std::vector<float> out(inputs_.means.size());
    for (std::size_t k = 0; k < out.size(); ++k) out[k] = channels[place_.channel(k)];
    return out;
  }
  /// Of an input that is divided by `columns`.
  std::vector<float> importance(const std::vector<float>& columns) const {
    std::vector<float> out(columns.size());
    for (std::size_t k = 0; k < out.size(); ++k) {
      out[k] = inputs_.squares[k] / (columns[k] * columns[k]);
    }
    return out;
  }

 private:
  std::vector<float> channel_means() const {
    const std::size_t cols = inputs_.means.size();
    std::vector<float> out(cols / static_cast<std::size_t>(place_.copies));
    for (std::size_t k = 0; k < cols; ++k) {
      out[place_.channel(k)] += inputs_.means[k] / static_cast<float>(place_.copies);
    }
    return out;
  }

  Factors factors_of(float power) const {
    const auto [least, most] = std::ranges::minmax(means_);
    const float floor = std::max(least, most * 1e-4F);
    const float middle = std::sqrt(std::pow(floor, power) * std::pow(most, power));
    Factors out;
    for (std::size_t c = 0; c < means_.size(); ++c) {
      float factor = std::pow(std::max(means_[c], floor), power) / middle;
      factor = std::isfinite(factor) ? std::clamp(factor, 1 / kLargestFactor, kLargestFactor) : 1;
      if (place_.is_norm) {
        const float norm = divided(norm_[c], factor);
        factor = norm == norm_[c] ? 1 : norm_[c] / norm;
        out.norm.push_back(norm);
      }
      out.channels.push_back(factor);
    }
    return out;
  }

  /// As the norm's own type keeps it. Columns are multiplied by what has been divided by then, so
  /// the rounding costs nothing.
  float divided(float value, float factor) const {
    const float quotient = value / factor;
    std::array<std::byte, 4> bytes;
    format_->narrow({&quotient, 1}, bytes.data());
    const float kept = stored_value(bytes.data(), *format_->number(), 0);
    return kept != 0 && std::isfinite(kept) ? kept : value;
  }

  double error_with(const std::vector<float>& channels) const {
    const std::vector<float> factors = columns(channels);
    const std::vector<float> counts = importance(factors);
    double sum = 0;
    for (const std::string& reader : place_.readers) {
      sum += error_of(matrices_.find(reader)->second, factors, counts);
    }
    return sum;
  }

  /// What packing does to a matrix, of some of its rows.
  double error_of(const SourceMatrix& matrix, const std::vector<float>& factors,
                  const std::vector<float>& counts) const {
    const std::int64_t tried = std::min(kRowsTried, matrix.rows);
    std::vector<double> errors(static_cast<std::size_t>(tried));
    std::vector<double> powers(errors.size());
    workers_.parallel_for(tried, 8, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(matrix.cols));
      std::vector<float> packed(row.size());
      std::vector<std::byte> bytes(static_cast<std::size_t>(packing_.row_bytes(matrix.cols)));
      std::vector<float> scales(static_cast<std::size_t>(packing_.scales(matrix.cols)));
      for (std::int64_t i = begin; i < end; ++i) {
        matrix.widen(i * matrix.rows / tried, row);
        for (std::size_t k = 0; k < row.size(); ++k) packed[k] = row[k] *= factors[k];
        pack_row(packing_, packed, counts, bytes.data(), scales);
        double error = 0;
        double power = 0;
        for (std::size_t k = 0; k < row.size(); ++k) {
          const double off = packed[k] - row[k];
          error += off * off * counts[k];
          power += static_cast<double>(row[k]) * row[k] * counts[k];
        }
        errors[static_cast<std::size_t>(i)] = error;
        powers[static_cast<std::size_t>(i)] = power;
      }
    });
    double error = 0;
    double power = 0;
    for (std::size_t i = 0; i < errors.size(); ++i) {
      error += errors[i];
      power += powers[i];
    }
    return power > 0 ? error / power : 0;
  }

  const Place& place_;
  const Matrices& matrices_;
  const InputMoments& inputs_;
  const PlainFormat* format_;  // of the norm
  std::vector<float> norm_;
  const ThreadPool& workers_;
  const RowPacking& packing_;
  std::vector<float> means_;  // of a channel's activation
};

/// A place's input, where all that belongs to it is there.
const InputMoments* input_of(const Place& place, const Checkpoint& files, const Matrices& matrices,
                             const Activations& activations) {
  const auto packed = [&](const std::string& name) { return matrices.contains(name); };
  if (!std::ranges::all_of(place.readers, packed)) return nullptr;
  if (place.is_norm ? files.find(place.source) == nullptr : !packed(place.source)) return nullptr;
  const auto found = activations.inputs.find(place.readers.front());
  return found == activations.inputs.end() ? nullptr : &found->second;
}

/// What makes the channels of a place is divided by their factors.
void fold(const Place& place, const Checkpoint& files, const Factors& factors, Scalings& out) {
  if (place.is_norm) {
    out.vectors[place.source] = factors.norm;
    return;
  }
  out.rows[place.source] = factors.channels;
  const std::string bias = place.source.substr(0, place.source.rfind('.')) + ".bias";
  const TensorInfo* const tensor = files.find(bias);
  if (tensor == nullptr) return;
  std::vector<float> values = numbers_of(*tensor);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] /= factors.channels[i];
  out.vectors[bias] = std::move(values);
}

}  // namespace

Scalings find_scalings(const Checkpoint& files, const ModelInfo& info, const Matrices& matrices,
                       const Activations& activations, const ThreadPool& workers,
                       const ScalingParams& params) {
  Scalings out;
  double ratios = 0;
  const std::vector<Place> places = places_of(info, tensor_prefix(files));
  for (std::size_t i = 0; i < places.size() && !params.cancel.stop_requested(); ++i) {
    const Place& place = places[i];
    if (const InputMoments* inputs = input_of(place, files, matrices, activations)) {
      const TensorInfo* const norm = place.is_norm ? files.find(place.source) : nullptr;
      const PlainFormat* const format = norm != nullptr ? &require_plain(*norm) : nullptr;
      const Search search(place, matrices, *inputs, format,
                          norm != nullptr ? numbers_of(*norm) : std::vector<float>{}, workers,
                          params.packing);
      const auto [factors, ratio] = search.best();
      const std::vector<float> columns = factors ? search.columns(factors->channels)
                                                 : std::vector<float>(inputs->means.size(), 1.0F);
      for (const std::string& reader : place.readers) {
        out.importance[reader] = search.importance(columns);
        if (factors) out.columns[reader] = columns;
      }
      if (factors) fold(place, files, *factors, out);
      ++out.places;
      out.scaled += factors ? 1 : 0;
      ratios += ratio;
    }
    if (params.on_progress)
      params.on_progress(static_cast<std::int64_t>(i) + 1, std::ssize(places));
  }
  if (out.places > 0) out.error_ratio = ratios / static_cast<double>(out.places);
  return out;
}

}  // namespace dendrite
