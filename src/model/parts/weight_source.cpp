#include "model/parts/weight_source.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "backend/product_fit.h"
#include "backend/rounding.h"
#include "backend/row_order.h"
#include "backend/transposed.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

/// The few rows that say how much a recurrent layer writes and forgets, and which experts a row
/// takes.
constexpr std::string_view kExact[] = {".in_proj_a.weight",
                                       ".in_proj_b.weight",
                                       ".in_proj_ba.weight",
                                       ".mlp.gate.weight",
                                       ".feed_forward.gate.weight",
                                       ".feed_forward.router.weight",
                                       ".mlp.router.weight",
                                       ".mlp.router.gate.weight",
                                       ".router.proj.weight",
                                       ".block_sparse_moe.gate.weight",
                                       ".block_sparse_moe.router.layer.weight",
                                       ".shared_expert_gate.weight"};

std::int64_t turn_of(const WeightSource::Part& part) {
  return std::accumulate(part.turns.begin(), part.turns.end(), std::int64_t{0});
}

/// Of the part's tensor, all kinds of them.
std::int64_t all_rows(const WeightSource::Part& part) {
  return part.turns.empty() ? part.rows : part.rows / part.turns[part.kind] * turn_of(part);
}

/// The rows that are meant of so many that are stored; none: all as they are.
std::optional<std::vector<std::int64_t>> order_of(const WeightSource::Part& part,
                                                  std::int64_t count) {
  if (!part.turns.empty()) return rows_of_kind(count, part.turns, part.kind);
  if (part.rotated > 0) return rows_of_pairs(count, part.head, part.unrotated, part.rotated);
  return std::nullopt;
}

/// Embeddings are left as they are, but for those that are the output matrix, too.
WeightRounding rounding_of(const WeightSource::Part& part, const Numerics& numerics) {
  if (part.output) return numerics.output;
  const std::string& name = part.name;
  const bool rounds =
      (name.starts_with("model.") || name.starts_with("language_model.")) &&
      name.find(".layers.") != name.npos &&
      std::ranges::none_of(kExact, [&](std::string_view end) { return name.ends_with(end); });
  return rounds ? numerics.rounding : WeightRounding::kNone;
}

/// Rows that are another part's, too: values that are keys.
std::int64_t repeated_rows(const std::vector<WeightSource::Part>& parts) {
  std::set<std::tuple<std::string_view, std::size_t, std::int64_t, std::int64_t>> seen;
  std::int64_t rows = 0;
  for (const WeightSource::Part& part : parts) {
    const bool is_new = seen.emplace(part.name, part.kind, part.slice ? part.slice->index : -1,
                                     part.range ? part.range->first : -1)
                            .second;
    if (!is_new) rows += part.rows;
  }
  return rows;
}

/// Which of the vectors of a tensor a part is.
std::int64_t number_of(const WeightSource::Part& part) {
  const auto kinds = static_cast<std::int64_t>(std::max<std::size_t>(1, part.turns.size()));
  return (part.slice ? part.slice->index : 0) * kinds + static_cast<std::int64_t>(part.kind);
}

}  // namespace

std::unique_ptr<Weight> WeightSource::matrix(const std::vector<Part>& parts, std::int64_t cols,
                                             const NormNames& norms, bool of_expert,
                                             const Split& split) {
  std::unique_ptr<Weight> weight;
  if (walk_ == Walk::kRandom) {
    std::int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    const DType number = backend_.numerics().weights.value_or(DType::kF32);
    const WeightRounding rounding = rounding_of(parts.front(), backend_.numerics());
    if (rounding != WeightRounding::kNone) {
      weight = random_rounded_weight(backend_, rows, cols, rounding, ++seed_, of_expert, split);
    } else if (parts.front().mxfp4 && cols % 32 == 0) {
      weight = random_mxfp4_expert(backend_, rows, cols, ++seed_);
    } else {
      weight = backend_.random_split(rows, cols, number, ++seed_, split);
    }
  } else {
    std::vector<StoredMatrix> matrices;
    std::map<std::string, std::vector<StoredMatrix>> found;  // several parts may be of one tensor
    std::deque<RowOrder> ordered;                            // which matrices are views of
    std::deque<RoundedMatrix> rounded;                       // so are they of these
    std::deque<TransposedMatrix> transposed;
    for (const Part& part : parts) {
      const WeightRounding rounding =
          walk_ == Walk::kCheck ? WeightRounding::kNone : rounding_of(part, backend_.numerics());
      const auto take = [&](std::span<const StoredMatrix> from) {
        for (const StoredMatrix& one : from) {
          matrices.push_back(rounded.emplace_back(one, rounding).matrix());
        }
      };
      if (!found.contains(part.name)) {
        found.emplace(part.name, stored(part, cols));
        if (part.range) {
          std::vector<std::int64_t> rows(
              static_cast<std::size_t>(part.transposed ? cols : all_rows(part)));
          std::iota(rows.begin(), rows.end(), part.range->first);
          std::vector<StoredMatrix>& all = found.at(part.name);
          const auto views = ordered.emplace_back(all.front(), rows).views();
          all.assign(views.begin(), views.end());
        }
        if (part.transposed && walk_ != Walk::kCheck) {
          for (StoredMatrix& one : found.at(part.name)) {
            one = transposed.emplace_back(one).matrix();
          }
        }
      }
      for (const StoredMatrix& one : found.at(part.name)) {
        const auto rows = order_of(part, one.rows);
        take(rows ? ordered.emplace_back(one, *rows).views() : std::span(&one, 1));
      }
    }
    for (StoredMatrix& matrix : matrices) {
      matrix.as_plain = keeps_fp8_inputs_ && matrix.format->name() == "fp8";
      matrix.rounds_inputs = rounds_block_inputs_;
    }
    if (walk_ != Walk::kCheck && !norms.before.empty()) judge(matrices, norms);
    if (walk_ != Walk::kRead) return nullptr;
    weight = of_expert ? backend_.pack_expert(matrices) : backend_.pack_split(matrices, split);
  }
  parameters_ += (weight->rows() - repeated_rows(parts)) * weight->cols();
  size_bytes_ += weight->size_bytes();
  return weight;
}

