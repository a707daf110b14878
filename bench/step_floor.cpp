#include "step_floor.h"

#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"

namespace dendrite::bench {

std::int64_t weight_bytes_read(const Engine& engine) {
  const EngineCore& core = *core_of(engine);
  const EngineInfo& info = engine.info();
  const std::int64_t element = core.backend->numerics().weights ? 2 : 4;
  const bool is_tied = &core.model->embedding() == &core.model->output_matrix();
  return info.weight_bytes - (is_tied ? 0 : info.vocab * info.dim * element);
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
