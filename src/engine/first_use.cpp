#include "engine/first_use.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "backend/logits_sampler.h"
#include "dendrite/error.h"
#include "engine/context/move_check.h"
#include "engine/kv_pool_size.h"
#include "step/attention_planner.h"

namespace dendrite {
namespace {

/// Rows that store nothing, at the end of a context whose pages hold zeros.
class FirstPasses {
 public:
  FirstPasses(EngineCore& core, std::int64_t context)
      : core_(core), context_(context), planner_(core.info.page_tokens) {
    const std::int64_t page_tokens = core.info.page_tokens;
    table_.resize(static_cast<std::size_t>((context + page_tokens - 1) / page_tokens));
    std::iota(table_.begin(), table_.end(), 0);
  }

  void run(const FirstPass& pass) {
    const Model& model = *core_.model;
    if (pass.rows > std::min(context_, model.max_rows())) return;
    if (pass.logit_rows > model.max_logit_rows()) return;
    for (int i = 0; i < pass.times; ++i) {
      fill(pass);
      draw(core_.model->forward(batch_, core_.stores()));
    }
  }

 private:
  /// Where each row has logits, a row is a branch; else they are one prompt's.
  void fill(const FirstPass& pass) {
    const bool branches = pass.logit_rows == pass.rows;
    sequences_.clear();
    if (branches) {
      sequences_.assign(static_cast<std::size_t>(pass.rows), {table_, context_ - 1, 1});
    } else {
      sequences_.push_back({table_, context_ - pass.rows, static_cast<std::int32_t>(pass.rows)});
    }
    batch_.clear();
    batch_.tokens.resize(static_cast<std::size_t>(pass.rows));
    batch_.slots.resize(batch_.tokens.size(), -1);
    for (const PlanSequence& sequence : sequences_) {
      for (std::int32_t i = 0; i < sequence.rows; ++i) {
        batch_.positions.push_back(sequence.first_position + i);
      }
    }
    batch_.logit_rows.resize(static_cast<std::size_t>(pass.logit_rows));
    std::iota(batch_.logit_rows.begin(), batch_.logit_rows.end(),
              static_cast<std::int32_t>(pass.rows - pass.logit_rows));
    const std::vector<AttentionWindow>& windows = core_.model->windows();
    batch_.plans.resize(windows.size());
    for (std::size_t i = 0; i < windows.size(); ++i) {
      planner_.build(sequences_, windows[i], batch_.plans[i]);
    }
  }

  /// Without thresholds, and one draw with them, which is another kernel. Waits for the device.
  void draw(const Tensor& logits) {
    std::vector<Draw> draws;
    for (std::int64_t row = 0; row < logits.rows; ++row) {
      Draw& draw = draws.emplace_back();
      draw.row = static_cast<std::int32_t>(row);
      draw.temperature = 1;
      if (row == 1) draw.top_p = 0.9;
    }
    core_.backend->sampler()->draw(logits, draws);
  }

  EngineCore& core_;
  std::int64_t context_;
  AttentionPlanner planner_;
  std::vector<std::int32_t> table_;
  std::vector<PlanSequence> sequences_;
  Batch batch_;
};

void try_moves(EngineCore& core) {
  if (!core.model->why_not_move().empty()) return;
  const std::optional<std::string> problem =
      problem_of_moves(*core.backend, *core.model, core.model_info, core.store->shape());
  core.moves_checked = problem && problem->empty();
}

}  // namespace

void use_first(EngineCore& core) {
  Backend& backend = *core.backend;
  const std::vector<FirstPass> passes = backend.first_passes();
  if (passes.empty() || backend.sampler() == nullptr || core.states != nullptr ||
      core.store->shape().guarded) {
    return;
  }
  const std::int64_t positions =
      std::min({kLongContext, core.model_info.positions.max, core.info.kv_tokens});
  // (Where attention has no fast kernels, long contexts take long.)
  const bool slow = !backend.pass_kind(core.store->shape()).slow.empty();
  try {
    core.model->prepare_positions(positions, *core.workers);
    FirstPasses first(core, slow ? std::min(positions, kBlockTokens) : positions);
    for (const FirstPass& pass : passes) first.run(pass);
    core.store->copy_slots(0, 1, 1);
    core.store->flush_copies();
    try_moves(core);
  } catch (const Error&) {  // told by who needs it
  }
  backend.restart_pass_counts();
}

}  // namespace dendrite
