#include "step_floor.h"

#include <cmath>

#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"

namespace dendrite::bench {

namespace {

/// The part of a model's parameters that no row is expected to meet, where each takes
/// `experts_per_token` of `experts` whatever the others take.
double idle_share(const EngineInfo& info, std::int64_t rows) {
  if (info.idle_parameters == 0) return 0;
  const double left =
      1 - static_cast<double>(info.experts_per_token) / static_cast<double>(info.experts);
  const double of_one =
      static_cast<double>(info.idle_parameters) / static_cast<double>(info.parameters);
  return of_one * std::pow(left, static_cast<double>(rows - 1));
}

}  // namespace

double weight_bytes_read(const Engine& engine, std::int64_t rows) {
  const EngineCore& core = *core_of(engine);
  const EngineInfo& info = engine.info();
  const Weight& embedding = core.model->embedding();
  const bool is_tied = &embedding == &core.model->output_matrix();
  const auto all = static_cast<double>(info.weight_bytes);
  return all * (1 - idle_share(info, rows)) -
         (is_tied ? 0 : static_cast<double>(embedding.size_bytes()));
}

double flop_of_row(const Engine& engine, std::int64_t text) {
  const EngineInfo& info = engine.info();
  const auto qkv = static_cast<double>((info.heads + 2 * info.kv_heads) * info.head_dim);
  const auto attended = static_cast<double>(info.heads * info.head_dim);
  const auto dim = static_cast<double>(info.dim);
  const double weights = dim * (qkv + attended + 3 * static_cast<double>(info.ffn_dim));
  const double layer = 2 * weights + 4 * static_cast<double>(text) * attended;
  return static_cast<double>(info.layers) * layer + 2 * static_cast<double>(info.vocab) * dim;
}

}  // namespace dendrite::bench
