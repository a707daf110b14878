#include "step/kv_probe.h"

#include <algorithm>

#include "backend/kv_parts.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

KvShape shape_of(KvShape shape, std::int64_t layers, std::int64_t tokens, std::int64_t segments) {
  shape.layers = layers;
  // (A segment may begin and end inside of a page.)
  shape.pages = tokens / shape.page_tokens + 2 * segments + 1;
  shape.guarded = false;
  return shape;
}

}  // namespace

KvProbe::KvProbe(Backend& backend, Model& model, KvShape like, std::int64_t layers,
                 std::int64_t tokens, std::int64_t segments)
    : model_(model),
      layers_(layers),
      store_(make_kv_stores(backend, shape_of(like, layers, tokens, segments))),
      tree_(*store_),
      plan_(like.page_tokens) {}

KvProbe::~KvProbe() {
  for (Tip& tip : tips_) tree_.drop(tip);
}

Tip& KvProbe::add(const Lineage& lineage) {
  first_.id = second_.id = -1;
  Tip& tip = tips_.emplace_back(tree_.tip_of(lineage));
  while (tree_.computed(tip) < tree_.length(tip)) compute(tip);
  return tip;
}

/// One step.
void KvProbe::compute(Tip& tip) {
  StepRequest request{.tip = &tip, .keep_logits = false};
  StepOutcome outcome;
  const StepGroup group;
  plan_.build(tree_, {&request, 1}, {&outcome, 1},
              {.rows = model_.max_rows(),
               .logit_rows = 1,  // none is wanted; with room for none a plan is full
               .moves = model_.max_rows(),
               .groups = {&group, 1},
               .windows = model_.windows()},
              [](std::int64_t, std::size_t, bool) {});
  if (plan_.runs.empty() && plan_.moves.empty()) {
    throw Error("probe: " + std::to_string(tree_.length(tip)) + " tokens found no room in " +
                std::to_string(tree_.pool().size()) + " pages");
  }
  store_->flush_copies();
  if (!plan_.moves.empty()) model_.move(plan_.slot_moves, *store_);
  if (!plan_.runs.empty()) model_.fill(plan_.batch, *store_, layers_);
  std::vector<std::pair<std::int64_t, Segment*>> done;  // to where; ancestors first
  for (const StepPlan::Run& run : plan_.runs) done.emplace_back(run.end, run.segment);
  for (const StepPlan::Move& move : plan_.moves) done.emplace_back(move.end, move.segment);
  std::ranges::sort(done, {}, &std::pair<std::int64_t, Segment*>::first);
  for (const auto& [end, segment] : done) tree_.set_computed(*segment, end);
}

KvProbe::Values KvProbe::values(Page& page, Tip& tip, std::int64_t layer, std::int64_t position) {
  const KvShape& shape = store_->shape();
  const auto slot = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  const std::int64_t id = tree_.table(tip)[static_cast<std::size_t>(position / shape.page_tokens)];
  if (page.id != id || page.layer != layer) {
    page.k.resize(slot * static_cast<std::size_t>(shape.page_tokens));
    page.v.resize(page.k.size());
    store_->read(static_cast<std::int32_t>(id), layer, static_cast<std::int32_t>(shape.page_tokens),
                 page.k, page.v);
    page.id = id;
    page.layer = layer;
  }
  const std::size_t at = static_cast<std::size_t>(position % shape.page_tokens) * slot;
  return {std::span(page.k).subspan(at, slot), std::span(page.v).subspan(at, slot)};
}

}  // namespace dendrite
