#include "backend/product_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/rng.h"
#include "quant/column_order.h"

namespace dendrite {
namespace {

constexpr double kCompatibleScore = 0.8;
constexpr double kLeastScore = 0.5;
constexpr double kMostLargest = 10;

constexpr std::int64_t kGroup = 32;  // values of a row that share a scale
constexpr std::int64_t kSampledRows = 64;
constexpr std::int64_t kLeastDraws = 16;    // rows of normal numbers
constexpr std::int64_t kDrawn = 16 * 1024;  // numbers, where rows are short

double typical(std::span<const float> weights) {
  std::vector<float> sizes;
  for (const float weight : weights) sizes.push_back(std::abs(weight));
  const auto middle = sizes.begin() + std::ssize(sizes) / 2;
  std::ranges::nth_element(sizes, middle);
  return *middle;
}

double largest(std::span<const float> weights) {
  if (weights.empty()) return 1;
  double most = 0;
  for (const float weight : weights) most = std::max(most, std::abs(static_cast<double>(weight)));
  const double middle = typical(weights);
  return middle > 0 ? most / middle : 1;
}

/// Mean squares of the columns, but for a factor.
std::vector<double> column_squares(std::span<const StoredMatrix> parts, std::size_t cols) {
  std::vector<double> squares(cols);
  std::vector<float> values(cols);
  for (const StoredMatrix& part : parts) {
    const std::int64_t rows = std::min(part.rows, kSampledRows);
    for (std::int64_t i = 0; i < rows; ++i) {
      part.format->widen(part, i * part.rows / rows, 0, values);
      for (std::size_t j = 0; j < cols; ++j) {
        squares[j] += static_cast<double>(values[j]) * values[j];
      }
    }
  }
  return squares;
}

/// Nearly normal, by sums that are the same everywhere: of four uniform numbers.
float draw(std::int64_t row, std::int64_t i) {
  constexpr float kToOne = 1.7320508F / 65536;
  const std::uint64_t bits =
      philox_u64(0, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(i));
  const std::uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) - 131070.0F) * kToOne;
}

struct Error2 {
  double error = 0, sum = 0;
};

/// Rounds a group, and adds the squares of errors and values, weighed.
void add_rounded(Error2& all, std::span<const float> group, std::span<const double> squares) {
  float most = 0;
  for (const float value : group) most = std::max(most, std::abs(value));
  const float scale = most / 127;
  if (scale == 0) return;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const double error = group[i] - std::nearbyint(group[i] / scale) * scale;
    all.error += squares[i] * error * error;
    all.sum += squares[i] * static_cast<double>(group[i]) * group[i];
  }
}

double score_in_front(std::span<const float> norm, std::span<const double> squares) {
  const std::int64_t cols = std::ssize(norm);
  const std::int64_t rows = std::max(kLeastDraws, kDrawn / cols);
  Error2 even;
  Error2 normed;
  std::vector<float> plain(kGroup);
  std::vector<float> weighed(kGroup);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t first = 0; first < cols; first += kGroup) {
      const auto at = static_cast<std::size_t>(first);
      const auto count = static_cast<std::size_t>(std::min(kGroup, cols - first));
      for (std::size_t i = 0; i < count; ++i) {
        plain[i] = draw(row, first + static_cast<std::int64_t>(i));
        weighed[i] = plain[i] * norm[at + i];
      }
      add_rounded(even, std::span(plain).first(count), squares.subspan(at, count));
      add_rounded(normed, std::span(weighed).first(count), squares.subspan(at, count));
    }
  }
  if (normed.error == 0 || normed.sum == 0 || even.sum == 0) return 1;
  return std::min(1.0, std::sqrt(even.error / even.sum * (normed.sum / normed.error)));
}

/// Of each dim, with what RoPE turns it into.
std::vector<double> turned(std::span<const float> norm, std::size_t rotary_dim) {
  std::vector<double> out(norm.begin(), norm.end());
  for (std::size_t i = 0; i < rotary_dim / 2; ++i) {
    double& a = out[i];
    double& b = out[i + rotary_dim / 2];
    a = b = std::sqrt((a * a + b * b) / 2);
  }
  for (double& weight : out) weight = std::abs(weight);
  return out;
}

double score_behind(const NormsAround& norms) {
  if (norms.q.empty() || norms.q.size() != norms.k.size()) return 1;
  const auto rotary_dim = static_cast<std::size_t>(norms.rotary_dim);
  const std::vector<double> q = turned(norms.q, rotary_dim);
  const std::vector<double> k = turned(norms.k, rotary_dim);
  double sum = 0;
  double squares = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    sum += q[i] * k[i];
    squares += q[i] * k[i] * (q[i] * k[i]);
  }
  if (squares == 0) return 1;
  return std::min(1.0, sum / std::sqrt(squares * static_cast<double>(q.size())));
}

std::string number(double value) {
  char out[32];
  std::snprintf(out, sizeof out, "%.3g", value);
  return out;
}

}  // namespace

const char* name_of(Compatibility::Verdict verdict) {
  switch (verdict) {
    case Compatibility::Verdict::kCompatible:
      return "compatible";
    case Compatibility::Verdict::kWarn:
      return "warn";
    case Compatibility::Verdict::kIncompatible:
      break;
  }
  return "incompatible";
}

Compatibility::Verdict ProductFit::verdict() const {
  if (score < kLeastScore) return Compatibility::Verdict::kIncompatible;
  if (score > kCompatibleScore && largest < kMostLargest) {
    return Compatibility::Verdict::kCompatible;
  }
  return Compatibility::Verdict::kWarn;
}

ProductFit fit_of(const NormsAround& norms, std::span<const StoredMatrix> parts) {
  ProductFit fit;
  std::vector<float> before = norms.before;
  const std::vector<double> in_place = column_squares(parts, before.size());
  std::vector<double> squares = in_place;
  // What shares a scale are neighbours in this order.
  const std::vector<std::int32_t> order = column_order(parts.front());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto k = static_cast<std::size_t>(order[i]);
    before[i] = norms.before[k];
    squares[i] = in_place[k];
  }
  fit.largest = std::max({largest(norms.before), largest(norms.q), largest(norms.k)});
  fit.score = score_in_front(before, squares) * score_behind(norms);
  return fit;
}

void add(Compatibility& all, const ProductFit& fit, const std::string& product, bool unrounded) {
  const Compatibility::Verdict verdict = fit.verdict();
  ++all.products;
  all.warned += verdict == Compatibility::Verdict::kWarn;
  all.incompatible += verdict == Compatibility::Verdict::kIncompatible;
  all.unrounded += unrounded;
  all.verdict = std::max(all.verdict, verdict);
  all.largest = std::max(all.largest, fit.largest);
  if (fit.score >= all.score) return;
  all.score = fit.score;
  all.product = product;
}

std::string warning_of(const Compatibility& all) {
  if (all.verdict == Compatibility::Verdict::kCompatible) return "";
  std::string out = "norm weights up to " + number(all.largest) + " times the typical one, score " +
                    number(all.score);
  if (!all.product.empty()) out += " at " + all.product;
  out += ": ";
  if (all.unrounded > 0) {
    out += std::to_string(all.unrounded) + " of " + std::to_string(all.products) +
           " products do not round their inputs to 8 bits, and take more memory and time";
  }
  if (all.warned > 0) {
    if (all.unrounded > 0) out += "; ";
    out += std::to_string(all.warned) + " of " + std::to_string(all.products) +
           " round them, and may lose some accuracy";
  }
  return out + " (dtype f32, --dtype f32, rounds nothing)";
}

}  // namespace dendrite