void WeightSource::judge(std::vector<StoredMatrix>& matrices, const NormNames& norms) {
  const bool rounds = std::ranges::any_of(
      matrices, [&](const StoredMatrix& matrix) { return backend_.rounds_inputs(matrix); });
  if (!rounds && walk_ != Walk::kJudge) return;
  const auto weights = [&](const std::string& name, std::int64_t count) {
    return numbers({name, count}, 1, change_of(norms.zero_centred));
  };
  NormsAround around{weights(norms.before, matrices.front().cols)};
  if (!norms.q.empty()) {
    around.q = weights(norms.q, norms.head_dim);
    around.k = weights(norms.k, norms.head_dim);
    around.rotary_dim = norms.rotary_dim;
  }
  const ProductFit fit = fit_of(around, matrices);
  const bool falls_back = rounds && fit.verdict() == Compatibility::Verdict::kIncompatible;
  add(compatibility_, fit, std::string(matrices.front().name), falls_back);
  for (StoredMatrix& matrix : matrices) matrix.as_plain = matrix.as_plain || falls_back;
}

std::vector<StoredMatrix> WeightSource::stored(const Part& part, std::int64_t cols) const {
  const std::int64_t rows = part.transposed ? cols : all_rows(part);
  const std::int64_t columns = part.transposed ? all_rows(part) : cols;
  if (part.slice) return {checkpoint_->slice(part.name, *part.slice, rows, columns)};
  return checkpoint_->stacked(part.name, part.range ? part.range->all : rows, columns);
}

std::unique_ptr<Buffer> WeightSource::vector(const std::vector<Part>& parts, float dummy_value,
                                             Change change, const Split& split) {
  std::vector<float> values;
  std::map<std::string, std::vector<float>> found;
  for (const Part& part : parts) {
    if (!found.contains(part.name)) found.emplace(part.name, numbers(part, dummy_value, change));
    std::span<const float> all = found.at(part.name);
    if (part.slice) {
      const auto count = static_cast<std::size_t>(all_rows(part));
      all = all.subspan(static_cast<std::size_t>(part.slice->index) * count, count);
    }
    const auto rows = order_of(part, std::ssize(all));
    if (!rows) {
      values.insert(values.end(), all.begin(), all.end());
      continue;
    }
    for (const std::int64_t row : *rows) values.push_back(all[static_cast<std::size_t>(row)]);
  }
  if (walk_ == Walk::kCheck || walk_ == Walk::kJudge) return nullptr;
  auto buffer = backend_.make_buffer(static_cast<std::int64_t>(values.size()));
  backend_.upload_split(buffer->data(), values, split);
  for (const Part& part : parts) {  // a norm may stand before two parts
    if (vectors_.emplace(part.name, number_of(part)).second) parameters_ += part.rows;
  }
  size_bytes_ += buffer->count() * 4;
  return buffer;
}

std::unique_ptr<Buffer> WeightSource::ones(std::int64_t count) {
  if (walk_ == Walk::kCheck || walk_ == Walk::kJudge) return nullptr;
  auto buffer = backend_.make_buffer(count);
  backend_.upload(buffer->data(), std::vector<float>(static_cast<std::size_t>(count), 1.0F));
  return buffer;
}

std::vector<float> WeightSource::numbers(const Part& part, float dummy_value, Change change) const {
  std::vector<std::int64_t> shape = part.shape;
  if (part.slice) shape = {part.slice->count, all_rows(part)};
  if (shape.empty()) shape = {all_rows(part)};
  if (walk_ == Walk::kRandom) {
    return std::vector<float>(static_cast<std::size_t>(value_count(shape)), dummy_value);
  }
  std::vector<float> values = checkpoint_->values(part.name, shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float stored = values[i];
    if (change != nullptr) values[i] = change(stored);
    if (std::isfinite(values[i])) continue;
    const std::string what = std::isfinite(stored) ? std::to_string(stored)
                             : std::isnan(stored)  ? "NaN"
                                                   : "infinity";
    throw Error(std::string(checkpoint_->find(part.name)->file) + ": tensor \"" + part.name +
                "\" holds " + what + " at element " + std::to_string(i) + "; expected " +
                (std::isfinite(stored) ? "less, which is computed with as a finite value"
                                       : "finite values"));
  }
  return values;
}

}  // namespace dendrite
