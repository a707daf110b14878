#include "engine/context/move_check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "dendrite/error.h"
#include "engine/loop/step_loop.h"
#include "step/kv_probe.h"

namespace dendrite {
namespace {

constexpr std::int64_t kTokens = 64;
constexpr std::int64_t kBefore = 17;

/// Some that are not all alike, nor far apart by the same.
std::vector<Token> tokens_of(std::int64_t count, std::int64_t vocab) {
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<Token>((i * i * 7919 + i) % vocab));
  }
  return tokens;
}

}  // namespace

std::optional<std::string> problem_of_moves(Backend& backend, Model& model, const ModelInfo& info,
                                            const KvShape& like) {
  const std::int64_t count = std::min(kTokens, info.positions.max - kBefore);
  if (count <= 0) return {};
  std::optional<KvProbe> probe;
  try {
    probe.emplace(backend, model, like, 1, 3 * (kBefore + kTokens), 8);
  } catch (const Error&) {
    return {};
  }
  const std::vector<Token> all = tokens_of(kBefore + count, info.vocab);
  const std::span before = std::span(all).first(static_cast<std::size_t>(kBefore));
  const std::span behind = std::span(all).subspan(static_cast<std::size_t>(kBefore));
  const auto source = std::make_shared<Lineage>();
  source->add(behind);
  Lineage fresh;
  fresh.add(all);
  Lineage moved;
  moved.add(before);
  moved.add_moved(source, 0, count);
  Tip& computed = probe->add(fresh);
  Tip& brought = probe->add(moved);
  double error = 0;
  double size = 0;
  bool same_v = true;  // or there is none
  probe->compare(computed, brought, 0, kBefore, kBefore + count,
                 [&](std::int64_t, const KvProbe::Values& right, const KvProbe::Values& of) {
                   for (std::size_t i = 0; i < right.k.size(); ++i) {
                     const double k = static_cast<double>(of.k[i]) - right.k[i];
                     error += k * k;
                     size += static_cast<double>(right.k[i]) * right.k[i];
                   }
                   same_v = same_v && (like.values_are_keys || std::ranges::equal(right.v, of.v));
                 });
  // Of two roundings beside one.
  const double most = like.format == KvFormat::kF32    ? 1e-6
                      : like.format == KvFormat::kBF16 ? 4e-3
                                                       : 6e-2;
  const double rms = std::sqrt(error / std::max(size, 1e-30));
  if (rms <= most && same_v) return std::string();
  return "in the first layer, K that was moved by " + std::to_string(kBefore) +
         " positions is off by " + std::to_string(rms) + " of its size, expected " +
         std::to_string(most) + " at most, and V is " + (same_v ? "the same" : "not the same");
}

void check_moves(EngineCore& engine, const char* what) {
  if (engine.moves_checked) return;
  const StepLoop::Pause pause(*engine.loop, nullptr);
  if (engine.moves_checked) return;
  const std::optional<std::string> problem =
      problem_of_moves(*engine.backend, *engine.model, engine.model_info, engine.store->shape());
  if (!problem) return;  // the next time
  if (!problem->empty()) {
    throw Error(std::string(what) + ": K and V of " + engine.info.model_path +
                " can't be moved: " + *problem);
  }
  engine.moves_checked = true;
}

}  // namespace dendrite
