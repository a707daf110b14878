#include "engine/context/top_repair.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "engine/loop/step_loop.h"
#include "step/kv_probe.h"

namespace dendrite {
namespace {

/// What paths of this lineage and of all that it was moved from take.
void count_room(const Lineage& lineage, std::set<const Lineage*>& counted, std::int64_t& tokens,
                std::int64_t& segments) {
  if (!counted.insert(&lineage).second) return;
  tokens += lineage.length();
  segments += 2 * std::ssize(lineage.moved()) + 2;
  for (const MovedSpan& span : lineage.moved()) {
    count_room(*span.source, counted, tokens, segments);
    ++segments;
  }
}

/// |right - of|^2 / |right|^2
double deviation(std::span<const float> right, std::span<const float> of) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double difference = static_cast<double>(of[i]) - right[i];
    error += difference * difference;
    size += static_cast<double>(right[i]) * right[i];
  }
  return size > 0 ? error / size : 0;
}

/// The places of the largest so many.
std::vector<bool> largest(std::span<const double> values, std::int64_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return values[i]; });
  std::vector<bool> out(values.size());
  for (std::int64_t i = 0; i < count; ++i) out[order[static_cast<std::size_t>(i)]] = true;
  return out;
}

}  // namespace

void choose_top(EngineCore& engine, std::span<PlainPiece> pieces, Salt salt) {
  constexpr std::int64_t kLayer = 1;
  if (std::ranges::none_of(pieces, [](const PlainPiece& piece) { return piece.top > 0; })) return;
  const CompositionPlan plan = plan_composition(pieces, false, salt);
  if (plan.moved.empty() || engine.model_info.kv.layers <= kLayer) return;
  Lineage exact(salt);
  exact.add(plan.lineage.tokens());
  std::set<const Lineage*> counted;
  std::int64_t tokens = 0;
  std::int64_t segments = 0;
  count_room(exact, counted, tokens, segments);
  count_room(plan.lineage, counted, tokens, segments);

  const StepLoop::Pause pause(*engine.loop, nullptr);
  KvProbe probe(*engine.backend, *engine.model, engine.store->shape(), kLayer + 1, tokens,
                segments);
  Tip& right = probe.add(exact);
  Tip& moved = probe.add(plan.lineage);
  for (const CompositionPlan::Moved& part : plan.moved) {
    PlainPiece& piece = pieces[part.piece];
    if (piece.top <= 0) continue;
    std::vector<double> sums(static_cast<std::size_t>((part.count + kGroup - 1) / kGroup));
    probe.compare(right, moved, kLayer, part.at, part.at + part.count,
                  [&](std::int64_t position, const KvProbe::Values& a, const KvProbe::Values& b) {
                    sums[static_cast<std::size_t>((position - part.at) / kGroup)] +=
                        deviation(a.k, b.k) + deviation(a.v, b.v);
                  });
    const double wanted = std::ceil(piece.top * static_cast<double>(sums.size()));
    piece.top_groups = largest(sums, static_cast<std::int64_t>(wanted));
  }
}

}  // namespace dendrite
